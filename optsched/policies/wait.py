"""WAIT and Nested WAIT: take requests in when enough of them wait (Fluid, Alg. 1 and 2).

Rates and the distribution of lengths are known from the trace, as in the paper. Where not all
arrivals can be served, the thresholds are those for the largest share that can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

import numpy as np

from optsched._internal.arguments import checked
from optsched.errors import InfeasibleError, PolicyError
from optsched.models.fluid.equilibrium import equilibrium
from optsched.policies.base import Needs, Policy
from optsched.problem.request_types import RequestTypes, output_classes

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched._internal.files import JSON
    from optsched.clock import Clock
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Knowledge

_MAX_LOAD = 0.95  # what thresholds are made for at most; beyond it they grow without end
_HALVINGS = 12
_DESIGN_LOAD = 0.5  # at most, for which borders are designed
_OUTPUTS = 32  # different outputs among which Nested WAIT places borders

#: Returns thresholds for so many of the arrivals, or raises InfeasibleError.
_Solve: TypeAlias = "Callable[[RequestTypes], IntArray]"


class TypeQueues(NamedTuple):
    """Where requests queue, and how many must be there."""

    entrance: IntArray
    before: IntArray
    length: IntArray
    changes: FloatArray
    thresholds: IntArray


class _InQueues(Policy):
    name: str
    window: float | None
    thresholds: tuple[int, ...] | None
    borders: tuple[int, ...] | None
    needs: ClassVar[Needs] = Needs("wait")

    def knows(self, instance: Instance, intervals: str | None = None) -> Knowledge:
        """Return what it is told of an output of the instance before that request ends."""
        return "outputs"  # by which requests queue

    def _check(self, what: str, number: int) -> None:
        self.require(number >= 1, f"{what} is {number}, but must be at least 1")
        window, thresholds, borders = self.window, self.thresholds, self.borders
        in_range = window is None or 0 < window < np.inf
        self.require(in_range, f"window is {window}, but must be above 0")
        if thresholds is not None:
            least = min(thresholds, default=0)
            self.require(
                least >= 1, f"thresholds are {list(thresholds)}, but each must be at least 1"
            )
        if borders is not None:
            self.require(thresholds is not None, "give borders and thresholds together, or neither")
            count = len(thresholds or ())
            self.require(
                len(borders) == count and (np.diff((0, *borders)) >= 1).all(),
                f"the borders {list(borders)} must be at least 1 and ascend, one for each of "
                f"{count} thresholds",
            )

    def _read(self, parameters: str) -> JSON:
        """Read "OUTPUT=THRESHOLD,...", by ascending outputs: name, borders and thresholds."""
        pairs = [part.partition("=")[::2] for part in parameters.split(",")]
        numbers = [number for pair in pairs for number in pair]
        if not all(number.strip().isdecimal() for number in numbers):
            raise PolicyError(
                f"policy '{self.name}:{parameters}' should read {self.name}:OUTPUT=THRESHOLD,..., "
                f"such as {self.name}:100=12,500=4: requests of up to 100 tokens wait until there "
                "are 12"
            )
        borders, thresholds = zip(*[map(int, pair) for pair in pairs], strict=True)
        return {"name": f"{self.name}:{parameters}", "borders": borders, "thresholds": thresholds}

    def _own(self, instance: Instance) -> tuple[IntArray, IntArray] | None:
        """Return the user's own borders and thresholds, where both are given."""
        if self.borders is None or self.thresholds is None:
            return None
        longest, last = int(instance.outputs.max()), self.borders[-1]
        self.require(
            longest <= last,
            f"an output has {longest} tokens, but the last border is {last}; raise it",
        )
        return np.array(self.borders), np.array([self.thresholds])

    def _windows(
        self, times: FloatArray, group: IntArray, groups: int
    ) -> tuple[FloatArray, IntArray, float]:
        """Count the arrivals of each group in each window; also when windows begin, and last."""
        first, last = float(times[0]), float(times[-1])
        if last <= first:
            raise PolicyError(
                f"policy {self.name!r} needs rates, but all requests arrive at once; give "
                "thresholds"
            )
        # The last arrival ends the only window: one more gap would begin with it.
        whole = (last - first) * len(times) / (len(times) - 1)
        span = whole if self.window is None else min(self.window, whole)
        count = max(1, int(np.ceil(whole / span - 1e-9)))
        period = np.minimum(((times - first) / span).astype(np.int64), count - 1)
        counts = np.zeros((count, groups), dtype=np.int64)
        np.add.at(counts, (period, group), 1)
        changes = np.asarray(first + span * np.arange(count), dtype=np.float64)
        changes[0] = 0
        return changes, counts, span


