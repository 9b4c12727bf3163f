"""The schedules between which the proof of Sorted-F Theorem 3 moves, for a few requests."""

# Sorted-F's batches one after another ("separate"), in groups ("group"), and with mean outputs
# ("align"); and an optimal schedule, cut into batches with mean outputs (Theorem 7). Totals are
# those of the paper's formulas, exactly; only `in_order` is a schedule that respects the memory.

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from optsched.admission import admit_by_priority
from optsched.problem.schedule import Schedule
from optsched.search.exact.parts import solve_few
from optsched.solvers.selection import select_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance

Fit = Literal["peak", "profile"]  # as in `optsched.solvers.select_batch`
Batches = list[list[int]]  # requests by ascending output

TIES = ("as listed", "short first", "long first")


class Reading(NamedTuple):
    """How Theorem 7 makes Optimal_align, where its proof can be read in several ways."""

    ties: str = TIES[0]  # which of equal starts comes first
    skips: bool = False  # whether a request that does not fit is passed over for later ones
    windows: bool = False  # whether a group waits for its window: if not, as in the derivation
    fit: Fit = "peak"  # as Definition 1 counts; or step by step, as requests that start together


READINGS = [
    Reading(*each) for each in itertools.product(TIES, (False, True), (False, True), get_args(Fit))
]


def sorted_f_batches(instance: Instance, fit: Fit = "peak") -> Batches:
    """Return the batches of Alg. 1, phase 1: the largest of those with least F."""
    left, found = np.arange(len(instance)), list[list[int]]()
    while len(left):
        rest = instance.take(left)
        profile = fit == "profile"
        batch = _best_by_profile(rest) if profile else select_batch(rest, "dp").requests
        found.append(left[batch].tolist())
        left = np.delete(left, batch)
    return found


def _best_by_profile(instance: Instance) -> IntArray:
    n, outputs = len(instance), instance.outputs
    members = (np.arange(1, 2**n)[:, None] >> np.arange(n) & 1).astype(bool)
    for request, output in enumerate(outputs):
        held = (members & (outputs >= output)) @ (instance.prompts + output)
        members = members[~members[:, request] | (held <= instance.memory)]
    sums, sizes = members @ outputs, members.sum(axis=1)
    # F = sum / size^2 is compared in whole numbers.
    common = math.lcm(*range(1, n + 1)) ** 2
    best = np.lexsort((-sizes, sums * (common // sizes**2)))[0]
    batch = np.flatnonzero(members[best])
    return batch[np.argsort(outputs[batch], kind="stable")]


def in_order(instance: Instance, batches: Iterable[Sequence[int]]) -> int:
    """Return the total latency of Alg. 1, phase 2, in the order of the batches."""
    order = np.array([request for batch in batches for request in batch])
    return Schedule(instance, admit_by_priority(instance, order)).total_latency


def ends_group(outputs: Sequence[int], following: Sequence[int]) -> bool:
    """Whether only memory keeps the next batch's shortest output out, as it would not raise F."""
    size = len(outputs)
    return (sum(outputs) + following[0]) * size**2 <= sum(outputs) * (size + 1) ** 2


def groups_of(batches: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Group batches, given by their outputs, as the proof of Theorem 5 does."""
    groups: list[list[Sequence[int]]] = [[]]
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        groups[-1].append(batch)
        if following is not None and ends_group(batch, following):
            groups.append([])
    return groups


class Totals(NamedTuple):
    """Total latencies of the schedules that the proof makes of Sorted-F's batches."""

    sorted_f: int
    separate: int
    group: int
    align: Fraction


def totals(instance: Instance, batches: Batches) -> Totals:
    """Return the totals by the formulas in the proofs of Theorems 5 and 6."""
    outputs = [instance.outputs[batch].tolist() for batch in batches]
    groups = groups_of(outputs)
    counts = [sum(map(len, group)) for group in groups]
    last = [group[-1] for group in groups]
    own = int(instance.outputs.sum())
    return Totals(
        in_order(instance, batches),
        own + int(_waits([batch[-1] for batch in outputs], list(map(len, outputs)))),
        own + int(_waits([batch[-1] for batch in last], counts)),
        own + _waits([Fraction(sum(batch), len(batch)) for batch in last], counts),
    )


def _waits(durations: Sequence[int | Fraction], counts: Sequence[int]) -> Fraction:
    """Sum the waits where so many requests each start when all before them have ended."""
    clock = total = Fraction(0)
    for duration, count in zip(durations, counts, strict=True):
        total += clock * count
        clock += duration
    return total


def optimum(instance: Instance) -> Schedule:
    """Return a schedule of least total latency, proven by enumeration."""
    order = np.argsort(instance.areas, kind="stable")
    found = solve_few(instance, Schedule(instance, admit_by_priority(instance, order)))
    if found is None:
        raise AssertionError
    return found


def optimal_align(schedule: Schedule, reading: Reading = READINGS[0]) -> Fraction:
    """Return the total latency of Optimal_align."""
    # A window begins 3 times as late as the group before would end, after 6 times the groups before
    # that: at t_g - 3 delta_{g-1}, where t_g sums over all groups; the paper forgets the first.
    outputs = schedule.instance.outputs
    clock, total = Fraction(0), Fraction(int(outputs.sum()))
    for begin, group in _by_completion(schedule):
        if reading.windows:
            clock = max(clock, Fraction(begin))
        order = _by_start(schedule, group, reading.ties)
        for batch in _cut(schedule.instance, order, reading.skips, reading.fit):
            total += clock * len(batch)
            clock += Fraction(int(outputs[batch].sum()), len(batch))
    return total


def _by_completion(schedule: Schedule) -> list[tuple[int, IntArray]]:
    """Return the groups Z_g with the begin of their windows."""
    # A group ends with what runs when the one before ends; delta_g is the distance of two ends.
    starts, ends = schedule.starts, schedule.completions
    groups, cut, before = [], 0, 0
    while cut < ends.max():
        running = (starts <= cut) & (ends > cut)
        until = int(ends[running].max())
        begin = 6 * before + 3 * (cut - before)
        groups.append((begin, np.flatnonzero((ends > cut) & (ends <= until))))
        before, cut = cut, until
    return groups


def _by_start(schedule: Schedule, group: IntArray, ties: str) -> list[int]:
    sign = {"as listed": 0, "short first": 1, "long first": -1}[ties]
    order = np.lexsort((sign * schedule.instance.outputs[group], schedule.starts[group]))
    return [int(request) for request in group[order]]


def _cut(instance: Instance, order: list[int], skips: bool, fit: Fit) -> Batches:
    """Cut requests into batches W_h that fit, each with the earliest of those left."""
    batches: Batches = []
    while order:
        batch: list[int] = []
        for request in order:
            if _fits(instance, [*batch, request], fit):
                batch.append(request)
            elif not skips:
                break
        batches.append(batch)
        order = [request for request in order if request not in batch]
    return batches


def _fits(instance: Instance, batch: list[int], fit: Fit) -> bool:
    """Whether requests that start together fit, by their peaks or at every completion."""
    prompts, outputs = instance.prompts[batch], instance.outputs[batch]
    if fit == "peak":
        return int((prompts + outputs).sum()) <= instance.memory
    held = [int((prompts + end)[outputs >= end].sum()) for end in set(outputs.tolist())]
    return max(held) <= instance.memory
