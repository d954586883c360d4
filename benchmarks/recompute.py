"""The words of the claims in recompute.toml, recomputed from the kept lines without hanse; run it without options."""

# fmt: off
# ruff: noqa: B905 (zip without strict: in so few lines a line counts)
import gzip
import json
import tomllib
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import t as student

HERE = Path(__file__).parent
@cache
def kept(paper, folder):  # the finished lines of each seed
    lines = {}
    for line in gzip.decompress((folder / "results" / paper / "kept.jsonl.gz").read_bytes()).splitlines():
        if (d := json.loads(line.replace(b"hanse.lab.papers.", b"hanse_papers.")))["status"] == "done":
            lines.setdefault(d["given"]["run"]["seed"], []).append(d)
    return lines
def found(lines, arm, data):  # the run that counts, then its repeats
    rules = [*data, *arm.get("where", [])]
    whole = arm | {r[0]: r[1] for r in rules if len(r) == 2}
    options = {(r[0], r[1]): r[2] for r in rules if len(r) == 3}
    whole |= {"mechanism": {k: options.pop(("mechanism", k), v) for k, v in arm["mechanism"].items()}}
    options = {at: v for at, v in options.items() if at[0] != "mechanism"}
    for d in lines:
        given = d["given"] | d["given"]["data"] | d["given"].get("clients", {})
        wanted = {("data", "seed"): given["run"]["seed"]} | options
        same = all(whole.get(k) in ("any", d["given"].get(k)) for k in ("mechanism", "clients", "behaviour"))
        if same and all(given.get(p, {}).get(k, "absent") == v for (p, k), v in wanted.items()):
            yield d
def lives(rows, client):  # whether half of the clients trade in half of the tested rounds, and this one (-1: anyone)
    idle, n = np.array(rows[0]["curves"]["market/isolated"]), rows[0]["given"]["data"]["clients"]
    moves = [np.diff([0, *d["curves"].get(f"utility/client/{client}", [])]) != 0 for d in rows]
    return (n - idle >= n / 2).mean() >= 0.5 and (client < 0 or any(m.mean() >= 0.5 for m in moves))
