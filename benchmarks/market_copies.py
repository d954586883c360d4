"""What copies with a little noise gain at posted prices, and what a cap by evidence takes from them and from others.

    python benchmarks/market_copies.py [MARKETS [DRAWS]]    # default 20, 6; with 0 draws only what has no cap
    python benchmarks/market_copies.py curve                # by how much evidence is feigned, at z = 0

Copies of one's own samples with noise pass every count, so a member of n samples can prove any x n. Evidence of what
its model does for others says n e^e instead, with an error e of standard deviation sigma, and the size that counts is
min(proved, evidence e^(z sigma)). A liar proves as much as it likes; one that feigns evidence besides has it 22 %
higher, the most that passed the flags of a study of audit models. Random markets of 10 clients ("paper" of
market_lies.py), utilities net of distance, means over draws of the errors. Prints Markdown: for how many clients the
lie pays more than 1 %, and what it brings in per cent of utility, on average over all clients; and the welfare that
the cap leaves of that at true sizes.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hanse.games.market import Market
from hanse.lab.attack import LEAST
from hanse.lab.attack_markets import CLIENTS, Rule, random_market

FEIGNED = 1.22
TIMES = (1.0, 1.1, 1.22, 1.5, 2.0, 3.0)
Floats = NDArray[np.float64]


def utilities(market: Market, sizes: Floats) -> Floats:
    """Return everybody's true utility ``[m]`` where sizes count as these."""
    return Rule("posted").worth(replace(market, sizes=sizes), market)


def alone(market: Market, honest: Floats, lied: Floats) -> Floats:
    """Return the utility ``[m]`` that each client has if it alone lies."""
    found = np.zeros(CLIENTS)
    for who in range(CLIENTS):
        sizes = honest.copy()
        sizes[who] = lied[who]
        found[who] = utilities(market, sizes)[who]
    return found


def line(name: str, before: Floats, after: Floats, welfare: float) -> str:
    """Return a row of the table; ``before`` and ``after [markets, m]`` are utilities when honest and with the lie."""
    gain = after - before
    pays = 100 * float((gain > LEAST * np.abs(before)).mean())
    return f"| {name} | {pays:.0f} % | {100 * gain.sum() / before.sum():+.1f} % | {100 * welfare:.1f} % |"


def curve(markets: int = 20, draws: int = 6) -> None:
    """Print what evidence brings that is feigned to be so many times as large, where any claim passes its audit."""
    rng = np.random.default_rng(43)
    made = [random_market("paper", rng) for _ in range(markets)]
    print("\n| sigma | " + " | ".join(f"{times:g}" for times in TIMES) + " |")
    print("|---" * (1 + len(TIMES)) + "|")
    for sigma in (0.1, 0.2, 0.3, 0.5):
        plain, lied = np.zeros((markets, CLIENTS)), np.zeros((len(TIMES), markets, CLIENTS))
        for k, market in enumerate(made):
            for _ in range(draws):
                seen = market.sizes * np.exp(rng.normal(0, sigma, CLIENTS))
                honest = np.minimum(market.sizes, seen)
                plain[k] += utilities(market, honest)
                for row, times in zip(lied, TIMES, strict=True):
                    row[k] += alone(market, honest, times * seen)
        gained = [100 * float((row - plain).sum() / plain.sum()) for row in lied]
        print(f"| {sigma:g} | " + " | ".join(f"{one:+.1f} %" for one in gained) + " |", flush=True)


def main(markets: int, draws: int) -> None:
    """Print the table."""
    rng = np.random.default_rng(43)
    made = [random_market("paper", rng) for _ in range(markets)]
    true = np.array([utilities(m, m.sizes) for m in made])
    print("\n| sizes | the lie pays for | it brings | welfare |")
    print("|---|---|---|---|")
    for x in (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0):  # the frontier without a cap
        lied = np.array([alone(m, m.sizes, x * m.sizes) for m in made])
        print(line(f"proved alone, {x:g} times", true, lied, 1.0), flush=True)
    for sigma in (0.1, 0.2, 0.3) if draws else ():
        for z in (0.0, 1.0, 1.64):
            sums = np.zeros((3, markets, CLIENTS))
            for k, market in enumerate(made):
                for _ in range(draws):
                    capped = market.sizes * np.exp(rng.normal(0, sigma, CLIENTS) + z * sigma)
                    honest = np.minimum(market.sizes, capped)
                    sums[0, k] += utilities(market, honest)
                    sums[1, k] += alone(market, honest, capped)
                    sums[2, k] += alone(market, honest, FEIGNED * capped)
            plain, copies, feigned = sums / draws
            kept = plain.sum() / true.sum()
            print(line(f"sigma {sigma:g}, z {z:g}, copies", plain, copies, kept))
            print(line(f"sigma {sigma:g}, z {z:g}, and feigned evidence", plain, feigned, kept), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["curve"]:
        curve()
    else:
        given = [int(word) for word in sys.argv[1:3]]
        main(*given, *(20, 6)[len(given) :])
