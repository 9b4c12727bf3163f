"""Orders and plans of optsched inside a real vLLM; imports vLLM when a scheduler is asked for.

Name one of four classes when the server starts: `OrderedScheduler` and `PlannedScheduler`, and
`OrderedAsyncScheduler` and `PlannedAsyncScheduler` for asynchronous scheduling, vLLM's default. All
set the priority of a request by an order, and again when it is preempted. The planned ones admit a
request only if none is expected to be preempted. Nothing else of vLLM's scheduler changes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, fields, replace
from importlib import import_module
from math import ceil, inf
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched.clock import get_clock
from optsched.errors import OptschedError, nearest
from optsched.forecasts import Beliefs
from optsched.instance import Instance
from optsched.policies import PriorityPolicy, get_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock

_VERSIONS = "0.33.0"
_CLASSES = {
    "OrderedScheduler": ("vllm.v1.core.sched.scheduler", "Scheduler", False),
    "PlannedScheduler": ("vllm.v1.core.sched.scheduler", "Scheduler", True),
    "OrderedAsyncScheduler": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler", False),
    "PlannedAsyncScheduler": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler", True),
}
_METHODS = ("schedule", "add_request", "_preempt_request", "_free_request")
_FIRST_GUESS = 256.0  # tokens of an output before any request has completed
_GROUP_PRIOR = 10  # completed requests that the mean of all is worth within a group
_REMEMBERED = 1000  # completed requests over which a mean is taken, about
_LONGEST = 16_384  # tokens: what beliefs say of longer outputs is said of these
_POINT = -1  # row of a request of which a number is known, no belief


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

    Examples
    --------
    >>> Settings(order="work", clock="llama-2-70b-2xa100").policy().name
    'work'
    >>> Settings(factor=0)
    Traceback (most recent call last):
        ...
    optsched.errors.OptschedError: optsched.vllm: factor is 0, but must be a finite number above 0
    """

    order: str | PriorityPolicy | Callable[[Any], Any] | None = "area"
    clock: str | Clock | None = None
    factor: float = 1.0
    patience: float = inf
    log_error: float | None = None
    history: str | Path | Instance | None = None
    deviations: float = 1.0

    def __post_init__(self) -> None:
        for name, least, most in (("factor", 0, inf), ("log_error", 0, inf), ("patience", 0, None)):
            value = getattr(self, name)
            if value is not None and not _is_between(value, least, most):
                finite = "finite " if most else ""
                raise OptschedError(
                    f"optsched.vllm: {name} is {value!r}, but must be a {finite}number above 0"
                )
        if not _is_between(self.deviations, -1, inf) or self.deviations < 0:
            raise OptschedError(
                f"optsched.vllm: deviations is {self.deviations!r}, but must be a finite number "
                "of at least 0"
            )

    def updated(self, given: dict[str, Any]) -> Settings:
        """Return the settings with those that a server was started with."""
        known = [field.name for field in fields(self)]
        for name in given:
            if name not in known:
                raise OptschedError(
                    f"optsched.vllm has no setting {name!r}: {nearest(name, known)}"
                )
        return replace(self, **given)

    def policy(self) -> PriorityPolicy | None:
        """Return the order."""
        order = self.order
        if isinstance(order, str) and ":" in order and "." in order.partition(":")[0]:
            module, _, name = order.partition(":")
            order = getattr(import_module(module), name)
        if order is None:
            return None
        policy = get_policy(order)
        if not isinstance(policy, PriorityPolicy) or policy.rule != "prefix":
            raise OptschedError(
                f"optsched.vllm: {policy.name!r} is no plain order; use one such as area, work or "
                "mc-sf, or a function of an Instance"
            )
        if self.clock is None and policy.name.partition(":")[0] == "work":
            raise OptschedError(
                f"optsched.vllm: the order {policy.name!r} depends on how long batches take; set "
                "clock to a name or a JSON file"
            )
        return policy


