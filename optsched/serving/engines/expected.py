"""What is expected of outputs in a run of vLLM: orders that change, and plans."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.compiled import compiled, compiled_inside
from optsched.errors import PolicyError
from optsched.problem.forecasts import steps_ahead
from optsched.problem.instance import Instance
from optsched.problem.work import step_of
from optsched.serving.learning import Aging, OutputLearner, Seen, TokenCounters
from optsched.simulate.seconds.batches import called_back
from optsched.simulate.steps.chance import TOLERANCE, chance_of_more, tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.problem.forecasts import Forecast
    from optsched.serving.engines.policy import VllmPolicy
    from optsched.serving.learning import Expected
    from optsched.simulate.settings import Task
    from optsched.simulate.steps.chance import ChanceTable


_Told = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_int64] * 3)
#: Fields that say more of the outputs than what is expected.
_UNSEEN: dict[str, Any] = dict.fromkeys(("output_lower", "output_upper", "hash_ids", "hash_block"))
#: What a kernel tells of a request.
ARRIVED, PREEMPTED, ADMITTED, ENDED = range(4)


@contextmanager
def reranking(
    task: Task, known: Forecast | None, planned: IntArray, arrivals: IntArray
) -> Iterator[tuple[FloatArray, Any]]:
    """Return the keys of all requests, and what a kernel calls for those that change.

    Where outputs are learned, requests get the output to be planned for when they arrive. Arrivals
    are those that come out.
    """
    keys = _Keys(task, known, planned, arrivals)
    with called_back(_Told, keys.tell, 0.0) as callback:
        yield keys.given.copy(), callback


class _Keys:
    """Keys of the requests of a run, and what it learns of outputs, clients and waits for them."""

    def __init__(
        self, task: Task, known: Forecast | None, planned: IntArray, arrivals: IntArray
    ) -> None:
        self._task, self._policy, self._arrivals = task, task.policy, arrivals
        self._left = None if known is None else _tokens_to_come(known)
        self._learner, self._counters = OutputLearner(), TokenCounters()
        self._aging, self._step = Aging(task.policy.aging), step_of(task.instance, task.clock)
        self._expected: dict[int, Expected] = {}
        self._tags, self._later = np.zeros(len(planned)), np.zeros(len(planned))
        self._planned, self.given, believed = planned, np.zeros(len(planned)), task.instance
        if self._policy.learns:
            self._seen = _seen(task.instance, task.policy.max_model_len)
            return
        if self._policy.order is not None and self._left is not None:
            self._planned = self._left(slice(None), 0)
            believed = believed.replace(outputs=self._planned, **_UNSEEN)
        self.given = np.array(self._policy.keys(believed, task.clock))

    def tell(self, event: int, request: int, made: int) -> float:
        """Take note of an event; return the key of the request."""
        if event in (ADMITTED, ENDED):
            self._leaves(event, request, made)
            return 0.0
        key = self._key(event, request, made)
        if event == ARRIVED:
            came = float(self._arrivals[request] * self._step)
            prompt, output = self._task.instance.prompts[request], self._planned[request]
            later = self._aging.arrives(request, came, key, int(prompt), int(output))
            self._later[request] = later
        return key if key == -np.inf else self._aging.key(key, float(self._later[request]))

    def _leaves(self, event: int, request: int, made: int) -> None:
        """Take note that a request is admitted, or has ended."""
        self._aging.leaves(request)
        if not self._policy.learns:
            return
        self._counters.serve(self._tags[request])
        if event == ENDED:
            expected = self._expected.pop(request)
            self._learner.learn(made, expected)
            self._counters.settle(expected.seen, expected.left(0), made)

    def _key(self, event: int, request: int, made: int) -> float:
        """Return the key of a request that arrives or is preempted, without age."""
        if not self._policy.learns:
            if event == ARRIVED:
                return float(self.given[request])
            assert self._left is not None
            return self._alone(request, made, int(self._left(request, made)))
        if event == ARRIVED:
            expected = self._expected[request] = self._learner.expect(self._seen[request])
            self._tags[request] = self._counters.tag(expected.seen, expected.left(0))
            self._planned[request] = expected.planned(0)
        if self._policy.fair or self._policy.order is None:
            return float(self._tags[request]) if self._policy.fair else 0.0
        if event == PREEMPTED:
            return -np.inf  # what is expected of it was too little; it goes on first
        return self._alone(request, made, self._expected[request].left(made))

    def _alone(self, request: int, made: int, left: int) -> float:
        """Return the key of a request that has made some tokens and is expected to make others."""
        instance = self._task.instance
        columns = instance.columns() | {"arrivals": self._arrivals}
        known = {
            field: columns[field][request : request + 1]
            for field in ("arrivals", "weights", "deadlines", "priorities")
            if field in columns
        }
        prompt, step = instance.prompts[request] + made, instance.seconds_per_step
        alone = Instance([prompt], [left], instance.memory, **known, seconds_per_step=step)
        return float(self._policy.keys(alone, self._task.clock)[0])


def _seen(instance: Instance, longest: int | None) -> list[Seen]:
    """Return what is known of each request when it arrives."""
    most = min(instance.memory, longest or instance.memory)
    limits, turns = most - instance.prompts, None
    if instance.output_upper is not None:
        limits = np.minimum(limits, instance.output_upper)
    if instance.follows is not None:
        turns = np.zeros(len(instance), dtype=np.int64)
        for turn in np.flatnonzero(instance.follows >= 0).tolist():
            turns[turn] = turns[instance.follows[turn]] + 1
    columns = {
        **{"prompt": instance.prompts, "limit": limits, "client": instance.clients, "turn": turns},
        **{"priority": instance.priorities, "claim": instance.output_estimates},
        "weight": instance.weights,
    }
    known = {name: column.tolist() for name, column in columns.items() if column is not None}
    rows = zip(*known.values(), strict=True)
    return [Seen(**dict(zip(known, row, strict=True))) for row in rows]


def _tokens_to_come(known: Forecast) -> Callable[[Any, int], Any]:
    """Return what gives the tokens that requests are expected to make yet, from what they made."""
    lower, upper = known.lower, known.upper
    if known.beliefs is None:

        def mean_of_bounds(which: Any, made: int) -> Any:
            low, high = np.maximum(lower[which], made + 1), np.maximum(upper[which], made + 1)
            return (low + high + 1) // 2 - made

        return mean_of_bounds
    believed = tables(known.beliefs, known)
    chances = known.beliefs.chances
    sums = np.zeros_like(believed.beyond)
    longest = chances.shape[1]
    terms = chances * np.arange(1, longest + 1)
    sums[:, :-1] = np.cumsum(terms[:, ::-1], axis=1)[:, ::-1]

    def mean_of_beliefs(which: Any, made: int) -> Any:
        row, most = believed.row[which], believed.most[which]
        least = np.minimum(np.maximum(believed.least[which], made), longest)
        mass = believed.beyond[row, least] - believed.beyond[row, most]
        total = sums[row, least] - sums[row, most]
        mean = np.where(mass > 0, total / np.where(mass > 0, mass, 1), made + 1)
        return np.maximum(np.ceil(mean - made - TOLERANCE), 1).astype(np.int64)

    return mean_of_beliefs


_Asked = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@contextmanager
def planning(
    policy: VllmPolicy, known: Forecast | None, shares: bool
) -> Iterator[tuple[IntArray, Any]]:
    """Return what a kernel calls to plan by beliefs, and where it lists requests before."""
    if known is None or known.beliefs is None:
        yield np.zeros((0, 3), dtype=np.int64), _Asked(lambda _, __: 1)
        return
    if known.beliefs.prior:
        raise PolicyError(
            f"the belief learns while requests complete (prior {known.beliefs.prior:g}), which "
            f"policy {policy.name!r} cannot; pass one whose prior is 0, or a history"
        )
    if shares and policy.enable_prefix_caching:
        raise PolicyError(
            f"policy {policy.name!r}: a plan by beliefs counts blocks that requests share once for "
            "each of them; leave the beliefs out, or turn enable_prefix_caching off"
        )
    listed = np.zeros((len(known), 3), dtype=np.int64)
    believed, lag = tables(known.beliefs, known), int(policy.async_scheduling)
    ahead = steps_ahead(int(known.upper.max()) + lag)

    def plan(count: int, usable: int) -> int:
        limits = (usable, policy.block_size, lag)
        return int(likely_to_fit(listed, count, believed, ahead, limits, float(policy.deviations)))

    with called_back(_Asked, plan, 0) as callback:
        yield listed, callback


@compiled
def likely_to_fit(
    listed: IntArray,
    count: int,
    beliefs: ChanceTable,
    ahead: IntArray,
    limits: tuple[int, int, int],
    deviations: float,
) -> bool:
    """Whether mean and deviations of the first `count` requests' blocks fit, batches ahead."""
    usable, block_size, lag = limits
    for batches in ahead:
        mean = variance = 0.0
        for at in range(count):
            request, prompt, made = listed[at, 0], listed[at, 1], listed[at, 2]
            others = batches - lag - 1 if batches > lag else 0
            runs = chance_of_more(beliefs, request, made + others, made)
            left = beliefs.most[request] - made
            if left > batches:
                left = batches
            elif left < 1:
                left = 1
            blocks = (prompt + made + left - 1 + block_size - 1) // block_size
            mean += blocks * runs
            variance += blocks * blocks * runs * (1.0 - runs)
        if mean + deviations * np.sqrt(variance) > usable + TOLERANCE:
            return False
    return True


@compiled_inside
def expected_left(lower: int, upper: int, made: int) -> int:
    """Return the mean of the tokens that are still to come, one at least, rounded up."""
    low, high = max(lower, made + 1), max(upper, made + 1)
    return (low + high + 1) // 2 - made


@compiled_inside
def fits_to_the_end(
    requests: Records,
    running: IntArray,
    ends: IntArray,
    foreign: IntArray,
    room: tuple[int, int, int],
) -> bool:
    """Whether requests are expected to keep to the blocks until they end, batches ahead.

    Of the blocks of each some are foreign: another one holds them longer.
    """
    usable, block_size, lag = room
    for ahead in ends:
        blocks = 0
        for at in range(len(ends)):
            if ends[at] >= ahead:
                request = requests[running[at]]
                made = request.made + request.in_flight
                stored = request.prompt + made + min(ends[at] - lag, ahead) - 1
                blocks += (stored + block_size - 1) // block_size - foreign[at]
        if blocks > usable:
            return False
    return True
