"""The words of the claims in recompute.toml, recomputed from the kept lines without hanse; run it without options."""

# fmt: off
# ruff: noqa: B905 (zip without strict: in 80 lines a line counts)
import gzip
import json
import tomllib
from pathlib import Path

import numpy as np
from scipy.stats import t as student

HERE = Path(__file__).parent
def found(lines, arm, data):  # the run that counts, then its repeats
    s = [d for d in lines if all(d["given"].get(k) == arm.get(k) for k in ("mechanism", "clients", "behaviour"))]
    return [d for d in s if all((d["given"] | d["given"]["data"]).get(p, {}).get(k, "absent") == v for p, k, v in data)]
def number(line, metric, claim, at):
    tested = [r for r in line["tested"] if r <= (at or line["rounds"])]
    curve = [np.nan] * (len(line["tested"]) - len(line["curves"][metric])) + line["curves"][metric]
    curve = 100 * np.array(curve, float)[: len(tested)]
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
    values = values[:n, ::2] - values[:n, 1::2] if claim["kind"] == "change" else values[:n]
    others = values[..., 1:] if values.shape[2] > 1 else 0 * values
    for d in np.moveaxis((values[..., :1] - others) * (-1 if "rounds" in claim else 1), 2, 0):
        mean, sd, share = d.mean(), d.mean(axis=1).std(ddof=1), (n - looks[-2]) / 20
        error = (sd + (sd if floor is None else floor)) / n**0.5
        up, down = tails(mean, error, n, 0)
        if sharing:  # in percent; every pattern of the signs of the seeds' sums
            one, two, k, chance = (d > 0).sum(), (d < 0).sum(), d.size + 2, np.ones(1)
            error = max(sd / n**0.5, 100 * (one + two + 1 - (one - two) ** 2 / k) ** 0.5 / k)
            for s in (sums := (d.sum(axis=1) / 100).round().astype(int)):
                chance = np.convolve(chance, np.bincount([0, 2 * abs(s)]) / 2)
            middle = np.abs(sums).sum() + sums.sum()
            up, down = min(1, 2 * chance[middle:].sum()), min(1, 2 * chance[: middle + 1].sum())
        each.append([min(1.0, p / share) for p in (up, down, tails(mean, error, n, claim["margin"])[1])])
    ups, downs, smalls = zip(*each)
    return max(ups), *(min(1.0, len(each) * min(p)) for p in (downs, smalls))
def holm(p):
    return [max(min(1.0, (len(p) - k) * q) for k, q in enumerate(sorted(p)) if q <= mine) for mine in p]
def readings(claim, spec, lines):  # [seeds, settings, arms] while every run is there; the noise floor; whether any is
    settings = [(spec["data"][d], m, at) for d in claim["data"] for m in claim["metric"] for at in claim.get("at", [0])]
    values, off, begun, whole = [], [[] for _ in claim["arms"]], False, True
    for seed in range(20):
        here = [d for d in lines if d["given"]["data"].get("seed") == seed]
        rows = [[[number(line, m, claim, at) for line in found(here, spec["arm"][arm], data)]
                 for arm in claim["arms"]] for data, m, at in settings]
        for place, (first, *again) in ((k, run) for row in rows for k, run in enumerate(row) if run):
            begun, off[place] = True, off[place] + [value - first for value in again]
        if whole := whole and all(map(all, rows)):
            values.append([[run[0] for run in row] for row in rows])
    floor = max((np.mean(np.square(o)) / len(settings)) ** 0.5 for o in off) if min(map(len, off)) >= 3 else None
    return np.array(values, float), floor, begun
def main():
    spec, words = tomllib.loads((HERE / "recompute.toml").read_text()), {}
    for paper, table in dict.fromkeys((c["paper"], c["table"]) for c in spec["claims"]):
        text = gzip.decompress((HERE / "results" / paper / "kept.jsonl.gz").read_bytes()).decode()
        lines = [d for d in map(json.loads, text.splitlines()) if d["status"] == "done"]
        claims = [c for c in spec["claims"] if (c["paper"], c["table"]) == (paper, table)]
        known = [readings(claim, spec, lines) for claim in claims]
        p = [evidence(values, floor, claim) for claim, (values, floor, _) in zip(claims, known)]
        signs, smalls = holm([min(up, down) for up, down, _ in p]), holm([small for *_, small in p])
        for claim, (up, down, _), sign, small, (*_, begun) in zip(claims, p, signs, smalls, known):
            word = "no such effect" if small <= 0.05 else "open" if begun else "not run"
            word = ("confirmed" if up < down else "contradicted") if sign <= 0.05 else word
            words[f"{paper}: {claim['name']}"] = word
    return words
if __name__ == "__main__":
    print(*(f"{word:15} {name}" for name, word in main().items()), sep="\n")