def _is_between(value: Any, least: float, most: float | None) -> bool:
    """Whether a value is a number above the least and below the most; None: infinity counts."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and value > least
    return number and (most is None or value < most)


class Outlook(NamedTuple):
    """What is expected of a request that has made some tokens."""

    left: int  # tokens still to come, one at least
    planned: int  # tokens that a plan counts on
    row: int  # of the beliefs, or _POINT


class Foresight:
    """What is expected of requests, their keys, and whether a group will fit: all but vLLM."""

    def __init__(self, settings: Settings, usable: int, sizes: Sequence[int], longest: int) -> None:
        self.usable = usable
        self.sizes = sizes
        self._settings = settings
        self._policy = settings.policy()
        self.clock = get_clock("unit" if settings.clock is None else settings.clock)
        self._memory = usable * min(sizes, default=1)
        self._means: dict[Any, tuple[int, float]] = defaultdict(lambda: (0, _FIRST_GUESS))
        self._near, self._past = _beliefs(settings, min(longest, _LONGEST))
        tables = [each.chances for each in (self._near, self._past) if each is not None]
        # Of each row: the chance of an output above 0, 1, ... tokens, and the sum from there on.
        above = [np.cumsum(table[:, ::-1], axis=1)[:, ::-1] for table in tables]
        self._above = np.concatenate(above) if above else np.zeros((0, 1))
        self._sums = np.cumsum(self._above[:, ::-1], axis=1)[:, ::-1]
        self._past_rows = 0 if self._near is None else len(self._near.chances)

    def outlook(self, request: Any, made: int, limit: int) -> Outlook:
        """Return what is expected of a request that has made so many tokens, up to a limit."""
        room = max(limit - made, 1)
        forecast = _forecast_of(request)
        factor = self._settings.factor
        row = self._row(request, forecast)
        if row != _POINT:
            at = min(made, self._above.shape[1] - 1)
            left = ceil(self._sums[row, at] / max(self._above[row, at], 1e-300) - 1e-9)
            left = min(max(left, 1), room)
            return Outlook(left, left, row)
        if forecast is None:  # outputs of which only a mean is known are taken to have no memory
            mean = self._mean(request)
            left, planned = ceil(mean), ceil(factor * mean)
        else:
            left, planned = ceil(forecast) - made, ceil(factor * forecast) - made
        return Outlook(min(max(left, 1), room), min(max(planned, 1), room), _POINT)

    def key(self, prompt: int, left: int) -> float:
        """Return the key of a request in the order."""
        assert self._policy is not None
        alone = Instance([prompt], [left], max(self._memory, prompt + left))
        return float(self._policy.keys(alone, self.clock)[0])

    @property
    def ordered(self) -> bool:
        """Whether there is an order."""
        return self._policy is not None

    @property
    def patience(self) -> float:
        """Seconds after which a waiting request comes first."""
        return self._settings.patience

    def fit(self, group: Iterable[tuple[int, int, int, Outlook]], lag: int) -> bool:
        """Whether requests, as of `looked_at`, are expected to fit until all are complete."""
        rows = [(p, made, limit, look.planned, look.row) for p, made, limit, look in group]
        prompts, made, limits, left, row = np.array(rows, dtype=np.int64).T
        certain = row == _POINT
        ahead = np.unique(left[certain] + lag)
        if not certain.all():
            ahead = np.union1d(ahead, _ahead(int((limits - made)[~certain].max())))
        tokens = np.minimum(ahead, np.where(certain, left, np.maximum(limits - made, 1))[:, None])
        stored = (prompts + made)[:, None] + tokens - 1
        blocks = sum(-(-stored // size) for size in self.sizes)
        chances = (ahead <= left[:, None] + lag).astype(np.float64)
        if not certain.all():
            chances[~certain] = self._chances(made, limits, row, ahead - lag)[~certain]
        mean = (chances * blocks).sum(axis=0)
        spread = np.sqrt((chances * (1 - chances) * blocks**2).sum(axis=0))
        return bool((mean + self._settings.deviations * spread <= self.usable).all())

    def learn(self, request: Any, output: int) -> None:
        """Take note of a request that is complete."""
        for group in (_group_of(request), None):
            count, mean = self._means[group]
            count = min(count + 1, _REMEMBERED)
            self._means[group] = count, mean + (output - mean) / count

    def _mean(self, request: Any) -> float:
        """Return the mean output of requests like this one, drawn towards the mean of all."""
        count, mean = self._means[_group_of(request)]
        overall = self._means[None][1]
        return (count * mean + _GROUP_PRIOR * overall) / (count + _GROUP_PRIOR)

    def _row(self, request: Any, forecast: float | None) -> int:
        """Return the row of the belief about a request."""
        if forecast is not None:
            if self._near is None:
                return _POINT
            return int(self._near.rows[min(ceil(forecast), len(self._near.rows)) - 1])
        if self._past is None:
            return _POINT
        prompt = min(request.num_prompt_tokens, len(self._past.rows) - 1)
        return self._past_rows + int(self._past.rows[prompt])

    def _chances(
        self, made: IntArray, limits: IntArray, row: IntArray, ahead: IntArray
    ) -> FloatArray:
        """Return the chance that each request still runs in each batch ahead."""
        last = self._above.shape[1] - 1
        now = np.minimum(made, last)[:, None]
        then = np.minimum(now + np.maximum(ahead - 1, 0), last)
        rows = np.maximum(row, 0)[:, None]
        chances = self._above[rows, then] / np.maximum(self._above[rows, now], 1e-300)
        return np.asarray(np.where(made[:, None] + ahead > limits[:, None], 0.0, chances))


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
        if near is not None:  # both have columns up to the longest output
            assert near.chances.shape[1] == past.chances.shape[1]
    return near, past


def _ahead(most: int) -> IntArray:
    """Return the batches ahead at which memory is looked at, each from 8 on a quarter further."""
    found = [1]
    while found[-1] < most:
        found.append(found[-1] + max(1, found[-1] // 4))
    return np.array(found)


def _extra(request: Any, name: str) -> Any:
    """Return what a client said of a request: `extra_args`, which is `vllm_xargs` over HTTP."""
    parameters = request.sampling_params
    return ((parameters and parameters.extra_args) or {}).get(name)


def _forecast_of(request: Any) -> float | None:
    """Return the output that a client expects; all but numbers of at least 1 are ignored."""
    try:
        value = float(_extra(request, "expected_output"))
    except (TypeError, ValueError):
        return None
    return value if 1 <= value < inf else None


def _group_of(request: Any) -> tuple[str, Any]:
    """Return the group in which a request's output is estimated: its client, or its prompt."""
    client = _extra(request, "client")
    if isinstance(client, str | int):
        return "client", client
    return "prompt", int(request.num_prompt_tokens).bit_length()


