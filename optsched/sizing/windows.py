"""Which windows of time prove most: candidates of all lengths, and their best weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from optsched._internal.arrays import BoolArray, FloatArray
    from optsched.sizing.demand import Demand

_FEW = 24  # requests up to which all windows between arrivals and due dates are tried
_MAX_LENGTHS = 9  # halvings of the whole time
_KEPT = 6  # windows of each length that are mixed
_ROUNDS = 60
_ENOUGH = 1e-3  # relative distance to the best mixture
SAFE = 1 - 2.0**-36


class Proof(NamedTuple):
    """Windows with weights, and how many workers their demand takes, rounded down."""

    value: float
    windows: tuple[tuple[float, float, float], ...]  # begin, end, weight


def best_proof(demand: Demand) -> Proof:
    """Return the best windows that are found for a demand."""
    if demand.allowed < 0 or not demand.asked.any():
        return Proof(0.0, ())
    found = _candidates(demand)
    rows = np.zeros((len(found), len(demand.asked)))
    for row, (begin, end) in zip(rows, found, strict=True):
        some, values = demand.within(begin, end)
        row[some] = values / (end - begin)
    mixed = _mixture(rows, demand.allowed)
    lengths = np.array([end - begin for begin, end in found])
    weights = mixed / lengths
    used: Any = np.flatnonzero(mixed > 1e-6)
    together = np.zeros(rows.shape[1])
    for at in used:
        some, values = demand.within(*found[at])
        together[some] += weights[at] * values
    value = _without(together, demand.allowed) / float(weights[used] @ lengths[used])
    windows = tuple((*found[at], float(weights[at])) for at in used.tolist())
    return Proof(float(value) * SAFE, windows)


def _without(values: FloatArray, count: int) -> float:
    """Return the sum of all but so many of the largest."""
    if not count:
        return float(values.sum())
    if count >= len(values):
        return 0.0
    return float(np.partition(values, len(values) - count)[: len(values) - count].sum())


def _candidates(demand: Demand) -> list[tuple[float, float]]:
    """Return windows with much demand for their length, of many lengths."""
    arrivals, due = demand.arrivals[demand.asked], demand.due[demand.asked]
    last = arrivals + due + 2 * demand.slack
    if len(arrivals) <= _FEW:
        begins = np.unique(np.append(arrivals, last - demand.own[demand.asked]))
        ends = np.unique(np.append(last, arrivals + demand.own[demand.asked]))
        return [(b, e) for b in begins.tolist() for e in ends.tolist() if e - b > demand.slack]
    first, end = float(arrivals[0]), float(last.max())
    share = demand.allowed / len(arrivals)
    kept = [(first, end)]
    length = end - first
    for _ in range(_MAX_LENGTHS):
        starts = np.arange(first, end - length / 2, length / 2).tolist()
        tried = [(begin, begin + length) for begin in starts]
        ranked = sorted(tried, key=lambda window: -_density(demand, window, share))
        kept += [_moved(demand, window, share) for window in ranked[:_KEPT]]
        if length < float(np.median(due)):
            break
        length /= 2
    return sorted(set(kept))


def _density(demand: Demand, window: tuple[float, float], share: float) -> float:
    """Return the demand in a window for its length, if a share of its requests is left out."""
    _, values = demand.within(*window)
    values = values[values > 0]
    return _without(values, int(share * len(values))) / (window[1] - window[0])


def _moved(demand: Demand, window: tuple[float, float], share: float) -> tuple[float, float]:
    """Move the ends of a window while that raises its density."""
    best, step = _density(demand, window, share), (window[1] - window[0]) / 4
    for _ in range(5):
        begin, end = window
        for tried in (
            (begin + step, end),
            (begin - step, end),
            (begin, end - step),
            (begin, end + step),
        ):
            if tried[1] - tried[0] > step and (found := _density(demand, tried, share)) > best:
                best, window = found, tried
        step /= 2
    return window


def _mixture(rows: FloatArray, allowed: int) -> FloatArray:
    """Return weights of the rows, 1 in all, whose sum without its largest entries is largest."""
    if not allowed or len(rows) == 1:
        weights = np.zeros(len(rows))
        weights[np.argmax([_without(row, allowed) for row in rows])] = 1.0
        return weights
    return np.asarray(game(rows[None], np.zeros((1, rows.shape[1]), np.bool_), allowed)[0])


def game(rows: FloatArray, late: BoolArray, allowed: int) -> FloatArray:
    """Return weights of rows, 1 in all, such that what others make of them is as much as possible.

    Others choose for each request the kind of worker with the least weighted entry, of those on
    which it is not late, shape (kinds, n), and leave out the largest. The rows have the shape
    (kinds, windows, n), the weights (kinds, windows). Cuts solve it: each round adds the best
    answer to the weights so far, and finds the best weights against all answers.
    """
    from scipy.optimize import linprog

    count, requests = rows.shape[0] * rows.shape[1], rows.shape[2]
    weights = best = np.full(rows.shape[:2], 1 / count)
    value, cuts = 0.0, []
    costs = np.append(np.zeros(count), -1.0)
    for _ in range(_ROUNDS):
        mixed = np.where(late, np.inf, (weights[:, None] @ rows)[:, 0])
        kinds = mixed.argmin(axis=0)
        kept = np.ones(requests, dtype=np.bool_)
        kept[np.argsort(mixed.min(axis=0))[max(0, requests - allowed) :]] = False
        own = (np.where(kept & (kinds == kind), 1.0, 0.0) for kind in range(len(rows)))
        cut = np.array([row @ chosen for row, chosen in zip(rows, own, strict=True)])
        if (found := float((weights * cut).sum())) > value:
            value, best = found, weights
        cuts.append(cut.ravel())
        table = np.column_stack([-np.array(cuts), np.ones(len(cuts))])
        solved = linprog(
            costs, table, np.zeros(len(cuts)), [[1.0] * count + [0.0]], [1.0], method="highs"
        )
        if solved.x is None or solved.x[-1] <= value * (1 + _ENOUGH):
            break
        weights = np.maximum(0.0, solved.x[:count]).reshape(rows.shape[:2])
    return np.asarray(best / best.sum())
