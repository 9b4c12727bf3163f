r"""WAIT and Nested WAIT: take requests in when enough of them wait (Fluid, Alg. 1 and 2).

A policy here decides on queues and thresholds: where each request queues, how long the stages
behind that queue are, and how many must wait before a batch takes them in. Both know the rates of
arrival and the distribution of lengths, as in the paper; they are those of the trace. What no
worker can keep up with cannot be waited for either: if the load is too high or the thresholds need
more memory than there is, the thresholds are those for the largest share of the arrivals that does.

Both flush a finite trace: once no arrivals are left, all requests take part whatever the
thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

import numpy as np

from optsched.errors import InfeasibleError, PolicyError
from optsched.models.fluid.equilibrium import equilibrium
from optsched.policies.base import Needs, Policy
from optsched.workloads.request_types import RequestTypes, output_classes

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.instance import Instance

_MAX_LOAD = 0.95  # what thresholds are made for at most; beyond it they grow without end
_HALVINGS = 12
_DESIGN_LOAD = 0.5  # at most, for which borders are designed
_OUTPUTS = 32  # different outputs among which Nested WAIT places borders

#: Returns thresholds for so many of the arrivals, or raises InfeasibleError.
_Solve: TypeAlias = "Callable[[RequestTypes], IntArray]"


class Queues(NamedTuple):
    """Where requests queue, and how many must be there."""

    entrance: IntArray
    before: IntArray
    length: IntArray
    changes: FloatArray
    thresholds: IntArray


@dataclass(frozen=True)
class WaitPolicy(Policy):
    """WAIT: outputs are known, requests of similar outputs queue together.

    Parameters
    ----------
    name
        Short name for tables and the command line.
    description, source
        What the policy does, in a few words, and where it comes from.
    classes
        Types of requests: classes of equal size by output. Fewer, unless thresholds are given,
        where the memory does not hold one request at each stage of each class.
    window
        Time after which rates are estimated and thresholds solved again, in the clock's unit; None
        for one rate all along.
    thresholds
        Of one's own, one per class; None for those of least memory that keep up.
    borders
        With thresholds: the longest output of each class, the last of all no shorter than any
        output; None for classes of equal size.

    Raises
    ------
    PolicyError
        If a number is out of range.

    Examples
    --------
    >>> from optsched import Instance, get_clock
    >>> instance = Instance([10] * 6, [10, 20] * 3, memory=10_000, arrivals=range(6))
    >>> times = instance.arrivals / 2000
    >>> queues = WaitPolicy(classes=2).queues(instance, get_clock("affine:0.0085,2.7e-7"), times)
    >>> queues.entrance, queues.length, queues.thresholds
    (array([0, 1, 0, 1, 0, 1]), array([10, 20]), array([[11, 11]]))
    """

    name: str = "wait"
    description: str = "as many of each type at a time as arrive while a batch lasts"
    classes: int = 8
    window: float | None = None
    thresholds: tuple[int, ...] | None = None
    borders: tuple[int, ...] | None = None
    source: str = "Fluid Alg. 1"
    needs: ClassVar[Needs] = Needs("wait")

    def __post_init__(self) -> None:
        _check(self.name, self.window, self.thresholds, classes=self.classes)
        if self.thresholds is not None and len(self.thresholds) != self.classes:
            raise PolicyError(
                f"policy {self.name!r}: {len(self.thresholds)} thresholds for {self.classes} "
                "classes; pass one per class"
            )
        if self.borders is not None:
            _check_borders(self.name, self.borders, self.thresholds)

    def queues(self, instance: Instance, clock: Clock, times: FloatArray) -> Queues:
        """Decide where requests queue and how many must.

        Parameters
        ----------
        instance
            The requests.
        clock
            How long batches take: a weighted sum, unless thresholds are given.
        times
            Ascending times of arrival in the clock's unit, shape (n,).

        Returns
        -------
        Queues
            A segment per class.

        Raises
        ------
        ClockError
            If the clock is a function and there are no thresholds.
        PolicyError
            If all requests arrive at once, and so there is no rate.
        InstanceError
            If there are more thresholds than requests.
        """
        from optsched.models.fluid.wait import WaitThresholds

        if self.borders is not None and self.thresholds is not None:
            return self._bordered(instance, self.borders, self.thresholds)
        classes = self.classes if self.thresholds is not None else self._fitting(instance)
        parts = output_classes(instance, classes)
        entrance = np.zeros(len(instance), dtype=np.int64)
        for index, part in enumerate(parts):
            entrance[part] = index
        length = np.array([instance.outputs[part].max() for part in parts], dtype=np.int64)
        before = np.full(len(parts), -1, dtype=np.int64)
        if self.thresholds is not None:
            levels = np.array([self.thresholds], dtype=np.int64)
            return Queues(entrance, before, length, np.zeros(1), levels)
        changes, counts, span = _windows(self.name, times, entrance, len(parts), self.window)
        types = RequestTypes.from_instance(instance, classes, rate=1.0)

        def solve(scaled: RequestTypes) -> IntArray:
            return WaitThresholds(scaled, clock, memory=instance.memory).least_fixed_point()

        levels = np.ones((len(changes), len(parts)), dtype=np.int64)
        for period, arrived in enumerate(counts):
            there = np.flatnonzero(arrived)
            if len(there):
                kinds = RequestTypes(
                    types.prompts[there], types.outputs[there], arrived[there] / span, True
                )
                found = _keeping_up(kinds, clock, solve)
                levels[period, there] = 1 if found is None else found
        return Queues(entrance, before, length, changes, levels)

    def _bordered(
        self, instance: Instance, borders: tuple[int, ...], thresholds: tuple[int, ...]
    ) -> Queues:
        _check_longest(self.name, instance, borders)
        length = np.array(borders, dtype=np.int64)
        entrance = np.searchsorted(length, instance.outputs)
        before = np.full(len(length), -1, dtype=np.int64)
        return Queues(entrance, before, length, np.zeros(1), np.array([thresholds], dtype=np.int64))

    def _fitting(self, instance: Instance) -> int:
        for classes in range(min(self.classes, len(instance)), 1, -1):
            types = RequestTypes.from_instance(instance, classes, rate=1.0)
            if types.held_tokens.sum() <= instance.memory:
                return classes
        return 1


@dataclass(frozen=True)
class NestedWaitPolicy(Policy):
    """Nested WAIT: outputs are not known, requests queue again between segments of stages.

    Parameters
    ----------
    name
        Short name for tables and the command line.
    description, source
        What the policy does, in a few words, and where it comes from.
    segments
        Number of segments; None for that of least memory.
    window
        Time after which the rate is estimated and thresholds solved again, in the clock's unit;
        None for one rate all along.
    borders, thresholds
        Last stage and threshold of each segment, of one's own; the last stage of all must be no
        shorter than any output.

    Raises
    ------
    PolicyError
        If a number is out of range.

    Examples
    --------
    >>> from optsched import Instance, get_clock
    >>> instance = Instance([10] * 6, [10, 20] * 3, memory=10_000, arrivals=range(6))
    >>> times = instance.arrivals / 2000
    >>> policy = NestedWaitPolicy(segments=2)
    >>> queues = policy.queues(instance, get_clock("affine:0.0085,2.7e-7"), times)
    >>> queues.before, queues.length, queues.thresholds
    (array([-1,  0]), array([10, 10]), array([[21, 12]]))
    """

    name: str = "nested-wait"
    description: str = "as many at a time as arrive while a batch lasts, again in each segment"
    segments: int | None = None
    window: float | None = None
    borders: tuple[int, ...] | None = None
    thresholds: tuple[int, ...] | None = None
    source: str = "Fluid Alg. 2"
    needs: ClassVar[Needs] = Needs("wait")

    def __post_init__(self) -> None:
        _check(self.name, self.window, self.thresholds, segments=self.segments or 1)
        if self.borders is not None:
            _check_borders(self.name, self.borders, self.thresholds)
        elif self.thresholds is not None:
            raise PolicyError(
                f"policy {self.name!r}: give borders and thresholds together, or neither"
            )

    def queues(self, instance: Instance, clock: Clock, times: FloatArray) -> Queues:
        """Decide where requests queue and how many must.

        Parameters
        ----------
        instance, clock, times
            As for `WaitPolicy.queues`.

        Returns
        -------
        Queues
            A chain of segments. Their thresholds are those for a prompt of mean length.

        Raises
        ------
        ClockError
            If the clock is a function and there are no thresholds.
        PolicyError
            If all requests arrive at once, and so there is no rate; or an output is longer than
            the last border.
        """
        entrance = np.zeros(len(instance), dtype=np.int64)
        if self.borders is not None and self.thresholds is not None:
            _check_longest(self.name, instance, self.borders)
            borders = np.array(self.borders, dtype=np.int64)
            changes, levels = np.zeros(1), np.array([self.thresholds], dtype=np.int64)
        else:
            borders, changes, levels = self._solve(instance, clock, times)
        before = np.arange(-1, len(borders) - 1)
        return Queues(entrance, before, np.diff(borders, prepend=0), changes, levels)

    def _solve(
        self, instance: Instance, clock: Clock, times: FloatArray
    ) -> tuple[IntArray, FloatArray, IntArray]:
        from optsched.models.fluid.nested import NestedWaitThresholds
        from optsched.models.fluid.segments import design_segments

        everyone = np.zeros(len(instance), dtype=np.int64)
        changes, counts, span = _windows(self.name, times, everyone, 1, self.window)
        classes = min(_OUTPUTS, len(np.unique(instance.outputs)))
        types = RequestTypes.from_instance(instance, classes, rate=1.0).with_one_prompt()
        mean = types.scaled(len(instance) / (len(changes) * span))

        # Borders depend little on the load, and designing near 1 takes long.
        load = equilibrium(mean, clock).load
        calm = mean.scaled(min(1.0, _DESIGN_LOAD / load)) if load > 0 else mean
        try:
            plan = design_segments(calm, clock, segments=self.segments, margin=0.1)
        except InfeasibleError:
            borders = np.array([instance.outputs.max()])
        else:
            borders = plan.program.last_stages.copy()
            borders[-1] = instance.outputs.max()  # a class stands for longer outputs than its mean

        # Within a segment outputs make no difference any more.
        ending = np.bincount(np.searchsorted(borders, types.outputs), types.rates).astype(
            np.float64
        )
        kinds = RequestTypes(np.full(len(borders), types.prompts[0]), borders, ending, True)

        def solve(scaled: RequestTypes) -> IntArray:
            program = NestedWaitThresholds(
                scaled, clock, borders, margin=0.1, memory=instance.memory
            )
            return program.plan(program.least_fixed_point()).thresholds

        levels = np.ones((len(changes), len(borders)), dtype=np.int64)
        for period, seen in enumerate(counts[:, 0]):
            if seen:
                found = _keeping_up(kinds.scaled(seen / span), clock, solve)
                levels[period] = 1 if found is None else found
        return borders, changes, levels


def _check(
    name: str, window: float | None, thresholds: tuple[int, ...] | None, **numbers: int
) -> None:
    for word, number in numbers.items():
        if number < 1:
            raise PolicyError(f"policy {name!r}: {word} is {number}, but must be at least 1")
    if window is not None and not 0 < window < np.inf:
        raise PolicyError(f"policy {name!r}: window is {window}, but must be above 0")
    if thresholds is not None and (len(thresholds) == 0 or min(thresholds) < 1):
        raise PolicyError(
            f"policy {name!r}: thresholds are {list(thresholds)}, but each must be at least 1"
        )


def _check_borders(name: str, borders: tuple[int, ...], thresholds: tuple[int, ...] | None) -> None:
    if thresholds is None:
        raise PolicyError(f"policy {name!r}: give borders and thresholds together, or neither")
    if len(borders) != len(thresholds) or (np.diff((0, *borders)) < 1).any():
        raise PolicyError(
            f"policy {name!r}: the borders {list(borders)} must ascend from 1 on, one for each of "
            f"{len(thresholds)} thresholds"
        )


def _check_longest(name: str, instance: Instance, borders: tuple[int, ...]) -> None:
    if (longest := int(instance.outputs.max())) > borders[-1]:
        raise PolicyError(
            f"policy {name!r}: an output has {longest} tokens, but the last border is "
            f"{borders[-1]}; raise it"
        )


def _windows(
    name: str, times: FloatArray, group: IntArray, groups: int, window: float | None
) -> tuple[FloatArray, IntArray, float]:
    """Count the arrivals of each group in each window; gives when they begin, and their length."""
    first, last = float(times[0]), float(times[-1])
    if last <= first:
        raise PolicyError(
            f"policy {name!r} needs rates, but all requests arrive at once; give thresholds"
        )
    # The last arrival ends the only window: one more gap would begin with it.
    whole = (last - first) * len(times) / (len(times) - 1)
    span = whole if window is None else min(window, whole)
    count = max(1, int(np.ceil(whole / span - 1e-9)))
    period = np.minimum(((times - first) / span).astype(np.int64), count - 1)
    counts = np.zeros((count, groups), dtype=np.int64)
    np.add.at(counts, (period, group), 1)
    changes = np.asarray(first + span * np.arange(count), dtype=np.float64)
    changes[0] = 0
    return changes, counts, span


def _keeping_up(types: RequestTypes, clock: Clock, solve: _Solve) -> IntArray | None:
    """Solve for the arrivals, or for the largest share of them that can be kept up with."""
    load = equilibrium(types, clock).load
    most = min(1.0, _MAX_LOAD / load) if load > 0 else 1.0

    def attempt(share: float) -> IntArray | None:
        try:
            return solve(types.scaled(share))
        except InfeasibleError:
            return None

    best = attempt(most)
    if best is not None:
        return best
    low, high, best = 0.0, most, attempt(most * 2.0**-_HALVINGS)
    for _ in range(_HALVINGS if best is not None else 0):
        share = (low + high) / 2
        found = attempt(share)
        low, high, best = (low, share, best) if found is None else (share, high, found)
    return best


WaitingPolicy = WaitPolicy | NestedWaitPolicy

WAITING: tuple[WaitingPolicy, ...] = (WaitPolicy(), NestedWaitPolicy())
