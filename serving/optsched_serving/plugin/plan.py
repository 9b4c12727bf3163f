"""What a scheduler inside vLLM goes by, what it foresees of requests, and the plan of what fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import chain
from math import ceil, inf, isclose, nan
from operator import mul
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import allocating
from optsched.clock import LinearClock, get_clock
from optsched.errors import OptschedError, nearest, require
from optsched.policies.base import PriorityPolicy  # by modules: beside vLLM no loader is there
from optsched.policies.priorities import DuePolicy
from optsched.policies.registry import get_policy, is_shipped
from optsched.problem.forecasts import Beliefs, steps_ahead
from optsched.problem.instance import Instance
from optsched_serving.learning import Aging, OutputLearner, Seen, TokenCounters, gittins

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from pathlib import Path

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched_serving.contract import Request
    from optsched_serving.learning import Expected, Scale

    Blocks = Sequence[int] | IntArray


def _number(value: object) -> float:
    """Return what is a number, and what is none as one that no comparison holds for."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else nan


def _positive(value: object) -> bool:
    return 0 < _number(value) < inf


def _is(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) or callable(value)


def _shares(value: object) -> bool:
    """Whether a value is a switch, or weights of clients."""
    weighted = isinstance(value, dict) and value and all(map(_positive, value.values()))
    return isinstance(value, bool) or bool(weighted)


_FINITE = "a finite number above 0"
_PORT = "a port from 1 to 65535"
_ORDER, _CLOCK = "an order by its name, or a function", "a clock by its name, or a JSON file"
_SWITCH = (lambda value: isinstance(value, bool), "true or false")
#: What values but the default must be, and in words.
_MUST_BE: dict[str, tuple[Callable[[object], bool], str]] = {
    "factor": (_positive, _FINITE),
    "patience": (lambda value: _number(value) > 0, "a number above 0"),
    "log_error": (_positive, _FINITE),
    "deviations": (lambda value: 0 <= _number(value) < inf, "a finite number of at least 0"),
    "aging": (lambda value: value in (None, "load") or _positive(value), f"{_FINITE} or 'load'"),
    **dict.fromkeys(("trusted", "dry_run", "gittins"), _SWITCH),
    "fair": (_shares, 'true, false or weights of clients above 0, such as {"a": 2}'),
    "objective": (
        lambda value: _positive(value) or (isinstance(value, dict) and _shares(value)),
        'seconds above 0, or those of clients, such as {"a": 2}',
    ),
    "room": (lambda value: 0 < _number(value) <= 1, "a share above 0 and at most 1"),
    "metrics_port": (lambda value: type(value) is int and 0 < value < 65_536, _PORT),
    "record": (lambda value: isinstance(value, str | PathLike) and bool(str(value)), "a folder"),
    "history": (lambda value: isinstance(value, str | PathLike | Instance), "a trace"),
    "order": (lambda value: _is(value, str, PriorityPolicy, type(None)), _ORDER),
    "clock": (lambda value: _is(value, str, LinearClock), _CLOCK),
}