def _scheduler(name: str, base: Any, planned: bool) -> type:
    """Return one of the classes, on top of a scheduler of vLLM."""

    class Scheduler(base):  # type: ignore[misc]
        #: What it goes by; a subclass may set its own.
        settings = Settings()

        def __init__(self, vllm_config: Any, kv_cache_config: Any, *args: Any, **more: Any) -> None:
            extra = vllm_config.additional_config
            given = extra.get("optsched", {}) if isinstance(extra, dict) else {}
            settings = self.settings.updated(given)
            _check_mode(name, vllm_config.scheduler_config)
            if settings.order is not None:
                vllm_config.scheduler_config.policy = "priority"
            super().__init__(vllm_config, kv_cache_config, *args, **more)
            sizes = [group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups]
            longest = vllm_config.model_config.max_model_len
            self.foresight = Foresight(settings, kv_cache_config.num_blocks - 1, sizes, longest)
            self.lag = int("Async" in name)
            self._by_arrival: deque[Any] = deque()
            if planned:
                manager = self.kv_cache_manager
                self._allocate, manager.allocate_slots = manager.allocate_slots, self._if_it_fits

        def limit_of(self, request: Any) -> int:
            """Return the maximum number of tokens that a request may make."""
            room = self.max_model_len - request.num_prompt_tokens
            return int(min(request.max_tokens, room))

        def now(self) -> float:
            """Return the time on the clock of arrivals."""
            return time()

        def add_request(self, request: Any) -> None:
            """Let a request wait in its place."""
            if request.request_id not in self.requests:
                self._rank(request)
                if self.foresight.patience < inf:
                    self._by_arrival.append(request)
            super().add_request(request)

        def schedule(self, *args: Any, **more: Any) -> Any:
            """Form a batch."""
            due = self.now() - self.foresight.patience
            overdue = False
            while self._by_arrival and self._by_arrival[0].arrival_time < due:
                self._by_arrival.popleft().priority = -inf
                overdue = True
            if overdue:
                self.waiting.remove_requests(())  # which sorts the queue anew
            return super().schedule(*args, **more)

        def _rank(self, request: Any) -> None:
            """Set the priority of a request that waits."""
            if self.foresight.ordered and request.priority != -inf:
                made = request.num_output_tokens
                left = self.foresight.outlook(request, made, self.limit_of(request)).left
                request.priority = self.foresight.key(request.num_prompt_tokens + made, left)

        def _preempt_request(self, request: Any, *args: Any, **more: Any) -> None:
            self._rank(request)
            super()._preempt_request(request, *args, **more)

        def _free_request(self, request: Any, *args: Any, **more: Any) -> Any:
            if request.status.name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"):
                self.foresight.learn(request, request.num_output_tokens)
            return super()._free_request(request, *args, **more)

        def _if_it_fits(self, request: Any, *args: Any, **more: Any) -> Any:
            """Allocate blocks; none for a request whose admission would lead to preemptions."""
            if request.status.name in ("WAITING", "PREEMPTED") and self.running:
                group = map(self.looked_at, (*self.running, request))
                if not self.foresight.fit(group, self.lag):
                    return None
            return self._allocate(request, *args, **more)

        def looked_at(self, request: Any) -> tuple[int, int, int, Outlook]:
            """Return what a plan sees of a request."""
            made = request.num_output_tokens + request.num_output_placeholders
            limit = self.limit_of(request)
            look = self.foresight.outlook(request, made, limit)
            return request.num_prompt_tokens, made, limit, look

    Scheduler.__name__ = Scheduler.__qualname__ = name
    how = "planned" if planned else "ordered"
    Scheduler.__doc__ = f"vLLM's {base.__name__}, {how} by optsched."
    return Scheduler