def number(line, metric, claim, at):
    tested = [r for r in line["tested"] if r <= (at or line["rounds"])]
    curve = [np.nan] * (len(line["tested"]) - len(line["curves"][metric])) + line["curves"][metric]
    curve = claim.get("factor", 100) * np.array(curve, float)[: len(tested)]
    if claim.get("best"):
        return np.nanmax(curve)
    if "window" in claim:
        return np.mean([v for r, v in zip(tested, curve) if r > tested[-1] - tested[-1] // 5])
    if "mean" in claim:
        return np.mean([v for r, v in zip(tested, curve) if claim["mean"][0] <= r <= claim["mean"][1]])
    if "rounds" in claim:
        return next((r for r, v in zip(tested, curve) if v >= claim["rounds"]), 2 * tested[-1] - tested[-2])
    return curve[-1]
def numbers(lines, metric, claim, at):
    if not claim.get("faster"):
        return [number(line, metric, claim, at) for line in lines]
    best = {"rounds": number(lines[1], metric, {"best": True}, at) - claim["faster"]}  # percent fewer (GTFLAT eq. 13)
    return [100 * (1 - number(lines[0], metric, best, at) / number(lines[1], metric, best, at)), 0.0]
def tails(mean, error, n, null):
    if not error and mean == null:
        return 1.0, 1.0
    x = (mean - null) / error if error else np.copysign(np.inf, mean - null)
    return [min(1.0, 2 * tail(x, n - 1)) for tail in (student.sf, student.cdf)]
def evidence(values, floor, claim):  # the p-values up, down and small of [seeds, settings, arms]
    sharing, each = claim["kind"] == "share", []
    looks = [0] + [n for n in ((10, 20) if sharing else (5, 10, 20)) if n <= len(values)]
    if (n := looks[-1]) == 0:
        return 1.0, 1.0, 1.0
    values = values[:n]
    for _ in range({"change": 1, "contrast": 2}.get(claim["kind"], 0)):
        values = (values[:, ::2] - values[:, 1::2]) / (2 if claim["kind"] == "contrast" else 1) ** 0.5
    values = -abs(values - np.median(values, axis=0)) if claim["kind"] == "spread" else values
    harmless, others = claim["kind"] == "harmless", values[..., 1:] if values.shape[2] > 1 else 0 * values
    ds = (values[..., :1] - others - claim.get("printed", 0)) * (-1 if "rounds" in claim or "lower" in claim else 1)
    for d in np.moveaxis(ds.reshape(n, 1, -1) if "each" in claim else ds, 2, 0):
        d = d + claim["margin"] if harmless else d
        mean, sd, share = d.mean(), d.mean(axis=1).std(ddof=1), (n - looks[-2]) / 20
        error = (2 * sd if floor is None else max(sd, floor)) / n**0.5
        up, down = tails(mean, error, n, 0)
        if sharing:  # in percent; every pattern of the signs of the seeds' sums
            one, two, k, chance = (d > 0).sum(), (d < 0).sum(), d.size + 2, np.ones(1)
            error = max(sd / n**0.5, 100 * (one + two + 1 - (one - two) ** 2 / k) ** 0.5 / k)
            for s in (sums := (d.sum(axis=1) / 100).round().astype(int)):
                chance = np.convolve(chance, np.bincount([0, 2 * abs(s)]) / 2)
            middle = np.abs(sums).sum() + sums.sum()
            up, down = min(1, 2 * chance[middle:].sum()), min(1, 2 * chance[: middle + 1].sum())
        above, below = (tails(mean, error, n, side * claim["margin"]) for side in (1, -1))
        up, down = (max(above[1], below[0]), min(above[0], below[1])) if claim["kind"] == "equal" else (up, down)
        small = 1.0 if harmless or claim["kind"] == "equal" else above[1]
        each.append([min(1.0, p / share) for p in (up, down, small)])
    ups, downs, smalls = zip(*each)
    return max(ups), *(min(1.0, len(each) * min(p)) for p in (downs, smalls))
def holm(p, w):  # weighted
    order = sorted(zip(p, w), key=lambda one: one[0] / one[1])
    steps = [(q / v, min(1.0, sum(x for _, x in order[k:]) * q / v)) for k, (q, v) in enumerate(order)]
    return [max(adjusted for ratio, adjusted in steps if ratio <= q / v) for q, v in zip(p, w)]
def pair(runs):  # of each arm the run of the first kind of machine that all have; whether there is one
    kinds = [[str([d.get("made", {}).get(k) for k in ("processor", "instructions")]) for d in arm] for arm in runs]
    at = next((k for k in kinds[0] if all(k in arm for arm in kinds)), None)
    return [arm[k.index(at)] if at in k else arm[0] for arm, k in zip(runs, kinds)], at is not None
def repeated(claim, claims, spec, lines):  # repeat less run, of all runs behind a table's claims, read as this one is
    arms = {arm for c in claims for arm in product(c["data"], c["metric"], c.get("at", [0]), c["arms"])}
    for data, metric, at, arm in sorted(arms):
        for seed in range(20):
            runs = [*found(lines.get(seed, []), spec["arm"][arm], spec["data"][data])]
            yield from (number(again, metric, claim, at) - number(runs[0], metric, claim, at) for again in runs[1:])
def readings(claim, claims, spec, lines):  # [seeds, settings, arms] while all are there; floor; is any there; testable?
    settings = [(spec["data"][d], m, at) for d in claim["data"] for m in claim["metric"] for at in claim.get("at", [0])]
    values, begun, whole, first, alike, alive = [], False, True, claim.get("first", 0), True, []
    for seed in range(first, first + 20):
        there = lines.get(seed, [])
        rows = [[[*found(there, spec["arm"][arm], data)] for arm in claim["arms"]] for data, *_ in settings]
        begun = begun or any(map(any, rows))
        if whole := whole and all(map(all, rows)):
            pairs = [pair(row) for row in rows]
            alike = alike and all(same for _, same in pairs)
            values.append([numbers(p, m, claim, at) for (p, _), (_, m, at) in zip(pairs, settings)])
            alive.append([lives(p, claim["market"]) for p, _ in pairs] if "market" in claim else [True])
    noise = [] if alike or claim.get("faster") else list(repeated(claim, claims, spec, lines))
    pooled = 1 if "each" in claim else len(settings)
    floor = 0.0 if alike else np.sqrt(np.mean(np.square(noise)) / pooled) if len(noise) > 2 else None
    return np.array(values, float), floor, begun, len(alive) < 5 or min(np.mean(alive, axis=0)) >= 0.8
def main():
    spec, words = tomllib.loads((HERE / "recompute.toml").read_text()), {}
    for paper, table in dict.fromkeys((c["paper"], c["table"]) for c in spec["claims"]):
        lines = kept(paper, HERE)
        claims = [c for c in spec["claims"] if (c["paper"], c["table"]) == (paper, table)]
        known = [readings(claim, claims, spec, lines) for claim in claims]
        w = [claim.get("weight", 1.0) for claim in claims]
        p = [evidence(values, floor, claim) for claim, (values, floor, *_) in zip(claims, known)]
        signs, smalls = holm([min(up, down) for up, down, _ in p], w), holm([small for *_, small in p], w)
        for claim, (up, down, _), sign, small, (*_, begun, testable) in zip(claims, p, signs, smalls, known):
            word = "no such effect" if small <= 0.05 else "open" if begun else "not run"
            word = ("confirmed" if up < down else "contradicted") if sign <= 0.05 else word
            word = "cannot be decided here" if word in ("open", "not run") and claim.get("cannot") else word
            words[f"{paper}: {claim['name']}"] = word if testable else "not testable at this scale"
    return words
if __name__ == "__main__":
    print(*(f"{word:15} {name}" for name, word in main().items()), sep="\n")