@dataclass(frozen=True)
class Settings:
    """What a scheduler inside vLLM goes by; a server passes them as JSON.

    `--additional-config '{"optsched": {"order": "work", "clock": "mine.json"}}'`

    Parameters
    ----------
    order
        By what priorities are set, smallest first: the name of an order, a `PriorityPolicy`, a
        function of an `Instance`, or "module:function". None: vLLM's own order.
    clock
        How long batches take, for orders that depend on it, such as "work": a name, a JSON file or
        a clock.
    objective
        Seconds from its arrival by which a request that names none is due, or those of clients, for
        the orders "edf" and "least-slack". Those that are never due come last.
    factor
        A plan counts on the expected output times this factor.
    patience
        Requests that have waited this many seconds come first, in order of arrival.
    log_error
        Error of forecasts, as the standard deviation of their logarithm: a plan then admits what is
        likely to fit, in place of counting on the factor.
    history
        Completed requests, as a trace or an `Instance`, that show which outputs are likely where
        there is no forecast. None: a running mean.
    deviations
        Standard deviations of the memory that a plan leaves free where it goes by beliefs.
    aging
        Seconds by which a request must have come earlier to come before a key 2.7 times as small,
        in orders of optsched. "load": as many as the next request by arrival would have waited, had
        as much work been admitted by arrival, and only what is small comes earlier. None, a
        patience, or an order by due dates: keys alone.
    trusted
        Believe what clients say of outputs. If not, it counts by how right a client has been
        (`optsched_serving.learning`), and at first no less than the median of similar requests.
    gittins
        Order by what all likely outputs of a request cost (`optsched_serving.learning.gittins`), in
        place of the key of their mean, unless its forecast is trusted.
    fair
        Serve clients in turn, by virtual counters of their tokens, in place of the order; with
        weights of some, a token of a client of weight 2 counts half.
    room
        Share of the blocks that a plan counts on; the others are left to what no request uses
        now but may be found in the prefix cache again.
    dry_run
        Form vLLM's own batches, and count what would be done.
    record
        Folder into which requests, without texts, and times of batches are written.
    metrics_port
        Port of a page with the metrics, for Prometheus; that of the first engine, others follow.

    Examples
    --------
    >>> Settings(order="work", clock="llama-2-70b-2xa100").policy().name
    'work'
    """

    order: str | PriorityPolicy | Callable[[Instance], object] | None = "area"
    clock: str | Clock | None = None
    objective: float | dict[str, float] | None = None
    factor: float = 1.0
    patience: float = inf
    log_error: float | None = None
    history: str | Path | Instance | None = None
    deviations: float = 1.0
    aging: Scale = "load"
    trusted: bool = False
    gittins: bool = False
    fair: bool | dict[str, float] = False
    room: float = 1.0
    dry_run: bool = False
    record: str | Path | None = None
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        for name, (good, wish) in _MUST_BE.items():
            value = getattr(self, name)
            if value is not getattr(Settings, name) and not good(value):
                raise OptschedError(f"optsched.vllm: {name} is {value!r}, but must be {wish}")

    def updated(self, given: Mapping[str, Any]) -> Settings:
        """Return the settings with those that a server was started with."""
        wish = 'an object of settings, such as {"order": "work"}'
        require(given, Mapping, "optsched.vllm: additional_config.optsched", wish)
        known = [field.name for field in fields(self)]
        for name in given:
            if name not in known:
                raise OptschedError(
                    f"optsched.vllm has no setting {name!r}: {nearest(name, known)}"
                )
        return replace(self, **given)

    @property
    def orders(self) -> bool:
        """Whether priorities are set."""
        return bool(self.fair) or self.order is not None

    @property
    def is_ours(self) -> bool:
        """Whether the order is one of optsched, by name."""
        return isinstance(self.order, str) and is_shipped(self.order)

    @property
    def scale(self) -> Scale:
        """Over what keys age, if they do."""
        ages = self.is_ours and not self.fair and self.patience == inf
        return self.aging if ages and not isinstance(self.policy(), DuePolicy) else None

    def policy(self) -> PriorityPolicy | None:
        """Return the order."""
        if self.order is None or self.fair:
            return None
        policy = get_policy(self.order)
        if not isinstance(policy, PriorityPolicy) or policy.rule != "prefix":
            raise OptschedError(
                f"optsched.vllm: {policy.name!r} is no plain order; use one such as area, work or "
                "mc-sf, or a function of an Instance"
            )
        if self.clock is None and policy.name.partition(":")[0] in ("work", "least-slack"):
            raise OptschedError(
                f"optsched.vllm: the order {policy.name!r} depends on how long batches take; set "
                "clock to a name or a JSON file"
            )
        if self.gittins and (isinstance(policy, DuePolicy) or not self.is_ours):
            raise OptschedError(
                f"optsched.vllm: gittins weighs what outputs cost, which keys of {policy.name!r} "
                "do not say; leave gittins out, or choose an order of optsched, such as area"
            )
        return policy


_LONGEST = 16_384  # tokens: what beliefs say of longer outputs is said of these
_FAR = 1024  # tokens between keys that are looked at: a power of two, so that sums are exact
_LONGEST_NAME = 256  # characters: thousands of longer names would take much memory
_OWN = np.zeros(1, dtype=np.int64)  # foreign blocks of a request that has none
POINT = -1  # row of a request of which a number is known, no belief


class Outlook(NamedTuple):
    """What is expected of a request; tokens of its output count those made."""

    output: int
    planned: int  # on which a plan counts
    row: int = POINT  # of the beliefs
    learned: bool = False  # from what others made