@checked(PolicyError)
@dataclass(frozen=True)
class WaitPolicy(_InQueues):
    """WAIT: outputs are known, requests of similar outputs queue together.

    Parameters
    ----------
    classes
        Types of requests: classes of equal size by output. Fewer, unless thresholds are given,
        where the memory does not hold one request at each stage of each class.
    window
        Time after which rates are estimated and thresholds solved again, in the clock's unit; None
        for one rate all along.
    thresholds
        Your own, one per class; None for those of least memory that keep up.
    borders
        With thresholds: the longest output of each class, the last of all no shorter than any
        output; None for classes of equal size.

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

    def __post_init__(self) -> None:
        self._check("classes", self.classes)
        count = self.classes if self.thresholds is None else len(self.thresholds)
        self.require(
            count == self.classes,
            f"{count} thresholds for {self.classes} classes; pass one per class",
        )

    def parsed(self, parameters: str) -> WaitPolicy:
        """Return the policy with the thresholds "OUTPUT=THRESHOLD,...", by ascending outputs."""
        own = self._read(parameters)
        return replace(self, classes=len(own["borders"]), **own)

    def queues(self, instance: Instance, clock: Clock, times: FloatArray) -> TypeQueues:
        """Decide where requests queue and how many must, given when they arrive on the clock."""
        from optsched.models.fluid.wait import WaitThresholds

        if (own := self._own(instance)) is not None:
            entrance = np.searchsorted(own[0], instance.outputs)
            return TypeQueues(entrance, np.full(len(own[0]), -1), own[0], np.zeros(1), own[1])
        classes = self.classes if self.thresholds is not None else self._fitting(instance)
        parts = output_classes(instance, classes)
        entrance = np.zeros(len(instance), dtype=np.int64)
        for index, part in enumerate(parts):
            entrance[part] = index
        length = np.array([instance.outputs[part].max() for part in parts], dtype=np.int64)
        before = np.full(len(parts), -1, dtype=np.int64)
        if self.thresholds is not None:
            return TypeQueues(entrance, before, length, np.zeros(1), np.array([self.thresholds]))
        changes, counts, span = self._windows(times, entrance, len(parts))
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
                levels[period, there] = _keeping_up(kinds, clock, solve)
        return TypeQueues(entrance, before, length, changes, levels)

    def _fitting(self, instance: Instance) -> int:
        for classes in range(min(self.classes, len(instance)), 1, -1):
            types = RequestTypes.from_instance(instance, classes, rate=1.0)
            if types.held_tokens.sum() <= instance.memory:
                return classes
        return 1


@checked(PolicyError)
@dataclass(frozen=True)
class NestedWaitPolicy(_InQueues):
    """Nested WAIT: outputs are not known, requests queue again between segments of stages.

    Parameters
    ----------
    segments
        Number of segments; None for that of least memory.
    window
        As of `WaitPolicy`.
    borders, thresholds
        Your own last stage and threshold of each segment; the last stage of all must be no
        shorter than any output.

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

    def __post_init__(self) -> None:
        self._check("segments", 1 if self.segments is None else self.segments)
        together = self.borders is not None or self.thresholds is None
        self.require(together, "give borders and thresholds together, or neither")

    def parsed(self, parameters: str) -> NestedWaitPolicy:
        """Return the policy with the thresholds "OUTPUT=THRESHOLD,...", by ascending outputs."""
        return replace(self, **self._read(parameters))

    def knows(self, instance: Instance, intervals: str | None = None) -> Knowledge:
        """Return what it is told: how outputs are distributed, unless thresholds are your own."""
        return "forecast" if self.thresholds is None else "nothing"

    def queues(self, instance: Instance, clock: Clock, times: FloatArray) -> TypeQueues:
        """Decide on a chain of segments, with thresholds for a prompt of mean length."""
        entrance = np.zeros(len(instance), dtype=np.int64)
        if (own := self._own(instance)) is not None:
            borders, changes, levels = own[0], np.zeros(1), own[1]
        else:
            borders, changes, levels = self._solve(instance, clock, times)
        before = np.arange(-1, len(borders) - 1)
        return TypeQueues(entrance, before, np.diff(borders, prepend=0), changes, levels)

    def _solve(
        self, instance: Instance, clock: Clock, times: FloatArray
    ) -> tuple[IntArray, FloatArray, IntArray]:
        from optsched.models.fluid.nested import NestedWaitThresholds, design_segments

        everyone = np.zeros(len(instance), dtype=np.int64)
        changes, counts, span = self._windows(times, everyone, 1)
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
                levels[period] = _keeping_up(kinds.scaled(seen / span), clock, solve)
        return borders, changes, levels


def _keeping_up(types: RequestTypes, clock: Clock, solve: _Solve) -> IntArray | int:
    """Solve for the largest share of the arrivals that can be kept up with; 1 where none can."""
    load = equilibrium(types, clock).load
    most = min(1.0, _MAX_LOAD / load) if load > 0 else 1.0

    def attempt(share: float) -> IntArray | None:
        try:
            return solve(types.scaled(share))
        except InfeasibleError:
            return None

    if (best := attempt(most)) is not None:
        return best
    low, high, best = 0.0, most, attempt(most * 2.0**-_HALVINGS)
    for _ in range(_HALVINGS if best is not None else 0):
        share = (low + high) / 2
        found = attempt(share)
        low, high, best = (low, share, best) if found is None else (share, high, found)
    return 1 if best is None else best


WaitingPolicy = WaitPolicy | NestedWaitPolicy

WAITING: tuple[WaitingPolicy, ...] = (WaitPolicy(), NestedWaitPolicy())