def _check_mode(name: str, config: Any) -> None:
    """Refuse a class for the other way of scheduling."""
    wanted, given = "Async" in name, bool(config.async_scheduling)
    if wanted != given:
        other = name.replace("Async", "") if wanted else name.replace("Sch", "AsyncSch")
        raise OptschedError(
            f"optsched.vllm.{name} is for {'' if wanted else 'no '}asynchronous scheduling; start "
            f"the server with --{'' if wanted else 'no-'}async-scheduling, or use {other}"
        )


def __getattr__(name: str) -> Any:
    """Make a scheduler class when it is first asked for."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, base_name, planned = _CLASSES[name]
    try:
        version = import_module("vllm").__version__
    except ImportError as error:
        raise OptschedError(
            f"optsched.vllm.{name} needs vLLM, which cannot be imported here ({error}); install "
            f"version {_VERSIONS}"
        ) from None
    try:
        base = getattr(import_module(module), base_name)
        missing = [method for method in _METHODS if not hasattr(base, method)]
    except (ImportError, AttributeError):
        missing = [f"{module}.{base_name}"]
    if missing:
        raise OptschedError(
            f"vLLM {version} has a scheduler with another interface, without {missing[0]}; "
            f"optsched.vllm works with version {_VERSIONS}"
        )
    globals()[name] = _scheduler(name, base, planned)
    return globals()[name]
