"""Label-skewed partitions by Dirichlet draws: a mix of classes per client, or a mix of clients per class."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream, torch_seed
from hanse.data.sizes import SizeLaw, check_count, check_room, client_sizes, power_weights

__all__ = ["Sampler", "dirichlet", "label_mixes", "log_dirichlet", "niid", "scaled_dirichlet", "spread_classes"]

Sampler = Literal["log", "float32-clamped"]

_NIID_DRAWS = 500
_SCALED_DRAWS = 100


def log_dirichlet(alpha: float, shape: tuple[int, int], draw: np.random.Generator) -> NDArray[np.float64]:
    """Return the logarithms of ``shape[0]`` draws of a symmetric Dirichlet(alpha), each of ``shape[1]``
    parts.

    Works in log space, so that it stays exact where the parts themselves underflow (alpha = 1e-4 and far
    below): a Gamma(a) variate is Gamma(a + 1) U^(1/a) (Marsaglia and Tsang 2000, section 6), and -log U is
    exponential.
    """
    gamma = np.log(draw.standard_gamma(alpha + 1.0, size=shape))
    wait = draw.standard_exponential(size=shape)
    # only differences count: with the row's smallest wait taken off, one part stays finite for every alpha
    with np.errstate(over="ignore"):
        logs = gamma - (wait - wait.min(axis=1, keepdims=True)) / alpha
    return _log_normalise(logs)


def label_mixes(
    clients: int, classes: int, alpha: float, *, seed: int, sampler: Sampler = "log", attempt: int = -1
) -> NDArray[np.float64]:
    """Return the log of each client's label mix ~ Dirichlet(alpha), ``[clients, classes]``.

    ``sampler="float32-clamped"`` is what ``torch.distributions.Dirichlet`` draws in float32, and so what
    GreedyFed's published code uses: for alpha = 1e-4 the gamma variates underflow and are clamped, so that
    about half of the clients get an exactly uniform mix instead of a single class. ``attempt`` numbers redraws.
    """
    alpha = _check_alpha(alpha)
    check_count("clients", clients)
    check_count("num_classes", classes)
    if sampler == "log":
        return log_dirichlet(alpha, (clients, classes), stream(seed, "partition", round=attempt, start=1))
    if sampler != "float32-clamped":
        raise UserError(f"sampler = {sampler!r}; allowed: 'log', 'float32-clamped'")
    # the distribution draws from torch's global generator: keyed here, and put back afterwards
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, "partition", round=attempt, start=1))
        mixes = torch.distributions.Dirichlet(torch.full((classes,), alpha)).sample((clients,))
    return _log_normalise(np.log(mixes.numpy().astype(np.float64)))


def dirichlet(
    labels: NDArray[np.int64],
    clients: int,
    *,
    alpha: float,
    seed: int = 0,
    sizes: SizeLaw = "power",
    min_samples: int = 10,
    sampler: Sampler = "log",
    total: int | None = None,
    num_classes: int | None = None,
) -> list[NDArray[np.int64]]:
    """Give every client a label mix ~ Dirichlet(alpha) and a size, then its samples; no sample twice.

    The partition of GreedyFed: sizes follow :func:`hanse.data.sizes.client_sizes` and use all samples, or
    ``total`` of them. Clients are served in a random order, each by a multinomial draw from its mix. When a
    class runs out, what a client still needs is drawn from the classes left, in the proportions its mix gives
    them (Hsu et al. 2019 do so sample by sample). Sizes are met exactly, mixes as far as the samples last: if
    all samples are used, the clients served last take what is left, whatever their mix; ``total`` below the
    number of samples avoids that.

    Returns the sorted sample indices of each client. Raises UserError for a request that cannot be met.
    """
    classes = _num_classes(labels, num_classes)
    mixes = label_mixes(clients, classes, alpha, seed=seed, sampler=sampler)
    wanted = client_sizes(len(labels), clients, seed=seed, law=sizes, min_samples=min_samples, total=total)
    draw = stream(seed, "partition", start=2)
    stock = [draw.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    held = np.array([len(s) for s in stock], dtype=np.int64)
    left = held.copy()
    spans: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)] * clients
    for client in draw.permutation(clients):
        counts = _serve(mixes[client], int(wanted[client]), left, draw)
        first = held - left
        parts = [stock[c][first[c] : first[c] + counts[c]] for c in np.flatnonzero(counts)]
        spans[client] = np.sort(np.concatenate(parts))
        left -= counts
    return spans


def scaled_dirichlet(
    labels: NDArray[np.int64],
    clients: int,
    *,
    alpha: float,
    seed: int = 0,
    sizes: SizeLaw = "power",
    min_samples: int = 10,
    sampler: Sampler = "log",
    total: int | None = None,
    num_classes: int | None = None,
) -> list[NDArray[np.int64]]:
    """Give every client a label mix ~ Dirichlet(alpha) and a proportional size, and never bend either.

    As GreedyFed's published code: as many samples are used as the class that runs out first allows (at most ``total``),
    the rest by nobody, and counts are rounded down. Mixes are redrawn, at most 100 times, until every client has
    ``min_samples`` (the published code asks for more than 100, and keeps the last draw if none of 101 gave that; here
    it is refused). Returns the sorted sample indices of each client. Raises UserError for what cannot be met.
    """
    classes = _num_classes(labels, num_classes)
    check_room(len(labels), clients, min_samples)
    weights = power_weights(clients, seed) if sizes == "power" else np.ones(clients)
    weights = weights / weights.sum()
    stock = np.bincount(labels, minlength=classes)
    best = 0
    for attempt in range(-1, _SCALED_DRAWS):
        mixes = np.exp(label_mixes(clients, classes, alpha, seed=seed, sampler=sampler, attempt=attempt))
        asked = weights @ mixes
        used = float(np.divide(stock, asked, out=np.full(classes, np.inf), where=asked > 0).min())
        used = min(used, len(labels), used if total is None else total)
        counts = np.floor(mixes * np.floor(used * weights)[:, None]).astype(np.int64)
        # mixes of one class may sum to a hair more than the stock
        fits = (counts.sum(axis=0) <= stock).all()
        smallest = int(counts.sum(axis=1).min())
        best = max(best, smallest)
        if fits and smallest >= min_samples:
            break
    else:
        raise UserError(
            f"partition = 'dirichlet' without all samples: in {_SCALED_DRAWS + 1} draws with alpha = {alpha:g} the "
            f"smallest of {clients} clients had {best} samples at best; min_samples = {min_samples} is not met: lower "
            "it, or clients, or raise alpha"
        )
    draw = stream(seed, "partition", start=11)
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for c in range(classes):
        order = draw.permutation(np.flatnonzero(labels == c))
        for client, part in enumerate(np.split(order, np.cumsum(counts[:, c]))[:-1]):
            parts[client].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]


def _serve(
    log_mix: NDArray[np.float64], size: int, left: NDArray[np.int64], draw: np.random.Generator
) -> NDArray[np.int64]:
    """Return how many of each class a client gets: ``size`` in all, at most ``left`` of each."""
    counts = np.zeros_like(left)
    while (need := size - int(counts.sum())) > 0:
        logs = np.where(left > counts, log_mix, -np.inf)
        if np.isneginf(logs).all():  # its mix says nothing about the classes left
            logs = np.where(left > counts, 0.0, -np.inf)
        mix = np.exp(_log_normalise(logs[None, :])[0])
        counts += np.minimum(draw.multinomial(need, mix / mix.sum()), left - counts)
    return counts


def niid(
    labels: NDArray[np.int64],
    clients: int,
    *,
    alpha: float,
    seed: int = 0,
    min_samples: int = 10,
    num_classes: int | None = None,
) -> list[NDArray[np.int64]]:
    """Spread each class over the clients in shares ~ Dirichlet(alpha); every sample goes to one client.

    Li et al. 2022 ("Federated learning on non-IID data silos"), as their code does it: a client that already
    holds ``n / clients`` samples gets nothing of the classes that follow. The whole draw is repeated until
    every client has ``min_samples``.

    Returns the sorted sample indices of each client. Raises UserError for a request that cannot be met, or
    that 500 draws did not meet.
    """
    alpha = _check_alpha(alpha)
    classes = _num_classes(labels, num_classes)
    check_room(len(labels), clients, min_samples)
    parts, best = spread_classes(labels, classes, clients, alpha, min_samples, stream(seed, "partition", start=3))
    if parts is None:
        raise UserError(
            f"partition = 'niid': in {_NIID_DRAWS} draws with alpha = {alpha:g} over {clients} clients the "
            "smallest client had "
            f"{best} samples at best; min_samples = {min_samples} is not met: raise alpha, or lower clients or "
            "min_samples"
        )
    return parts


def spread_classes(
    labels: NDArray[np.int64], classes: int, receivers: int, alpha: float, min_samples: int, draw: np.random.Generator
) -> tuple[list[NDArray[np.int64]] | None, int]:
    """Spread every class over the receivers in shares ~ Dirichlet(alpha), redrawn until each has ``min_samples``.

    Returns the sorted positions of each receiver (None if 500 draws were not enough), and the largest of the smallest
    receivers of all draws.
    """
    by_class = [np.flatnonzero(labels == c) for c in range(classes)]
    best = -1
    for _ in range(_NIID_DRAWS):
        counts = _spread([len(s) for s in by_class], receivers, alpha, draw)
        smallest = int(counts.sum(axis=0).min())
        best = max(best, smallest)
        if smallest >= min_samples:
            parts = [
                np.split(draw.permutation(s), np.cumsum(row)[:-1]) for s, row in zip(by_class, counts, strict=True)
            ]
            return [np.sort(np.concatenate([p[k] for p in parts])) for k in range(receivers)], best
    return None, best


def _spread(stock: list[int], clients: int, alpha: float, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return one draw of how many of each class each client gets, ``[classes, clients]``."""
    counts = np.zeros((len(stock), clients), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    limit = sum(stock) / clients
    for c, size in enumerate(stock):
        logs = log_dirichlet(alpha, (1, clients), draw)
        if size == 0:  # and everybody may be full
            continue
        open_ = held < limit
        allowed = np.where(open_, logs, -np.inf)
        if np.isneginf(allowed).all():
            allowed = np.where(open_[None, :], 0.0, -np.inf)
        shares = np.exp(_log_normalise(allowed)[0])
        ends = np.cumsum(shares)
        # ends / ends[-1] is exactly 1 from the last open client on: nobody else gets a remainder
        counts[c] = np.diff(np.floor(ends / ends[-1] * size).astype(np.int64), prepend=0)
        held += counts[c]
    return counts


def _log_normalise(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows of log weights with a constant taken off, so that their exponentials sum to 1."""
    top = logs.max(axis=1, keepdims=True)
    return np.asarray(logs - top - np.log(np.exp(logs - top).sum(axis=1, keepdims=True)))


def _check_alpha(alpha: float) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < float("inf"):
        raise UserError(f"alpha = {alpha!r}; allowed: a finite number above 0")
    return float(alpha)


def _num_classes(labels: NDArray[np.int64], num_classes: int | None) -> int:
    if labels.dtype.kind not in "ui" or labels.ndim != 1:
        raise UserError(
            f"labels are {labels.dtype} of shape {labels.shape}; a partition by label needs integer classes (n,)"
        )
    found = int(labels.max()) + 1 if len(labels) else 1
    if len(labels) and (labels.min() < 0 or (num_classes is not None and found > num_classes)):
        raise UserError(f"labels span {labels.min()}..{labels.max()}; allowed: 0..{(num_classes or found) - 1}")
    return num_classes if num_classes is not None else found
