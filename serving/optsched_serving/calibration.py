"""Clocks held against the measured run of an engine."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import as_count
from optsched._internal.aside import untimed
from optsched.clock import ClockFit, get_clock
from optsched.errors import ClockError
from optsched.problem.execution import Times
from optsched.problem.schedule import statistics_of
from optsched.simulate import RunSettings, run

if TYPE_CHECKING:
    from optsched._internal.arrays import BoolArray, FloatArray
    from optsched.clock import LinearClock
    from optsched.policies import Policy
    from optsched.problem.instance import Instance
    from optsched.workloads import Measured

_TICK = 1e-6  # seconds of a step, to which arrivals are rounded up
_SIMULATIONS = 60  # of a calibration; the simplex has settled long before


@dataclass(frozen=True)
class ClockCheck:
    """A measured run beside its simulation on a clock.

    Attributes
    ----------
    measured, simulated
        Latency, TTFT and TPOT of the same requests in seconds, nan where they are not measured.
    """

    clock: str  # its name
    measured: Times
    simulated: Times
    beyond: str | None = None  # where the simulation leaves what the clock was fitted on

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
        return "\n".join(lines if self.beyond is None else [*lines, self.beyond])


def check_clock(
    clock: str | LinearClock,
    instance: Instance,
    measured: Measured,
    policy: Policy,
    concurrency: int | None = None,
) -> ClockCheck:
    """Simulate a log on a clock, and set what was measured beside it.

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

    Raises
    ------
    ClockError
        If the log has no arrivals and no concurrency is given, or both.

    Examples
    --------
    >>> import numpy as np
    >>> from optsched import Instance
    >>> from optsched.policies import get_policy
    >>> from optsched.workloads import Measured
    >>> log = Instance([100] * 4, [3] * 4, 4096, seconds_per_step=1.0)
    >>> seen = Measured(np.zeros(4), np.full(4, 0.05), np.full(4, 0.07))
    >>> check_clock("llama-3.1-8b-rtx4090", log, seen, get_policy("vllm")).error() < 0.2
    True
    """
    found = get_clock(clock)
    if found.unit != "s":
        raise ClockError(f"clock {found.name} counts {found.unit}; a log needs one in seconds")
    decodes = np.maximum(instance.outputs - 1, 1)
    waited = np.where(instance.outputs > 1, measured.latency - measured.first_token, np.nan)
    seen = Times(measured.latency, measured.first_token, waited / decodes)
    settings = RunSettings(clock=found)
    if np.isfinite(measured.arrivals).all():
        if concurrency is not None:
            raise ClockError("the log says when requests arrived; leave the concurrency out")
        made = run(instance, policy, settings)
        return ClockCheck(found.name, seen, made.times, made.beyond)
    if concurrency is None:
        raise ClockError(
            "the log does not say when its requests arrived, and they did not all at once; name "
            "the column that does (--columns arrival=COLUMN), or how many requests its client kept "
            "running (--concurrency N)"
        )
    times, beyond = _closed_loop(instance, policy, settings, concurrency)
    return ClockCheck(found.name, seen, times, beyond)


def _closed_loop(
    instance: Instance, policy: Policy, settings: RunSettings, concurrency: int
) -> tuple[Times, str | None]:
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
            return times, made.beyond
        follows = before
    raise ClockError(f"with {size} requests at once the simulation does not settle; try another")


def calibrated(
    clock: str | LinearClock,
    instance: Instance,
    measured: Measured,
    policy: Policy,
    concurrency: int | None = None,
) -> ClockFit:
    """Scale a clock, and change its constant, until it meets a measured run; see `check_clock`.

    The mean latency, TTFT and TPOT of every second request are met as closely as the two numbers
    allow; the errors are those of the latencies of the other requests.
    """
    with untimed():
        from scipy.optimize import minimize

    base = get_clock(clock)
    if base.coefficients is None:
        raise ClockError(f"clock {base.name} is a function; only a sum can be scaled")
    log = instance, measured, policy, concurrency
    check_clock(base, *log)  # which refuses what cannot be simulated
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
            check = half(check_clock(clock_at(point), *log), fitted)
        except ClockError:  # a constant below zero
            return np.inf
        return sum(check.error(metric) ** 2 for metric in check.to_dict())

    simplex = np.array([[0.0, 0.0], [0.05, 0.0], [0.0, 0.05]])
    options: Any = {"maxfev": _SIMULATIONS, "xatol": 1e-4, "initial_simplex": simplex}
    best = minimize(miss, [0.0, 0.0], method="Nelder-Mead", options=options)
    check = half(check_clock(clock_at(best.x), *log), ~fitted)
    known = np.isfinite(check.measured.latency)
    shares = np.abs(check.simulated.latency / check.measured.latency - 1)[known]
    high = float(np.quantile(shares, 0.95))
    errors = check.error(), float(shares.mean()), high
    return ClockFit(clock_at(best.x), *errors, int(known.sum()), "requests")
