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
def kept(paper, folder):  # the finished lines of each seed of the data
    lines = {}
    for line in gzip.decompress((folder / "results" / paper / "kept.jsonl.gz").read_bytes()).splitlines():
        if (d := json.loads(line))["status"] == "done":
            lines.setdefault(d["given"]["data"].get("seed"), []).append(d)
    return lines
def found(lines, arm, data):  # the run that counts, then its repeats
    s = [d for d in lines if all(d["given"].get(k) == arm.get(k) for k in ("mechanism", "clients", "behaviour"))]
    return [d for d in s if all((d["given"] | d["given"]["data"]).get(p, {}).get(k, "absent") == v for p, k, v in data)]
def number(line, metric, claim, at):
    tested = [r for r in line["tested"] if r <= (at or line["rounds"])]
    curve = [np.nan] * (len(line["tested"]) - len(line["curves"][metric])) + line["curves"][metric]
    curve = 100 * np.array(curve, float)[: len(tested)]
    if "window" in claim:
        return np.mean([v for r, v in zip(tested, curve) if r > tested[-1] - tested[-1] // 5])
    if "mean" in claim:
        return np.mean([v for r, v in zip(tested, curve) if claim["mean"][0] <= r <= claim["mean"][1]])
    if "rounds" in claim:
        return next((r for r, v in zip(tested, curve) if v >= claim["rounds"]), 2 * tested[-1] - tested[-2])
    return curve[-1]
def tails(mean, error, n, null):
    x = (mean - null) / error if error else np.sign(mean - null) * np.inf
    return (1.0, 1.0) if np.isnan(x) else [min(1.0, 2 * tail(x, n - 1)) for tail in (student.sf, student.cdf)]
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
    for d in np.moveaxis((values[..., :1] - others) * (-1 if "rounds" in claim else 1), 2, 0):
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
        small = 1.0 if harmless else tails(mean, error, n, claim["margin"])[1]
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
            runs = found(lines.get(seed, []), spec["arm"][arm], spec["data"][data])
            yield from (number(again, metric, claim, at) - number(runs[0], metric, claim, at) for again in runs[1:])
def readings(claim, claims, spec, lines):  # [seeds, settings, arms] while every run is there; the floor; whether any is
    settings = [(spec["data"][d], m, at) for d in claim["data"] for m in claim["metric"] for at in claim.get("at", [0])]
    values, begun, whole, first, alike = [], False, True, claim.get("first", 0), True
    for seed in range(first, first + 20):
        rows = [[found(lines.get(seed, []), spec["arm"][arm], data) for arm in claim["arms"]] for data, *_ in settings]
        begun = begun or any(map(any, rows))
        if whole := whole and all(map(all, rows)):
            pairs = [pair(row) for row in rows]
            alike = alike and all(same for _, same in pairs)
            values.append([[number(line, m, claim, at) for line in p] for (p, _), (_, m, at) in zip(pairs, settings)])
    noise = [] if alike else list(repeated(claim, claims, spec, lines))
    floor = 0.0 if alike else np.sqrt(np.mean(np.square(noise)) / len(settings)) if len(noise) > 2 else None
    return np.array(values, float), floor, begun
def main():
    spec, words = tomllib.loads((HERE / "recompute.toml").read_text()), {}
    for paper, table in dict.fromkeys((c["paper"], c["table"]) for c in spec["claims"]):
        lines = kept(paper, HERE)
        claims = [c for c in spec["claims"] if (c["paper"], c["table"]) == (paper, table)]
        known = [readings(claim, claims, spec, lines) for claim in claims]
        w = [claim.get("weight", 1.0) for claim in claims]
        p = [evidence(values, floor, claim) for claim, (values, floor, _) in zip(claims, known)]
        signs, smalls = holm([min(up, down) for up, down, _ in p], w), holm([small for *_, small in p], w)
        for claim, (up, down, _), sign, small, (*_, begun) in zip(claims, p, signs, smalls, known):
            word = "no such effect" if small <= 0.05 else "open" if begun else "not run"
            word = ("confirmed" if up < down else "contradicted") if sign <= 0.05 else word
            word = "cannot be decided here" if word in ("open", "not run") and claim.get("cannot") else word
            words[f"{paper}: {claim['name']}"] = word
    return words
if __name__ == "__main__":
    print(*(f"{word:15} {name}" for name, word in main().items()), sep="\n")
