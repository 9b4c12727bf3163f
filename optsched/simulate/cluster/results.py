"""What a run on a cluster did, its service times and drift."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arguments import MAX_TOKENS, as_count
from optsched._internal.arrays import BoolArray, FloatArray, IntArray, as_integers, require_room
from optsched._internal.imports import data_frame
from optsched.errors import InstanceError
from optsched.problem.execution import Run
from optsched.problem.premises import Knowledge, World
from optsched.problem.schedule import Violation, violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pandas as pd

    from optsched._internal.files import JSON
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Cluster


@dataclass(frozen=True, eq=False)
class Profiles:
    """The load of each request at each of its steps, :math:`W_i = (w_i^{(1)}, ..., w_i^{(o_i)})`.

    Parameters
    ----------
    loads
        One sequence of whole numbers from 0 per request, as long as its output. The first is what
        the router sees of a waiting request instead of its prompt.

    Examples
    --------
    A prompt that is pruned while the request runs:

    >>> from optsched import Cluster, Instance, run
    >>> shrinking = Profiles([[9, 5, 2], [4, 4]])
    >>> cluster = Cluster(1, 2)
    >>> run(Instance([9, 4], [3, 2], 99), "fcfs", cluster=cluster, drift=shrinking).total_load
    array([13,  9,  2])
    """

    loads: Sequence[npt.ArrayLike]


class Gains(NamedTuple):
    """The tokens that requests have gained by their age, in one array."""

    sizes: IntArray
    gains: IntArray
    first: IntArray
    last: IntArray
    growth: IntArray
    reserved: IntArray  # the most that each can come to hold, by what is known on admission


def gains_of(instance: Instance, drift: float | npt.ArrayLike | Profiles, horizon: int) -> Gains:
    r"""Tabulate :math:`w_i^{(j)}` by age."""
    if isinstance(drift, Profiles):
        return _profiles(instance, drift, horizon)
    outputs = instance.outputs
    longest = outputs if instance.output_upper is None else instance.output_upper
    ages = int(max(outputs.max(), longest.max())) + horizon + 1
    require_room(ages, 64, "ages of requests", "take shorter outputs or windows", InstanceError)
    gains = _summed(np.atleast_1d(np.asarray(drift)), ages)
    least = instance.prompts + np.minimum.accumulate(gains)[outputs - 1]
    if least.min() < 0:
        request = int(np.argmax(least < 0))
        raise InstanceError(
            f"request {request}: drift takes its load from {instance.prompts[request]} to "
            f"{least[request]} tokens, below zero; use a drift that stops before",
            request=request,
        )
    return Gains(
        instance.prompts,
        gains,
        first=np.zeros_like(outputs),
        last=np.full_like(outputs, ages),
        growth=gains[: horizon + 1].copy(),
        reserved=instance.prompts + np.maximum.accumulate(gains)[longest],
    )


def _summed(drift: npt.NDArray[Any], ages: int) -> IntArray:
    """Sum a drift up by age, in whole tokens: what is less than one is not gained yet."""
    if len(drift) == 0:
        raise InstanceError("drift is an empty sequence; pass at least one number")
    scale = 1
    if drift.dtype.kind == "f" and np.isfinite(drift).all():
        # Each number is the decimal that it is written as, so that ten times 0.1 is one token.
        shares = [Fraction(str(step)) for step in drift.tolist()]
        scale = math.lcm(*(share.denominator for share in shares))
        if max(abs(share) for share in shares) * scale * ages > MAX_TOKENS:
            raise InstanceError(f"drift is {drift.tolist()}, with too many digits; round it")
        drift = np.array([int(share * scale) for share in shares])
    steps = as_integers("drift", drift)
    gains = np.zeros(ages + 1, dtype=np.int64)
    gains[1:] = np.cumsum(np.pad(steps[:ages], (0, max(0, ages - len(steps))), mode="edge"))
    return gains // scale


def _profiles(instance: Instance, drift: Profiles, horizon: int) -> Gains:
    if len(drift.loads) != len(instance):
        raise InstanceError(
            f"there are {len(drift.loads)} profiles for {len(instance)} requests; pass one each"
        )
    loads = [as_integers("profile", profile) for profile in drift.loads]
    for request, (load, output) in enumerate(zip(loads, instance.outputs, strict=True)):
        wrong = ""
        if len(load) != output:
            wrong = f"has {len(load)} loads, but it makes {output} tokens; pass one load per token"
        elif load.min() < 0:
            wrong = f"falls to {load.min()}, below zero"
        if wrong:
            raise InstanceError(f"request {request}: its profile {wrong}", request=request)
    lengths = np.array([len(load) for load in loads])
    growth = np.zeros(horizon + 1, dtype=np.int64)
    for age in range(1, horizon + 1):
        alive = [int(load[age] - load[0]) for load in loads if len(load) > age]
        growth[age] = round(sum(alive) / len(alive)) if alive else growth[age - 1]
    return Gains(
        sizes=np.array([load[0] for load in loads]),
        gains=np.concatenate([load - load[0] for load in loads]),
        first=np.cumsum(lengths) - lengths,
        last=lengths - 1,
        growth=growth,
        reserved=np.array([load.max() for load in loads]),
    )


def longest_outputs(instance: Instance) -> IntArray:
    """Return the outputs that requests are planned with: upper bounds where there are any."""
    return instance.outputs if instance.output_upper is None else instance.output_upper


WARM_UP = 300  # steps; longer than the mean output of the calibrated workload
STUCK = 20  # times as long as all wait under first come, first served


@dataclass(frozen=True, eq=False, repr=False)
class ClusterRun(Run):
    r"""A run of one policy on one cluster, until all was done or for a number of steps.

    Attributes
    ----------
    revealed, starts
        Steps at which the router saw each request, and at which it was admitted, its first step; -1
        if never; shape (n,).
    workers
        Where each request ran, -1 if nowhere; shape (n,).
    max_work, total_work
        :math:`\max_g a_g L_g` and :math:`\sum_g a_g L_g` by step: load times slowness, shape (K,).
    total_load
        :math:`\sum_g L_g` by step, tokens.
    active, waiting
        Running requests, and requests that wait after admission, by step.
    step_seconds
        Length :math:`\Delta t` of each step (BF-IO Eq. 6). Where arrivals are in seconds, an idle
        step lasts until the next one.
    watt
        Power of all workers, by step.
    loads
        Load of each worker by step, shape (K, G); None where it was not recorded.
    lookahead
        The window of BF-IO, the longest if it adapts; None for other policies.
    seconds
        Time that the run took on this machine, without compilation.
    """

    instance: Instance
    cluster: Cluster
    policy: str
    revealed: IntArray
    starts: IntArray
    workers: IntArray
    max_work: IntArray
    total_work: IntArray
    total_load: IntArray
    active: IntArray
    waiting: IntArray
    step_seconds: FloatArray
    watt: FloatArray
    loads: IntArray | None
    lookahead: int | None
    seconds: float
    knows: Knowledge | None = None

    clock = None
    unit = "s"
    preemptions = preempted_tokens = 0  # a request that was admitted runs to its end

    def __repr__(self) -> str:
        return (
            f"<ClusterRun {self.policy!r}: {self.steps} steps, "
            f"{int(self.completed.sum())} of {len(self.instance)} requests done>"
        )

    def __str__(self) -> str:
        metrics = self.metrics()
        tpot = "none" if metrics["tpot"] is None else f"{metrics['tpot'] * 1e3:.2f} ms"
        return (
            f"{self.policy}{self._known}: {metrics['steps']:,} steps, imbalance "
            f"{metrics['imbalance_tokens']:,.0f} tokens ({metrics['imbalance_ms']:.2f} ms, "
            f"{metrics['idle_share']:.1%} idle), {metrics['throughput']:,.0f} tokens/s, TPOT "
            f"{tpot}, {metrics['energy_joule'] / 1e3:,.1f} kJ, max wait "
            f"{metrics['max_wait_steps']:,} steps, {metrics['stuck']:,} stuck"
        )

    @property
    def steps(self) -> int:
        """Number of steps :math:`K` that ran."""
        return len(self.max_work)

    @property
    def imbalance(self) -> IntArray:
        r""":math:`G \max_g a_g L_g - \sum_g a_g L_g` by step (BF-IO Eq. 2), shape (K,)."""
        return self.cluster.workers * self.max_work - self.total_work

    @cached_property
    def times(self) -> FloatArray:
        """Seconds at the start of each step, and at the end of the last; shape (K + 1,)."""
        return np.concatenate([[0.0], np.cumsum(self.step_seconds)])

    @property
    def completions(self) -> IntArray:
        """First step at which a request no longer runs, -1 where it has not ended; shape (n,)."""
        return np.where(self.completed, self.starts + self.instance.outputs, -1)

    @property
    def completed(self) -> BoolArray:
        """Whether each request has made all its tokens, shape (n,)."""
        return (self.starts >= 0) & (self.starts + self.instance.outputs <= self.steps)

    @property
    def waits(self) -> IntArray:
        """Steps from being revealed to admission, or the end of the run; -1 if not revealed."""
        until = np.where(self.starts >= 0, self.starts, self.steps)
        return np.where(self.revealed >= 0, until - self.revealed, -1)

    @property
    def started_s(self) -> FloatArray:
        """Second at which each request started, NaN where it did not; shape (n,)."""
        return np.where(self.starts >= 0, self.times[self.starts], np.nan)

    @property
    def finished_s(self) -> FloatArray:
        """Second at which each request ended, NaN where it did not; shape (n,)."""
        return np.where(self.completed, self.times[self.completions], np.nan)

    @property
    def arrived_s(self) -> FloatArray:
        """Second at which each request arrived, or its step of arrival began; shape (n,)."""
        arrivals, seconds = self.instance.arrivals, self.instance.seconds_per_step
        if seconds is not None:
            return arrivals.astype(np.float64) * seconds
        return self.times[np.minimum(arrivals, self.steps)]

    @property
    def latencies(self) -> FloatArray:
        """Seconds from arrival to the end; NaN where unfinished."""
        return self.finished_s - self.arrived_s

    @property
    def facts(self) -> World:
        """What is true of the run; no bound is known where workers wait for each other."""
        return World(self.instance.fingerprint, clock=(), unfinished=self.unfinished)

    @property
    def makespan(self) -> float:
        """Second at which the last step ended."""
        return float(self.times[-1])

    @property
    def _figure(self) -> tuple[str, object]:
        return "plot_power", self

    def check(self) -> list[Violation]:
        """Return what is wrong with the run, rebuilt from starts and workers alone.

        The list is empty if no request starts before it arrives, and no worker runs more requests
        than it has slots.
        """
        found: list[Violation] = []
        begun = self.starts >= 0
        usages: FloatArray | IntArray = self.starts
        limits: FloatArray | IntArray = self.instance.arrivals
        if self.instance.seconds_per_step is not None:
            # Seconds are sums over all steps, and rounded as such.
            usages, limits = self.started_s + 1e-9 * self.makespan, self.arrived_s
        for request in np.flatnonzero(begun & (usages < limits)).tolist():
            usage, limit = usages[request].item(), limits[request].item()
            text = f"starts at {usage:g} s but arrives at {limit:g} s"
            text = "" if isinstance(limit, int) else text
            numbers = self.starts[request], usage, limit
            found.append(violation(self.instance, "arrival", request, numbers, text))
        slots = self.cluster.per_worker("slots")
        for worker in range(self.cluster.workers):
            there = begun & (self.workers == worker)
            ends = np.minimum(self.starts[there] + self.instance.outputs[there], self.steps)
            changes = np.bincount(self.starts[there], minlength=self.steps + 1)
            running = np.cumsum(changes - np.bincount(ends, minlength=self.steps + 1))
            for step in np.flatnonzero(running > slots[worker]).tolist():
                count, limit = int(running[step]), int(slots[worker])
                sentence = f"worker {worker} runs {count} requests at step {step}, in {limit} slots"
                found.append(Violation("slots", -1, "", step, count, limit, step, sentence))
        return found

    def metrics(self, warm_up: float | None = None) -> JSON:
        r"""Compute the metrics of BF-IO Section 6.3 and App. D.

        The warm-up is left out of all averages and sums: so many steps, or where it is None 300,
        or a quarter of a shorter run.

        - ``imbalance_tokens``: mean imbalance (Eq. 7), and ``imbalance_ms`` the idle time
          :math:`t_\ell` times it, summed over workers - what Table 1 prints;
        - ``idle_share``: that over the time of all workers;
        - ``throughput``: tokens per second (Eq. 8);
        - ``tpot``: seconds per token, mean over requests that ended (Eq. 9), None if none did;
        - ``energy_joule`` (Eq. 10, D47) and ``power_watt``, its mean over time;
        - ``mean_wait_steps`` and ``max_wait_steps`` from being revealed to being admitted,
          requests that still wait included, over the whole run;
        - ``stuck``: requests that wait at the end for more than 20 times as long as first
          come, first served would let all wait (mean waiting over admissions per step);
        - ``completed``, ``running``, ``waiting`` (if revealed): requests at the end of the
          run; ``tokens_completed`` and so on: their prompts and outputs;
        - ``steps`` and ``seconds`` that were measured;
        - ``due`` and ``missed``, where there are deadlines: requests whose deadline is after
          the warm-up and within the run, and those of them not completed by it.

        Examples
        --------
        >>> from optsched import Cluster, Instance, run
        >>> ran = run(Instance([5, 6, 7], [2, 2, 2], 99), "fcfs", cluster=Cluster(2, 2))
        >>> ran.metrics(warm_up=0)["imbalance_tokens"]
        6.5
        """
        warm_up = self._warm_up(warm_up)
        seconds = self.step_seconds[warm_up:]
        imbalance = float(self.imbalance[warm_up:].mean())
        idle = self.cluster.seconds_per_token * imbalance
        energy = float(np.dot(self.watt[warm_up:], seconds))
        done = self.completed & (self.completions > warm_up)
        per_token = (self.finished_s[done] - self.started_s[done]) / self.instance.outputs[done]
        waits = self.waits[self.revealed >= 0]
        total_s = float(seconds.sum())
        return {
            "imbalance_tokens": imbalance,
            "imbalance_ms": idle * 1e3,
            "idle_share": idle * len(seconds) / (self.cluster.workers * total_s),
            "throughput": float(self.active[warm_up:].sum()) / total_s,
            "tpot": float(per_token.mean()) if len(per_token) else None,
            "energy_joule": energy,
            "power_watt": energy / total_s,
            "mean_wait_steps": float(waits.mean()) if len(waits) else 0.0,
            "max_wait_steps": int(waits.max()) if len(waits) else 0,
            "stuck": self.stuck,
            "completed": int(self.completed.sum()),
            "steps": len(seconds),
            "seconds": total_s,
            **self._backlog(),
            **self._deadlines(warm_up),
        }

    def _warm_up(self, warm_up: float | None) -> int:
        """Return how many steps are not measured."""
        if warm_up is None:
            warm_up = min(WARM_UP, self.steps // 4)
        warm_up = as_count("warm_up", warm_up, 0)
        if not 0 <= warm_up < self.steps:
            raise InstanceError(
                f"the run has {self.steps} steps, too few to pass a warm-up of {warm_up}; give a "
                "longer trace or a shorter warm-up"
            )
        return warm_up

    def _backlog(self) -> dict[str, int]:
        """Return requests that run, or wait in view, at the end, and their tokens."""
        tokens, running = self.instance.peaks, (self.starts >= 0) & ~self.completed
        waiting = (self.revealed >= 0) & (self.starts < 0)
        return {
            "running": int(running.sum()),
            "waiting": int(waiting.sum()),
            "tokens_completed": int(tokens[self.completed].sum()),
            "tokens_running": int(tokens[running].sum()),
            "tokens_waiting": int(tokens[waiting].sum()),
        }

    def _deadlines(self, warm_up: int) -> JSON:
        if self.instance.deadlines is None:
            return {}
        deadlines, unit = self.instance.deadlines, self.instance.seconds_per_step
        on_time, due = self.completed & (self.completions <= deadlines), deadlines <= self.steps
        due &= deadlines > warm_up
        if unit is not None:
            last = deadlines * unit
            on_time = self.finished_s <= last * (1 + 1e-9)  # seconds are sums over all steps
            due = (last > self.times[warm_up]) & (last <= self.makespan)
        return {"due": int(due.sum()), "missed": int((due & ~on_time).sum())}

    @property
    def stuck(self) -> int:
        """Requests that wait at the end, and have waited 20 times as long as the mean."""
        admitted = int((self.starts >= 0).sum())
        fair = float(self.waiting.sum()) / max(admitted, 1)
        still = (self.revealed >= 0) & (self.starts < 0)
        return int((self.waits[still] > STUCK * fair).sum())

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per request, indexed by label; values that do not exist are missing."""
        frame = data_frame(
            {
                "prompt_tokens": self.instance.prompts,
                "output_tokens": self.instance.outputs,
                "arrival": self.instance.arrivals,
                "revealed": self.revealed,
                "start": self.starts,
                "worker": self.workers,
                "completion": self.completions,
                "arrived_s": self.arrived_s,
                "started_s": self.started_s,
                "finished_s": self.finished_s,
            },
            index=[self.instance.label(i) for i in range(len(self.instance))],
        )
        steps = ["revealed", "start", "worker", "completion"]
        frame[steps] = frame[steps].astype("Int64").mask(frame[steps] < 0)
        return frame