class Foresight:
    """What is expected of requests, and by what they are ordered."""

    def __init__(self, settings: Settings, usable: int, sizes: Sequence[int], longest: int) -> None:
        self.usable = usable
        self.sizes = np.array(sizes, dtype=np.int64)
        self.room = usable * settings.room
        self.deviations = settings.deviations
        self._settings = settings
        self._policy = settings.policy()
        self.aging = Aging(settings.scale)
        self.clock = get_clock("unit" if settings.clock is None else settings.clock)
        self._memory = usable * min(sizes, default=1)
        self.fair = bool(settings.fair)
        self._weights = settings.fair if isinstance(settings.fair, dict) else {}
        self._learner, self._counters = OutputLearner(), TokenCounters()
        tables: list[FloatArray] = []
        self._rows: list[IntArray | None] = []  # of beliefs, by forecast from 1 on and by prompt
        for belief in _beliefs(settings, min(longest, _LONGEST)):
            self._rows.append(None if belief is None else belief.rows + sum(map(len, tables)))
            tables += [] if belief is None else [belief.chances]
        # Of each row: the chance of an output above 0, 1, ... tokens, and the sum from there on.
        above = [np.cumsum(table[:, ::-1], axis=1)[:, ::-1] for table in tables]
        self._above = np.concatenate(above) if above else np.zeros((0, 1))
        self._sums = np.cumsum(self._above[:, ::-1], axis=1)[:, ::-1]
        #: Batches ahead at which a plan by beliefs looks; None where there are none.
        self.ahead = steps_ahead(self._above.shape[1]) if tables else None
        ours = self._policy is not None and settings.is_ours
        self._factors = _quadratic_factors(self._alone) if ours else None

    def expect(self, request: Request, limit: int, priority: Hashable = 0) -> Expected:
        """Return what others' outputs show of a request that arrives."""
        client, turn = _extra(request, "client"), _extra(request, "turn")
        client = client if _is_name(client) else None
        turn = turn if isinstance(turn, int) and turn > 0 else 0
        prompt, claim = request.num_prompt_tokens, _number_in(request, "expected_output", 1)
        weight = self._weights.get(str(client), 1.0)
        return self._learner.expect(Seen(prompt, limit, client, priority, turn, claim, weight))

    def outlook(self, request: Request, made: int, learned: Expected) -> Outlook:
        """Return what is expected of a request that has made so many tokens."""
        limit, forecast, factor = learned.seen.limit, learned.seen.claim, self._settings.factor
        row = self._row(request, forecast)
        if row != POINT:
            at = min(made, self._above.shape[1] - 1)
            left = ceil(self._sums[row, at] / max(self._above[row, at], 1e-300) - 1e-9)
            output = max(min(made + max(left, 1), limit), 1)
            return Outlook(output, output, row)
        if forecast is not None and self._settings.trusted:
            return Outlook(ceil(min(forecast, limit)), ceil(min(factor * forecast, limit)))
        planned = ceil(min(factor * learned.median, limit))
        return Outlook(learned.mean, planned, learned=True)

    def arrives(self, request: Request, learned: Expected, look: Outlook) -> float:
        """Return the turn of a request that arrives, or by how much later than others it comes."""
        if self.fair:
            return self._counters.tag(learned.seen, look.output)
        if self._settings.scale is None:
            return 0.0
        name, came, prompt = request.request_id, request.arrival_time, request.num_prompt_tokens
        return self.aging.arrives(
            name, came, self.weigh(prompt, look, learned), prompt, look.planned
        )

    def admitted(self, request: Request, tag: float) -> None:
        """Take note that a request is admitted."""
        self.aging.leaves(request.request_id)
        if self.fair:
            self._counters.serve(tag)

    def ended(self, request: Request, learned: Expected, expected: int, *, complete: bool) -> None:
        """Take note of what a request has made that has ended, by itself or not."""
        made = request.num_output_tokens
        self.aging.leaves(request.request_id)
        if complete:
            self._learner.learn(made, learned)
        if self.fair:
            self._counters.settle(learned.seen, expected, made)

    def due(self, request: Request, client: Hashable) -> float:
        """Return when a request is due, infinite if never; 0 in orders that do not ask for that."""
        if not isinstance(self._policy, DuePolicy):
            return 0.0
        given = self._settings.objective
        usual = given.get(str(client), inf) if isinstance(given, dict) else given or inf
        named = _number_in(request, "objective", 0)
        return request.arrival_time + (usual if named is None else named)

    def weigh(self, prompt: int, look: Outlook, learned: Expected, made: int = 0) -> float:
        """Return the key of a request by what is expected of it, without age and due date."""
        if self._settings.gittins and look.learned and not made:
            return gittins(learned.chances, self._alone(prompt, learned.outputs))
        return self.key(prompt + made, max(look.output - made, 1))

    def key(self, prompt: int, left: int) -> float:
        """Return the key of a request in the order, without age and when it is due."""
        if self._factors is not None:
            return float(sum(map(mul, self._factors, _quadratic_terms(prompt, left))))
        return float(self._alone(prompt, np.array([left]))[0])

    def _alone(self, prompt: int, left: IntArray) -> FloatArray:
        assert self._policy is not None
        alone = Instance([prompt] * len(left), left, max(self._memory, prompt + int(left.max())))
        if isinstance(self._policy, DuePolicy):
            return -self._policy.taking(alone, self.clock)
        return np.asarray(self._policy.keys(alone, self.clock), dtype=np.float64)

    def _row(self, request: Request, forecast: float | None) -> int:
        at = request.num_prompt_tokens if forecast is None else ceil(forecast) - 1
        rows = self._rows[forecast is None]
        return POINT if rows is None else int(rows[min(at, len(rows) - 1)])

    def chances(
        self, made: IntArray, limits: IntArray, row: IntArray, ahead: IntArray
    ) -> FloatArray:
        """Return the chance that each request still runs in each batch ahead."""
        last = self._above.shape[1] - 1
        now = np.minimum(made, last)[:, None]
        then = np.minimum(now + np.maximum(ahead - 1, 0), last)
        rows = np.maximum(row, 0)[:, None]
        chances = self._above[rows, then] / np.maximum(self._above[rows, now], 1e-300)
        return np.asarray(np.where(made[:, None] + ahead > limits[:, None], 0.0, chances))


