"""Keys of an order inside an engine: of all requests, of those it preempts, learned, aged."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.clock.work import step_of
from optsched.instance import Instance
from optsched.learning import Aging, OutputLearner, Seen, TokenCounters
from optsched.simulate.likely import TOLERANCE, tables
from optsched.simulate.seconds.batches import called_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.forecasts import Forecast
    from optsched.learning import Expected
    from optsched.simulate.task import Task

_Callback = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_int64] * 3)
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
    instance, policy = task.instance, task.policy
    expected = None if known is None else _tokens_to_come(known)
    believed, clock = instance, task.clock
    if policy.order is not None and expected is not None:
        planned = expected(slice(None), 0)
        believed = instance.replace(outputs=planned, **_UNSEEN)
    keys = np.zeros(len(instance)) if policy.learns else np.array(policy.keys(believed, clock))

    def key(event: int, request: int, made: int) -> float:
        if event != PREEMPTED:
            return float(keys[request])
        assert expected is not None
        return _key(task, request, (made, int(expected(request, made))), arrivals)

    tell = _Learned(task, planned, arrivals).tell if policy.learns else key
    if policy.aging is not None:
        tell = _Aged(task, tell, planned, arrivals).tell
    with called_back(_Callback, tell, 0.0) as callback:
        yield keys.copy(), callback


def _key(task: Task, request: int, tokens: tuple[int, int], arrivals: IntArray) -> float:
    """Return the key of a request that has made some tokens and is expected to make others."""
    instance, (made, left) = task.instance, tokens
    columns = instance.columns() | {"arrivals": arrivals}
    known = {
        field: columns[field][request : request + 1]
        for field in ("arrivals", "weights", "deadlines", "priorities")
        if field in columns
    }
    prompt, step = instance.prompts[request] + made, instance.seconds_per_step
    alone = Instance([prompt], [left], instance.memory, **known, seconds_per_step=step)
    return float(task.policy.keys(alone, task.clock)[0])


class _Learned:
    """What a run learns of outputs, and by what it is fair to clients."""

    def __init__(self, task: Task, planned: IntArray, arrivals: IntArray) -> None:
        instance = task.instance
        self._task, self._planned, self._arrivals = task, planned, arrivals
        self._learner, self._counters = OutputLearner(), TokenCounters()
        self._expected: dict[int, tuple[Expected, float]] = {}
        limits = instance.memory - instance.prompts
        if instance.output_upper is not None:
            limits = np.minimum(limits, instance.output_upper)
        turns = np.zeros(len(instance), dtype=np.int64)
        if instance.follows is not None:
            for turn in np.flatnonzero(instance.follows >= 0).tolist():
                turns[turn] = turns[instance.follows[turn]] + 1
        none = np.zeros(len(instance), dtype=np.int64)
        priorities = none if instance.priorities is None else instance.priorities
        unsaid = [None] * len(instance)
        clients, claims = (
            unsaid if column is None else column.tolist()
            for column in (instance.clients, instance.output_estimates)
        )
        lengths, most, classes, turn = (
            column.tolist() for column in (instance.prompts, limits, priorities, turns)
        )
        rows = zip(lengths, most, clients, classes, turn, claims, strict=True)
        self._seen = [Seen(*row) for row in rows]

    def tell(self, event: int, request: int, made: int) -> float:
        """Take note of an event; return the key of the request."""
        seen = self._seen[request]
        if event == ARRIVED:
            expected = self._learner.expect(seen)
            tag = self._counters.tag(seen, expected.left(0))
            self._expected[request] = expected, tag
            self._planned[request] = expected.planned(0)
        expected, tag = self._expected[request]
        if event == ADMITTED:
            self._counters.serve(tag)
        elif event == ENDED:
            del self._expected[request]
            self._learner.learn(made, expected)
            self._counters.settle(seen, expected.left(0), made)
        elif self._task.policy.fair:
            return tag
        elif self._task.policy.order is not None:
            if event == PREEMPTED:
                return -np.inf  # what is expected of it was too little; it goes on first
            return _key(self._task, request, (made, expected.left(made)), self._arrivals)
        return 0.0


class _Aged:
    """Keys that age."""

    def __init__(
        self, task: Task, keys: Callable[..., float], planned: IntArray, arrivals: IntArray
    ) -> None:
        self._keys, self._planned, self._arrivals = keys, planned, arrivals
        self._prompts, self._step = task.instance.prompts, step_of(task.instance, task.clock)
        self._aging = Aging(task.policy.aging)
        self._later = np.zeros(len(planned))

    def tell(self, event: int, request: int, made: int) -> float:
        """Take note of an event; return the key of the request."""
        key = self._keys(event, request, made)
        if event == ARRIVED:
            came = float(self._arrivals[request] * self._step)
            tokens = int(self._prompts[request]), int(self._planned[request])
            self._later[request] = self._aging.arrives(request, came, key, *tokens)
        elif event != PREEMPTED:
            self._aging.leaves(request)
        return key if key == -np.inf else self._aging.key(key, float(self._later[request]))


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
