"""Clocks held against the measured run of an engine."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from optsched._internal.arguments import as_count
from optsched._internal.aside import untimed
from optsched.clock import ClockFit, LinearClock, get_clock
from optsched.errors import ClockError, OptschedError
from optsched.problem.execution import Times
from optsched.problem.schedule import statistics_of
from optsched.problem.workers import as_workers
from optsched.simulate import RunSettings, run
from optsched.simulate.seconds.batches import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from optsched._internal.arrays import BoolArray, FloatArray
    from optsched.clock import Clock
    from optsched.policies import Policy
    from optsched.problem.instance import Instance
    from optsched.problem.routing import RouterState
    from optsched.problem.workers import Router, Workers
    from optsched.workloads import Measured

_TICK = 1e-6  # seconds of a step, to which arrivals are rounded up
_SIMULATIONS = 60  # of a calibration; the simplex has settled long before
_CLOSE = 0.05  # share by which mean and p99 may be off where a clock holds
_OFTEN = 0.05  # share of the batches from which on a limit that keeps requests waiting counts
_SCARCE = 0.1  # share of the blocks that may be too few for one more request
_TRIES = 25  # simulations in which the best factor is sought
_FACTOR = 8.0  # the largest
_NOTHING = 0.01  # share by which a factor of the clock says nothing
_TOKENS = (2048, 8192, 16_384)  # in a batch, as vLLM sets them by the GPU
_WORKERS = (1, 2, 4, 8)
_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks")
_NEARER = 4.0  # times as near as before is a simulation whose change counts
_HOPELESS = 1e3  # distance of what cannot be simulated


@dataclass(frozen=True)
class ClockCheck:
    """A measured run beside its simulation on a clock, with a verdict.

    Attributes
    ----------
    measured, simulated
        Latency, TTFT and TPOT of the same requests in seconds, nan where they are not measured.
    cause
        What is likely to be wrong, as a sentence; None where the clock holds.
    change
        The limit with which the clock would hold, such as {"max_num_seqs": 128}; else empty.
    factor
        By which all times of the clock are off; None where that is not the cause.
    guessed
        The limits that were guessed and count, as they keep requests waiting, with their values.
    next
        The next command; None where there is none, or not on the command line.
    """

    clock: str  # its name
    measured: Times
    simulated: Times
    beyond: str | None = None  # where the simulation leaves what the clock was fitted on
    cause: str | None = None
    change: dict[str, int] = field(default_factory=dict)
    factor: float | None = None
    guessed: dict[str, int] = field(default_factory=dict)
    next: str | None = None

    @property
    def verdict(self) -> Literal["holds", "off"]:
        """Whether mean and p99 of all that was measured are within 5 %."""
        return "off" if self.off else "holds"

    @property
    def off(self) -> list[str]:
        """Metrics of which the mean or p99 is off by more than 5 %."""
        found = self.ratios()
        return [name for name, each in found.items() if (np.abs(each - 1) > _CLOSE).any()]

    @property
    def distance(self) -> float:
        """The largest logarithm of simulated by measured, of means and p99, without its sign."""
        return max(float(np.abs(np.log(each)).max()) for each in self.ratios().values())

    def ratios(self) -> dict[str, FloatArray]:
        """Return simulated divided by measured: the mean and the p99 of each metric."""
        return {
            metric: np.array([pairs[each][1] / pairs[each][0] for each in ("mean", "p99")])
            for metric, pairs in self.to_dict().items()
        }

    def error(self, metric: str = "latency", statistic: str = "mean") -> float:
        """Return by which share the simulated value is above the measured one."""
        measured, simulated = self.to_dict()[metric][statistic]
        return float(simulated / measured - 1)

    @property
    def bias(self) -> float:
        """Share of the squared differences of latencies that is their mean, from 0 to 1."""
        differences = (self.simulated.latency - self.measured.latency)[self._known("latency")]
        squares = float((differences**2).mean())
        return float(differences.mean()) ** 2 / squares if squares else 0.0

    def _known(self, metric: str) -> BoolArray:
        both = getattr(self.measured, metric) + getattr(self.simulated, metric)
        known: BoolArray = np.isfinite(both)
        return known

    def to_dict(self) -> dict[str, Any]:
        """Return pairs of measured and simulated seconds, by metric and statistic."""
        content: dict[str, Any] = {}
        for metric in Times._fields:
            if (known := self._known(metric)).any():
                sides = (getattr(times, metric)[known] for times in (self.measured, self.simulated))
                one, other = map(statistics_of, sides)
                content[metric] = {name: [one[name], other[name]] for name in one}
        return content

    def __str__(self) -> str:
        lines = [f"{self.clock:16} measured  simulated  difference"]
        for metric, statistics in self.to_dict().items():
            lines += [
                f"{metric:8} {name:5} {one:>10.4g} s {other:>8.4g} s {other / one - 1:>+10.1%}"
                for name, (one, other) in statistics.items()
            ]
        lines.append(f"of the squared differences of latencies {self.bias:.0%} are bias")
        lines += [] if self.beyond is None else [self.beyond]
        held = "The clock holds: mean and p99 are within 5 % of what was measured."
        lines.append(held if self.verdict == "holds" else "The prediction is off.")
        lines[-1] += "" if self.cause is None else f" {self.cause}"
        return "\n".join(lines if self.next is None else [*lines, f"Next: {self.next}"])


def check_clock(
    clock: str | LinearClock,
    instance: Instance,
    measured: Measured,
    policy: Policy,
    concurrency: int | None = None,
    *,
    workers: int | str | Sequence[int] | Workers | None = None,
    router: str | Router | Callable[[RouterState], int] = "vllm-dp",
    guessed: Collection[str] = (),
) -> ClockCheck:
    """Simulate a log on a clock, set what was measured beside it, and judge the clock.

    Where it is off, limits of the engine and the number of workers are changed one at a time, and
    all times of the clock by one factor: what alone makes it hold is the likely cause.

    Parameters
    ----------
    clock
        A clock in seconds, or its name.
    instance, measured
        What `optsched.workloads.read_measured` returns of the log.
    policy
        The engine of the log, such as a `VllmPolicy` with its options.
    concurrency
        Of a log without arrivals: how many requests its client kept running. The next one arrives
        when one of them ends, in the simulation as in the measured run.
    workers, router
        Of a log of several engines, as for `run`: how many, and which of them a request goes to.
    guessed
        What of "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks" and "workers" is a guess,
        and is suspected first.

    Raises
    ------
    ClockError
        If the log has no arrivals and no concurrency is given, or both, or several workers too.

    Examples
    --------
    >>> import numpy as np
    >>> from optsched import Instance
    >>> from optsched.policies import get_policy
    >>> from optsched.workloads import Measured
    >>> log = Instance([100] * 4, [3] * 4, 4096, seconds_per_step=1.0)
    >>> seen = Measured(np.zeros(4), np.full(4, 0.05), np.full(4, 0.07))
    >>> found = check_clock("llama-3.1-8b-rtx4090", log, seen, get_policy("vllm"))
    >>> found.error() < 0.2, found.verdict
    (True, 'off')
    """
    given = instance, measured, policy, concurrency, workers, router, guessed
    found, log = _prepared(clock, *given)
    check = log.on(found)
    return check if check.verdict == "holds" else _explained(check, found, log)


class _Log(NamedTuple):
    """A measured log, and the engines by which it is simulated."""

    instance: Instance
    measured: Measured
    policy: Any
    concurrency: int | None
    workers: Any
    router: Any
    guessed: Collection[str]

    def on(self, clock: Clock) -> ClockCheck:
        """Simulate it."""
        seen, outputs = self.measured, self.instance.outputs
        whole = (outputs > 1) & (seen.latency <= seen.first_token)  # an answer that came at once
        ttft = np.where(whole, np.nan, seen.first_token)
        waited = np.where(outputs > 1, seen.latency - ttft, np.nan)
        times = Times(seen.latency, ttft, waited / np.maximum(outputs - 1, 1))
        settings = RunSettings(clock=clock)
        if self.concurrency is None:
            if self.workers is not None:
                settings = replace(settings, workers=self.workers, router=self.router)
            made = run(self.instance, self.policy, settings)
            simulated = made.times
        else:
            simulated, made = _closed_loop(self.instance, self.policy, settings, self.concurrency)
        guessed = self._counting(made)
        return ClockCheck(clock.name, times, simulated, made.beyond, guessed=guessed)

    def _counting(self, made: Any) -> dict[str, int]:
        """Return the guessed limits that keep requests out of many batches of a run."""
        rows = [getattr(each, "statistics", None) for each in getattr(made, "runs", (made,))]
        known, limits = [each for each in rows if each is not None], self.limits()
        if not known:
            return {}
        # Without prefix caching they do not have the last column.
        batches = dict(zip(COLUMNS, np.concatenate(known).T, strict=False))
        ends = {
            "max_num_seqs": batches["running"] >= limits["max_num_seqs"],
            "max_num_batched_tokens": batches["tokens"] >= limits["max_num_batched_tokens"],
            "num_gpu_blocks": batches["free_blocks"] < _SCARCE * limits["num_gpu_blocks"],
        }
        waits = batches["waiting"] > 0
        often = {name for name, each in ends.items() if (each & waits).mean() > _OFTEN}
        return {name: limits[name] for name in ends if name in often.intersection(self.guessed)}

    def limits(self) -> dict[str, int]:
        """Return what the engine is limited by."""
        found = {name: getattr(self.policy, name) for name in _LIMITS if hasattr(self.policy, name)}
        if "num_gpu_blocks" in found:
            found["num_gpu_blocks"] = self.policy.blocks(self.instance)
        engines = 1 if self.workers is None else len(as_workers(self.workers, self.instance))
        return found | {"workers": engines}

    def at_once(self, times: Times) -> int:
        """Return the most requests between their first and last token; 0 where that is unknown."""
        begins, ends = (np.sort(self.measured.arrivals + each) for each in (times[1], times[0]))
        if not np.isfinite(begins + ends).all():
            return 0
        ended = np.searchsorted(ends, begins, side="right")
        return int((np.arange(1, len(begins) + 1) - ended).max())

    def changes(self, check: ClockCheck) -> list[tuple[str, int]]:
        """Return other values of limits, one of which may be that of the log."""
        limits = self.limits()
        found = [("max_num_batched_tokens", value) for value in _TOKENS]
        if self.concurrency is None:
            found += [("workers", value) for value in _WORKERS]
            if seen := -(-self.at_once(check.measured) // limits["workers"]):
                found += [("max_num_seqs", n) for n in {seen, 1 << (seen - 1).bit_length()}]
        return [(name, n) for name, n in found if limits.get(name) not in (None, n)]

    def changed(self, name: str, value: int) -> _Log:
        """Return it with another limit."""
        if name == "workers":
            return self._replace(workers=value)
        return self._replace(policy=replace(self.policy, **{name: value}))


def _prepared(clock: str | Clock, *given: Any) -> tuple[Clock, _Log]:
    """Return a clock and a log, or refuse what cannot be simulated."""
    found = get_clock(clock)
    if found.unit != "s":
        raise ClockError(f"clock {found.name} counts {found.unit}; a log needs one in seconds")
    log = _Log(*given)
    measured, concurrency, workers = log.measured, log.concurrency, log.workers
    known = np.isfinite(measured.arrivals).all()
    if known and concurrency is not None:
        raise ClockError("the log says when requests arrived; leave the concurrency out")
    if not known and concurrency is None:
        raise ClockError(
            "the log does not say when its requests arrived, and they did not all at once; name "
            "the column that does (--columns arrival=COLUMN), or how many requests its client kept "
            "running (--concurrency N)"
        )
    if not np.isfinite([measured.first_token, measured.latency]).any():
        raise ClockError("the log has neither latencies nor times of first tokens; pass another")
    if concurrency is not None and workers is not None:
        raise ClockError(
            f"workers is {workers}, but a client that keeps {concurrency} requests running is "
            "simulated with one engine; leave workers out, or name the column of arrivals"
        )
    return found, log


def _explained(check: ClockCheck, clock: Clock, log: _Log) -> ClockCheck:
    """Return a check of a clock that is off with what is likely to be wrong."""
    tried: list[tuple[str, float, ClockCheck | None]] = [
        (name, value, _tried(log.changed(name, value), clock)) for name, value in log.changes(check)
    ]
    limits = log.limits()
    if "num_gpu_blocks" in limits.keys() & log.guessed:
        most = limits["num_gpu_blocks"]
        share, made = _best(
            lambda x: _tried(log.changed("num_gpu_blocks", round(x * most)), clock), 1
        )
        tried.append(("num_gpu_blocks", round(share * most), made))
    if isinstance(clock, LinearClock):
        factor, made = _best(lambda x: _tried(log, clock.scaled(x)), _FACTOR)
        tried.append(("factor", factor, made if abs(factor - 1) > _NOTHING else None))

    def rank(name: str, value: float, made: ClockCheck) -> tuple[float, ...]:
        """Suspect what was guessed first, a factor last; of equals that which limits least."""
        if made.verdict == "off":
            return 1, made.distance
        first = 2 if name == "factor" else name not in log.guessed
        return 0, first, round(made.distance, 6), -value

    near = [
        (rank(name, value, made), name, value, made)
        for name, value, made in tried
        if made and (made.verdict == "holds" or made.distance < check.distance / _NEARER)
    ]
    if near:
        _, name, value, made = min(near, key=lambda each: each[0])
        return _with(check, name, value, made, log)
    alone = [name for name in ("ttft", "tpot") if name in check.off]
    if check.guessed:
        which = " and ".join(f"{name} {value:,}" for name, value in check.guessed.items())
        cause = f"Requests wait for limits that were guessed: {which}."
    elif len(alone) == 1 and len(check.ratios()) == len(Times._fields):
        worst = max(("mean", "p99"), key=lambda each: abs(check.error(alone[0], each)))
        by = f"{check.error(alone[0], worst):+.1%} ({worst})"
        cause = f"{alone[0].upper()} alone is off, by {by}: "
        if alone == ["ttft"]:
            cause += "the engine had other limits than were given, or requests arrived otherwise."
        else:
            cause += "kernels take other times than by this clock."
    else:
        cause = (
            "Neither a single limit nor one factor explains it: the engine or the GPU is another "
            "one, or several things differ."
        )
    return replace(check, cause=cause)


def _with(check: ClockCheck, name: str, value: float, near: ClockCheck, log: _Log) -> ClockCheck:
    """Return a check with the one change that explains it, or most of it."""
    holds = near.verdict == "holds"
    if name == "factor":
        cause = (
            f"All times are off by {'' if holds else 'nearly '}one factor: batches take "
            f"{value:.3g} times as long as by this clock, as on another GPU, another number of "
            "GPUs, or at another speed of theirs."
        )
        return replace(check, factor=value, cause=cause)
    was, guess = log.limits()[name], name in log.guessed
    within = "5 %" if holds else f"{100 * np.expm1(near.distance):.0f} %, which is much nearer"
    cause = (
        f"With {name} {value:,} in place of {was:,}{', which was guessed' if guess else ''}, mean "
        f"and p99 are within {within}."
    )
    guessed = check.guessed | ({name: was} if guess else {})
    return replace(check, change={name: int(value)}, cause=cause, guessed=guessed)


def _tried(log: _Log, clock: Clock) -> ClockCheck | None:
    """Simulate a log where that is possible."""
    try:
        return log.on(clock)
    except OptschedError:
        return None


def _best(
    made: Callable[[float], ClockCheck | None], most: float
) -> tuple[float, ClockCheck | None]:
    """Return the factor, at most so large, with which a simulation is closest, and that."""
    with untimed():
        from scipy.optimize import minimize_scalar

    def miss(point: float) -> float:
        found = made(float(np.exp(point)))
        return _HOPELESS if found is None else min(found.distance, _HOPELESS)

    options: Any = {"maxiter": _TRIES, "xatol": 1e-3}
    bounds = -float(np.log(_FACTOR)), float(np.log(most))
    found: Any = minimize_scalar(miss, bounds=bounds, method="bounded", options=options)
    factor = float(np.exp(found.x))
    return factor, made(factor)


def _closed_loop(
    instance: Instance, policy: Policy, settings: RunSettings, concurrency: int
) -> tuple[Times, Any]:
    """Simulate a client that keeps so many requests running; each goes on from one that ended.

    From which one depends on the run: it is simulated again until all go on as its ends say.
    """
    size = as_count("concurrency", concurrency, of=" of requests")
    turns = np.arange(len(instance))
    base = instance.replace(arrivals=0 * turns, labels=turns, seconds_per_step=_TICK)
    follows = np.maximum(turns - size, -1)
    for _ in turns:
        made = run(base.replace(follows=follows), policy, settings)
        place = np.argsort(np.array(made.instance.labels, dtype=np.int64))
        times = Times(*(each[place] for each in made.times))
        came = made.arrivals[place]
        ends = (came + times.latency).tolist()
        heap = list(zip(ends[:size], range(size), strict=False))
        heapq.heapify(heap)
        due, before = came.copy(), np.full_like(turns, -1)
        for turn in range(size, len(turns)):
            due[turn], before[turn] = heapq.heapreplace(heap, (ends[turn], turn))
        if np.abs(came - due).max() <= 2 * _TICK:
            return times, made
        follows = before
    raise ClockError(f"with {size} requests at once the simulation does not settle; try another")


def calibrated(
    clock: str | LinearClock,
    instance: Instance,
    measured: Measured,
    policy: Policy,
    concurrency: int | None = None,
    *,
    workers: int | str | Sequence[int] | Workers | None = None,
    router: str | Router | Callable[[RouterState], int] = "vllm-dp",
) -> ClockFit:
    """Scale a clock, and change its constant, until it meets a measured run; see `check_clock`.

    The mean latency, TTFT and TPOT of every second request are met as closely as the two numbers
    allow; the errors are those of the latencies of the other requests.
    """
    with untimed():
        from scipy.optimize import minimize

    base, log = _prepared(clock, instance, measured, policy, concurrency, workers, router, ())
    if not isinstance(base, LinearClock):
        raise ClockError(f"clock {base.name} is a function; only a sum can be scaled")
    log.on(base)  # which refuses what cannot be simulated
    fitted = np.arange(len(instance)) % 2 == 0
    if np.isfinite(measured.latency[fitted]).sum() < 2:
        raise ClockError("hardly any latency of the log is known; a calibration needs all")

    def half(check: ClockCheck, rows: BoolArray) -> ClockCheck:
        sides = (check.measured, check.simulated)
        measured, simulated = (Times(*(one[rows] for one in side)) for side in sides)
        return ClockCheck(check.clock, measured, simulated)

    def clock_at(point: FloatArray) -> LinearClock:
        return base.scaled(float(np.exp(point[0])), float(point[1]) * base.constant)

    def miss(point: FloatArray) -> float:
        try:
            check = half(log.on(clock_at(point)), fitted)
        except ClockError:  # a constant below zero
            return np.inf
        return sum(check.error(metric) ** 2 for metric in check.to_dict())

    simplex = np.array([[0.0, 0.0], [0.05, 0.0], [0.0, 0.05]])
    options: Any = {"maxfev": _SIMULATIONS, "xatol": 1e-4, "initial_simplex": simplex}
    best = minimize(miss, [0.0, 0.0], method="Nelder-Mead", options=options)
    check = half(log.on(clock_at(best.x)), ~fitted)
    known = np.isfinite(check.measured.latency)
    shares = np.abs(check.simulated.latency / check.measured.latency - 1)[known]
    high = float(np.quantile(shares, 0.95))
    errors = check.error(), float(shares.mean()), high
    return ClockFit(clock_at(best.x), *errors, int(known.sum()), "requests")