def _quadratic_terms(prompt: int, left: int) -> tuple[float, ...]:
    p, o = (prompt - 1) / _FAR, (left - 1) / _FAR
    return 1.0, p, o, p * p, p * o, o * o


def _quadratic_factors(keys: Callable[[int, IntArray], FloatArray]) -> list[float] | None:
    """Return factors of terms whose sum is the key, for orders whose keys are quadratic."""
    points = [(1 + p * _FAR, 1 + o * _FAR) for p in range(3) for o in range(3 - p)]
    tried = ((7, 3), (1000, 300), (5000, 20))
    known = [float(keys(prompt, np.array([left]))[0]) for prompt, left in (*points, *tried)]
    table = [_quadratic_terms(*at) for at in points]
    factors: list[float] = np.linalg.solve(table, known[: len(points)]).tolist()
    found = [sum(map(mul, factors, _quadratic_terms(*at))) for at in tried]
    return factors if all(map(isclose, found, known[len(points) :])) else None


def _beliefs(settings: Settings, longest: int) -> tuple[Beliefs | None, Beliefs | None]:
    """Return the belief about each forecast, from 1 on, and that about each prompt, from 0 on."""
    near = past = None
    if settings.log_error is not None:
        near = Beliefs.around(np.arange(1, longest + 1), settings.log_error, longest)
    if settings.history is not None:
        history = settings.history
        if not isinstance(history, Instance):
            from optsched.workloads import read_trace

            history = read_trace(history)
        past = Beliefs.of_history(history, np.arange(longest + 1), longest)
    return near, past


def _extra(request: Request, name: str) -> Any:
    """Return what a client said of a request: `extra_args`, which is `vllm_xargs` over HTTP."""
    extra = None if request.sampling_params is None else request.sampling_params.extra_args
    return (extra or {}).get(name)


def _is_name(value: object) -> bool:
    """Whether a value may name a client."""
    short = isinstance(value, str) and len(value) <= _LONGEST_NAME
    return short or (isinstance(value, int) and value.bit_length() < 64)


def _number_in(request: Request, name: str, least: float) -> float | None:
    """Return a number that a client said; all but finite ones of at least so much are ignored."""
    try:
        value = float(_extra(request, name))
    except (TypeError, ValueError, OverflowError):
        return None
    return value if least <= value < inf else None


class Row(NamedTuple):
    """What a plan sees of a request."""

    tokens: int  # of the prompt, and made
    made: int
    limit: int  # tokens that it may make at most
    left: int  # tokens that the plan counts on, one at least
    row: int = POINT  # of the beliefs


