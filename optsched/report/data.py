"""What the plots show, computed apart from drawing, and numbers that stay claims when rounded.

A step t is the time from t - 1 to t: tokens held at step t are drawn over that interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.comparison.steps import Comparison
    from optsched.instance import Instance
    from optsched.optimum.gap import GapExplanation
    from optsched.schedule import Schedule

MOST_STACKED = 60  # of more requests the bars are drawn side by side


def tokens_held(schedule: Schedule, steps: Sequence[int] | IntArray) -> IntArray:
    """Give the tokens held at some steps, without going through all of them.

    Parameters
    ----------
    schedule
        Starts of the requests.
    steps
        Steps to look at, shape (k,).

    Returns
    -------
    IntArray
        Tokens at each of the steps, shape (k,).

    Examples
    --------
    >>> from optsched import Instance, Schedule
    >>> tokens_held(Schedule(Instance([3, 1], [2, 2], memory=9), [0, 1]), [1, 2, 3])
    array([4, 7, 3])
    """
    at = np.asarray(steps, dtype=np.int64)
    # An active request holds offset + t tokens at step t: sum over started less over completed.
    offsets = schedule.instance.prompts - schedule.starts
    held = np.zeros(len(at), dtype=np.int64)
    for sign, events in ((1, schedule.starts), (-1, schedule.completions)):
        order = np.argsort(events, kind="stable")
        before = np.searchsorted(events[order], at)
        sums = np.concatenate([[0], np.cumsum(offsets[order])])
        held += sign * (sums[before] + before * at)
    return held


def memory_curve(schedule: Schedule, bins: int = 2000) -> tuple[IntArray, IntArray]:
    """Give the most tokens held within each of a few bins of steps, so that no peak is lost.

    Parameters
    ----------
    schedule
        Starts of the requests.
    bins
        How many bins at most; with fewer steps than that each step is a bin.

    Returns
    -------
    tuple of IntArray
        Edges of the bins from the first start to the makespan, shape (k + 1,), and the largest
        number of tokens held at the steps after one edge up to the next, shape (k,).

    Examples
    --------
    >>> from optsched import Instance, Schedule
    >>> schedule = Schedule(Instance([3, 1], [2, 2], memory=9), [0, 1])
    >>> memory_curve(schedule)
    (array([0, 1, 2, 3]), array([4, 7, 3]))
    >>> memory_curve(schedule, bins=1)
    (array([0, 3]), array([7]))
    """
    first, span = int(schedule.starts.min()), schedule.makespan - int(schedule.starts.min())
    bins = min(bins, span)
    edges = first + np.arange(bins + 1) * span // bins
    # Usage falls only after a completion, so that within a bin it is largest at one or at the end.
    peaks = tokens_held(schedule, edges[1:])
    inside = np.searchsorted(edges, schedule.completions) - 1
    np.maximum.at(peaks, inside, tokens_held(schedule, schedule.completions))
    return edges, peaks


def latency_cdf(schedule: Schedule, points: int = 500) -> tuple[IntArray, FloatArray]:
    """Give the share of requests that complete within some number of steps after arrival.

    Parameters
    ----------
    schedule
        Starts of the requests.
    points
        How many latencies at most, at even distances in rank; the least and the largest stay.

    Returns
    -------
    tuple of arrays
        Latencies, ascending, and the share of requests with at most each of them, shape (k,).

    Examples
    --------
    >>> from optsched import Instance, Schedule
    >>> latency_cdf(Schedule(Instance([1, 1, 1, 1], [2, 2, 3, 3], memory=9), [0, 0, 2, 3]))
    (array([2, 5, 6]), array([0.5 , 0.75, 1.  ]))
    """
    latencies, counts = np.unique(schedule.latencies, return_counts=True)
    shares = np.cumsum(counts) / counts.sum()
    if len(latencies) > points:
        kept = np.searchsorted(shares, np.linspace(shares[0], 1, points))
        kept = np.unique(np.minimum(kept, len(shares) - 1))
        latencies, shares = latencies[kept], shares[kept]
    return latencies, shares


def sample_by_start(schedule: Schedule, count: int) -> tuple[IntArray, IntArray]:
    """Choose requests at even distances in the order of their starts.

    Parameters
    ----------
    schedule
        Starts of the requests.
    count
        How many requests at most.

    Returns
    -------
    tuple of IntArray
        The requests and their ranks in the order of start, both shape (k,).

    Examples
    --------
    >>> from optsched import Instance, Schedule
    >>> sample_by_start(Schedule(Instance([1, 1, 1], [2, 2, 2], memory=9), [4, 0, 2]), 2)
    (array([1, 0]), array([0, 2]))
    """
    requests = len(schedule.starts)
    ranks = np.unique(np.linspace(0, requests - 1, min(count, requests)).round().astype(np.int64))
    return np.argsort(schedule.starts, kind="stable")[ranks], ranks


@dataclass(frozen=True)
class Bands:
    """Requests stacked up to the tokens held, in the order of their starts.

    Between two events (starts or completions) every height is linear; `steps` has each such piece's
    begin and end, so that an event appears twice: as the end of a piece and the begin of the next.

    Attributes
    ----------
    requests
        The requests from the bottom to the top, shape (n,).
    steps
        Begins and ends of the pieces in turn, shape (2k,).
    active
        Whether a request holds tokens during a piece, shape (n, 2k).
    prompts, outputs
        Prompt and output tokens that a request holds at `steps`, shape (n, 2k).
    """

    requests: IntArray
    steps: IntArray
    active: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    prompts: IntArray
    outputs: IntArray


def stacked_bands(schedule: Schedule) -> Bands:
    """Stack the requests of a small instance so that they make up the tokens held.

    Parameters
    ----------
    schedule
        Starts of the requests.

    Returns
    -------
    Bands
        Heights of every request over time; the space is quadratic in the number of requests.

    Examples
    --------
    >>> from optsched import Instance, Schedule
    >>> bands = stacked_bands(Schedule(Instance([3, 1], [2, 2], memory=9), [0, 1]))
    >>> bands.steps, bands.outputs[0]
    (array([0, 1, 1, 2, 2, 3]), array([0, 1, 1, 2, 0, 0]))
    >>> (bands.prompts + bands.outputs).sum(axis=0)[1::2]  # what is held at steps 1, 2 and 3
    array([4, 7, 3])
    """
    requests = np.argsort(schedule.starts, kind="stable")
    starts, completions = schedule.starts[requests, None], schedule.completions[requests, None]
    events = np.unique([starts, completions])
    steps = np.repeat(events, 2)[1:-1]
    begins = np.repeat(events[:-1], 2)
    active = (starts <= begins) & (begins < completions)
    return Bands(
        requests,
        steps,
        active,
        np.where(active, schedule.instance.prompts[requests, None], 0),
        np.where(active, steps - starts, 0),
    )


@dataclass(frozen=True)
class Bars:
    """Requests as bars that grow while they make tokens, ready to be drawn.

    Attributes
    ----------
    stacked
        Whether the bars stand on each other and make up the tokens held; if not, each has a row at
        its rank in the order of starts, counted downwards, and heights are to scale but no tokens.
    requests
        The requests drawn, shape (n,).
    prompts, outputs
        For each request the corners of the part that is prompt and of the part that is output.
    waits
        For each request the line from arrival to start; none if stacked.
    ends
        The upper right corner of each bar, shape (n, 2).
    """

    stacked: bool
    requests: IntArray
    prompts: list[FloatArray]
    outputs: list[FloatArray]
    waits: list[FloatArray]
    ends: FloatArray


def growing_bars(schedule: Schedule, rows: int = 40) -> Bars:
    """Turn requests into bars: stacked if there are at most 60, else a sample of them in rows.

    Parameters
    ----------
    schedule
        Starts of the requests.
    rows
        How many requests to sample.

    Returns
    -------
    Bars
        Corners with the step first.

    Examples
    --------
    >>> from optsched import Instance, Schedule
    >>> bars = growing_bars(Schedule(Instance([3], [2], memory=9), [0]))
    >>> bars.stacked, bars.outputs[0].tolist()
    (True, [[0.0, 3.0], [2.0, 3.0], [2.0, 5.0], [0.0, 3.0]])
    """
    return _stacked(schedule) if len(schedule.starts) <= MOST_STACKED else _in_rows(schedule, rows)


def _stacked(schedule: Schedule) -> Bars:
    bands = stacked_bands(schedule)
    tops = np.cumsum(bands.prompts + bands.outputs, axis=0)
    middles = tops - bands.outputs
    bottoms = middles - bands.prompts
    prompts, outputs = [], []
    for band, active in enumerate(bands.active):
        steps = bands.steps[active]
        bottom, middle, top = (edge[band, active] for edge in (bottoms, middles, tops))
        prompts.append(_area(steps, bottom, middle))
        outputs.append(_area(steps, middle, top))
    last = bands.active.shape[1] - 1 - np.argmax(bands.active[:, ::-1], axis=1)
    ends = np.stack([bands.steps[last], tops[np.arange(len(tops)), last]], axis=1)
    return Bars(True, bands.requests, prompts, outputs, [], ends.astype(np.float64))


def _in_rows(schedule: Schedule, rows: int) -> Bars:
    instance = schedule.instance
    requests, ranks = sample_by_start(schedule, rows)
    arrivals, starts = instance.arrivals[requests], schedule.starts[requests]
    ends = schedule.completions[requests]
    # The largest bar just fits between two rows.
    scale = 0.9 * len(schedule.starts) / len(requests) / int(instance.peaks[requests].max())
    middles = ranks - scale * instance.prompts[requests]
    tops = ranks - scale * instance.peaks[requests]

    def corners(*columns: IntArray | FloatArray) -> list[FloatArray]:
        return list(np.stack(columns, axis=1, dtype=np.float64).reshape(len(requests), -1, 2))

    return Bars(
        False,
        requests,
        corners(starts, ranks, ends, ranks, ends, middles, starts, middles),
        corners(starts, middles, ends, middles, ends, tops),
        corners(arrivals, ranks, starts, ranks),
        np.stack([ends, tops], axis=1),
    )


def _area(steps: IntArray, lower: IntArray, upper: IntArray) -> FloatArray:
    """Give the corners of the area between two lines."""
    there, back = np.stack([steps, lower], axis=1), np.stack([steps, upper], axis=1)[::-1]
    return np.concatenate([there, back]).astype(np.float64)


def percent(share: float) -> str:
    """Write a share that is proven to be an upper limit: rounded up it remains one.

    Parameters
    ----------
    share
        A gap, for example.

    Returns
    -------
    str
        Percent with one decimal.

    Examples
    --------
    >>> percent(0.0871), percent(0.0)
    ('8.8%', '0.0%')
    """
    return f"{_tenths(100 * Decimal(repr(float(share))), ROUND_CEILING):,}%"


def at_least(value: float) -> str:
    """Write a proven lower bound: rounded down it remains one.

    Parameters
    ----------
    value
        The bound.

    Returns
    -------
    str
        The number with one decimal, and none from ten thousand on.

    Examples
    --------
    >>> at_least(42.98), at_least(5_107_803.9)
    ('42.9', '5,107,803')
    """
    if value >= 1e4:
        return f"{math.floor(value):,}"
    return f"{_tenths(Decimal(repr(float(value))), ROUND_FLOOR):,}"


def _tenths(value: Decimal, rounding: str) -> Decimal:
    return value.quantize(Decimal("0.1"), rounding)


def round_to(value: float, rounding: str, digits: int = 6) -> Decimal:
    """Round to that many significant digits, and a whole number to itself."""
    exact = Decimal(repr(float(value)))
    if exact == exact.to_integral_value():
        return exact.quantize(Decimal(1))
    return exact.quantize(Decimal(1).scaleb(min(0, exact.adjusted() + 1 - digits)), rounding)


def step_unit(instance: Instance) -> str:
    """Say what a step is, for the label of an axis.

    Parameters
    ----------
    instance
        The requests.

    Returns
    -------
    str
        "steps", with their length where it is known.

    Examples
    --------
    >>> from optsched import Instance
    >>> step_unit(Instance([1], [1], memory=2, seconds_per_step=0.05))
    'steps of 0.05 s'
    """
    seconds = instance.seconds_per_step
    return "steps" if seconds is None else f"steps of {seconds:g} s"


def proven_optimal(comparison: Comparison) -> bool:
    """Say whether the bound leaves no room below the best schedule: latencies are whole numbers.

    Parameters
    ----------
    comparison
        Schedules and a bound.

    Returns
    -------
    bool
        True if no schedule has a smaller total latency.

    Examples
    --------
    >>> from optsched import Instance, compare
    >>> proven_optimal(compare(Instance([1], [2], memory=3), ["area"]))
    True
    """
    return math.ceil(comparison.bound.value) >= comparison.best.total_latency


def gap_curves(explanation: GapExplanation, most: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Add a gap up over the steps.

    Parameters
    ----------
    explanation
        The gap, taken apart.
    most
        Number of points to give at most.

    Returns
    -------
    tuple of FloatArray
        Steps from 0 to the makespan, and the waste and the order regret of everything up to each;
        a start counts at its step.
    """
    schedule = explanation.schedule
    last = max(schedule.makespan, len(explanation.waste))
    steps = np.unique(np.linspace(0, last, most).round().astype(np.int64))
    waste = np.concatenate([[0.0], np.cumsum(explanation.waste)])
    order = np.argsort(schedule.starts, kind="stable")
    regret = np.concatenate([[0.0], np.cumsum(explanation.regrets[order])])
    begun = np.searchsorted(schedule.starts[order], steps, side="right")
    return steps.astype(np.float64), waste[np.minimum(steps, len(waste) - 1)], regret[begun]
