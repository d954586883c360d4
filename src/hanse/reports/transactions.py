"""Draws who paid whom as a graph: clients on a circle, arrows as wide as the money, colours by role."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from hanse.reports.chart import COLOURS, MARKERS
from hanse.reports.draw_matplotlib import DPI, WIDTH
from hanse.reports.market import Trades

__all__ = ["draw_transactions"]

ROLES = ("seller", "buyer", "trader", "attacker", "client")
LEAST_SHARE = 0.01  # of the largest payment: thinner arrows are left out


def draw_transactions(trades: Trades, title: str) -> Figure:
    """Return the transaction graph of a run: an arrow goes from the buyer to the seller; beside each client stands its
    net payment, in tokens.
    """
    m = len(trades.clients)
    angle = np.pi / 2 - 2 * np.pi * np.arange(m) / max(1, m)
    at = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    figure = Figure(figsize=(WIDTH, WIDTH), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    most = float(trades.money.max(initial=0.0))
    net = trades.money.sum(axis=0) - trades.money.sum(axis=1)
    for i, j in np.argwhere(trades.money > LEAST_SHARE * most):
        share = trades.money[i, j] / most
        axes.add_patch(
            FancyArrowPatch(
                tuple(at[i]),
                tuple(at[j]),
                connectionstyle="arc3,rad=0.12",
                arrowstyle="-|>",
                mutation_scale=8 + 10 * share,
                lw=0.5 + 3.5 * share,
                color=_colour(trades.roles[i]),
                alpha=0.35 + 0.5 * share,
                shrinkA=16,
                shrinkB=16,
            )
        )
    for i in range(m):
        marker = MARKERS[_place(trades.roles[i]) % len(MARKERS)][1]
        axes.plot(*at[i], marker, ms=22, color=_colour(trades.roles[i]), mec="white", zorder=3)
        axes.text(
            at[i, 0], at[i, 1], str(trades.clients[i]), ha="center", va="center", color="white", fontsize=9, zorder=4
        )
        axes.text(1.22 * at[i, 0], 1.22 * at[i, 1], f"{net[i]:+.2f}", ha="center", va="center", fontsize=9)
    used = [role for role in ROLES if role in {r if r in ROLES else "client" for r in trades.roles}]
    handles = [
        Line2D([], [], ls="", marker=MARKERS[_place(r) % len(MARKERS)][1], color=_colour(r), ms=9, label=r)
        for r in used
    ]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, -0.04), ncols=len(used), frameon=False)
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.45, 1.35), aspect="equal")
    axes.axis("off")
    figure.suptitle(title, x=0.012, ha="left", fontsize=11, fontweight="bold")
    return figure


def _place(role: str) -> int:
    return ROLES.index(role) if role in ROLES else len(ROLES) - 1


def _colour(role: str) -> str:
    return COLOURS[_place(role) % len(COLOURS)]