class AdmissionPlan:
    """What the running requests are expected to hold, and whether another one may join them."""

    def __init__(
        self,
        foresight: Foresight,
        rows: Sequence[Row],
        lag: int,
        held: Callable[[], Sequence[Blocks]] = list,
        shares: bool = False,
    ) -> None:
        self._foresight, self._lag, self._held = foresight, lag, held
        table = np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, len(Row._fields))
        self._ends = table[:, 3] + lag
        self._joined: list[int] = []  # ends of those admitted since
        self._life: IntArray | None = None
        foreign = self._shared() if shares else np.zeros(len(rows), dtype=np.int64)
        self._ahead = foresight.ahead
        self._variance = np.zeros(1)
        if self._ahead is None:
            self._mean = _held(table, foreign, lag, foresight.sizes)
        else:
            mean, variance = self._believed(table.T, foreign[:, None])
            self._mean, self._variance = mean.sum(axis=0), variance.sum(axis=0)

    def admits(self, row: Row, hits: Sequence[int] = ()) -> bool:
        """Whether a request will fit beside the others; hits are blocks of theirs that it uses."""
        if self._ahead is not None:
            used = self._in_use(hits, self._ahead)
            mean, variance = self._believed(np.array([row]).T, used)
            self._next = self._mean + mean[0], self._variance + variance[0]
            return self._fits(*self._next)
        end = row.left + self._lag
        mean = _held(np.array([row]), _OWN, self._lag, self._foresight.sizes)
        mean -= self._in_use(hits, np.arange(1, end + 1))
        known, later = self._mean[:end], self._mean[end:]
        mean[: len(known)] += known
        self._next = mean, self._variance
        return self._fits(*self._next) and self._fits(later, self._variance)

    def joined(self, row: Row, held: Callable[[], Blocks]) -> None:
        """Count on the request that was looked at last, whose blocks others may find."""
        mean, self._variance = self._next
        if len(mean) < len(self._mean):
            self._mean[: len(mean)] = mean
        else:
            self._mean = mean
        self._joined.append(row.left + self._lag)
        if self._life is not None:
            blocks = held()
            self._life[blocks] = np.maximum(self._life[blocks], row.left + self._lag)

    def _fits(self, mean: FloatArray, variance: FloatArray) -> bool:
        if self._ahead is not None:
            mean = mean + self._foresight.deviations * np.sqrt(variance)
        return bool(mean.max(initial=0.0) <= self._foresight.room)

    def _believed(
        self, columns: IntArray, foreign: IntArray | int
    ) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of the blocks of each request, batches ahead."""
        tokens, made, limit, left, row = columns
        ahead, certain = self._foresight.ahead, row == POINT
        assert ahead is not None
        most = np.where(certain, left, np.maximum(limit - made, 1))
        stored = tokens[:, None] + np.minimum(ahead, most[:, None]) - 1
        blocks = -(-stored[..., None] // self._foresight.sizes).sum(axis=-1) - foreign
        chances = (ahead <= left[:, None] + self._lag).astype(np.float64)
        if not certain.all():
            chances[~certain] = self._foresight.chances(made, limit, row, ahead - self._lag)[
                ~certain
            ]
        return chances * blocks, chances * (1 - chances) * blocks**2

    def _shared(self) -> IntArray:
        """Return how many blocks of each request another one is expected to hold longer."""
        held, ends = self._held(), np.append(self._ends, self._joined).astype(np.int64)
        order = np.argsort(ends, kind="stable")
        counts = np.array([len(each) for each in held])
        blocks = np.concatenate([held[index] for index in order])
        owner = np.full(self._foresight.usable + 1, -1)
        owner[blocks] = np.repeat(order, counts[order])  # the last to end comes last
        owned = owner[owner >= 0]
        self._life = np.zeros(len(owner), dtype=np.int64)
        self._life[owner >= 0] = ends[owned]
        return np.asarray(counts - np.bincount(owned, minlength=len(counts)))

    def _in_use(self, hits: Sequence[int], ahead: IntArray) -> IntArray | int:
        """Return how many of the blocks that a request finds others hold, batches ahead."""
        if not len(hits):
            return 0
        if self._life is None:
            self._shared()
        assert self._life is not None
        lives = np.sort(self._life[np.asarray(hits)])
        return np.asarray(len(lives) - np.searchsorted(lives, ahead))


@allocating
def _held(rows: IntArray, foreign: IntArray, lag: int, sizes: IntArray) -> FloatArray:
    """Return the blocks that requests hold 1, 2, ... batches ahead, without the foreign ones."""
    last = 0
    for at in range(len(rows)):
        last = max(last, rows[at, 3] + lag)
    held = np.zeros(last + 1)  # what is taken and given back, then what is held
    for at in range(len(rows)):
        tokens, left = rows[at, 0], rows[at, 3]
        held[0] -= foreign[at]
        held[left + lag] += foreign[at]
        for size in sizes:
            blocks = (tokens + size - 1) // size
            held[0] += blocks
            for begun in range(-tokens % size + 1, left, size):
                held[begun] += 1
                blocks += 1
            held[left + lag] -= blocks
    return held.cumsum()[:-1]
