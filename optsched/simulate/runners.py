"""What runs a policy of each kind, in steps and on a clock: the one registry of runners."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from optsched._internal.arguments import MAX_TOKENS
from optsched._internal.aside import interruptible_kernel
from optsched._internal.extensions import added
from optsched.admission import require_steps
from optsched.clock import LinearClock
from optsched.errors import PolicyError
from optsched.policies.base import window_of
from optsched.problem.execution import Execution, Loop, Stall, kept_before
from optsched.problem.forecasts import Beliefs, forecast, steps_ahead
from optsched.problem.work import work_by_output
from optsched.simulate.replicas import EngineWorkers, OrderedWorkers, Replicas
from optsched.simulate.seconds import serving
from optsched.simulate.seconds.batches import admit_on_clock, new_log, timing
from optsched.simulate.seconds.execution import (
    ClockedRun,
    admitted_run,
    requests_of,
    served_run,
)
from optsched.simulate.seconds.serving import serve_waiting
from optsched.simulate.steps import chance, decisions
from optsched.simulate.steps.chance import tables
from optsched.simulate.steps.decisions import (
    admit_chosen,
    admit_in_order_of,
    new_worker,
    run_decisions,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import IntArray
    from optsched.clock import Clock
    from optsched.policies import Policy
    from optsched.policies.base import BatchSelector
    from optsched.policies.robust import ChancePolicy, IntervalPolicy, OverflowPolicy
    from optsched.problem.premises import Preemption
    from optsched.simulate.seconds.batches import BatchLog
    from optsched.simulate.settings import Task

_MAX_URGENCY = 2.0**55  # of a request with its upper bound; six times it fits


@dataclass(frozen=True, eq=False)
class Attempts:
    """Everything that happened in a run."""

    requests: IntArray
    starts: IntArray
    tokens: IntArray
    running: int
    log: BatchLog
    loop: Loop | None = None
    stall: Stall | None = None
    preemption: Preemption = "restarted"

    @property
    def before(self) -> IntArray:
        """Tokens that each attempt kept of those before it."""
        return kept_before(self.requests, self.tokens, self.preemption)


def in_steps(task: Task, attempts: Attempts) -> Execution:
    """Return the attempts of a run whose batches take one step each as its execution."""
    steps = attempts.log.spans[attempts.starts, 0].astype(np.int64)
    return Execution(
        task.instance,
        task.policy.name,
        attempts.requests,
        steps,
        attempts.tokens,
        task.intervals,
        attempts.loop,
        attempts.stall,
        preemption=attempts.preemption,
    )


def run_decided(task: Task) -> Attempts:
    """Run a policy that is a function."""
    intervals = "exact" if task.intervals is None else task.intervals
    if task.policy.reads == "nothing":
        intervals = f"common:1,{MAX_TOKENS}"
    known = forecast(task.instance, intervals, task.beliefs)
    attempts, running, log, given_up = run_decisions(task, known)
    stall = _stall(log.now[0].item(), task.patience, task.clock) if given_up else None
    kept: Preemption = "restarted" if task.policy.preemption == "none" else task.policy.preemption
    requests, starts, tokens = attempts
    return Attempts(requests, starts, tokens, running, log, stall=stall, preemption=kept)


def run_planned(task: Task) -> Attempts:
    """Run a policy that plans with intervals of the outputs."""
    instance, clock, intervals = task.instance, task.clock, task.intervals
    assert intervals is not None
    known = forecast(instance, intervals)
    require_steps(known.upper)
    policy: IntervalPolicy = task.policy.for_forecast(known)
    rules = chance.Rules(
        int(policy.order.startswith("mean-")),
        chance.OUTLIVED.index(policy.outlived),
        chance.PREEMPT.index(policy.preempt),
        policy.reserve(instance.memory, clock),
        task.seed,
    )
    requests, lower = requests_of(instance, clock), policy.first_plan(known)
    rates = _rates(task, policy, np.maximum(known.upper, instance.outputs))
    with timing(clock) as timer:
        attempts, running, log = interruptible_kernel(chance.run_planned, len(instance))(
            requests, lower, known.upper, rates, rules, new_log(), timer, task.until
        )
    return Attempts(attempts[0], attempts[1], attempts[2], running, log.finished())


def _rates(task: Task, policy: IntervalPolicy, longest: IntArray) -> IntArray:
    """Return a, b, c, shape (3, n): a request with output o has urgency a + b o + c o^2."""
    prompts, zeros = task.instance.prompts, np.zeros_like(longest)
    order = policy.order.removeprefix("mean-")
    if order == "random":  # all are equal, and ties are random
        return np.stack([zeros, zeros, zeros])
    if order == "bound":
        return np.stack([zeros, zeros + 1, zeros])
    if order == "area" or task.clock.unit == "steps":  # twice, and work in steps is memory-time
        return np.stack([zeros, 2 * prompts + 1, zeros + 1])
    if not isinstance(task.clock, LinearClock):
        raise PolicyError(
            f"policy {policy.name!r} needs a clock that is a weighted sum of what is in a batch, "
            f"but {task.clock.name} is a function; use area-posterior, or pass a LinearClock"
        )
    rates = np.stack(work_by_output(prompts.astype(np.float64), task.instance.memory, task.clock))
    most = (np.abs(rates) * np.stack([zeros + 1.0, longest, longest.astype(np.float64) ** 2])).max()
    # Up to the longest outputs, urgencies stay within 64 bits.
    whole: IntArray = np.rint(rates * (_MAX_URGENCY / most)).astype(np.int64)
    return whole


def run_by_chance(task: Task) -> Attempts:
    """Run a policy that admits what is likely to fit."""
    instance, clock = task.instance, task.clock
    assert task.intervals is not None
    policy: ChancePolicy = task.policy
    known = forecast(instance, task.intervals, task.beliefs)
    longest = int(known.upper.max())
    beliefs = known.beliefs or Beliefs.to_learn(known.prompts, longest)
    fixed, linear, square = policy.costs(known, clock)
    rules = chance.Chance(
        fixed, linear, square, policy.margin(clock), policy.passed, beliefs.prior, task.seed
    )
    requests, believed = requests_of(instance, clock), tables(beliefs, known)
    moments = chance.Moments(np.zeros_like(believed.beyond), np.zeros_like(believed.beyond))
    ahead, worker = steps_ahead(longest), new_worker(len(instance))
    with timing(clock) as timer:
        attempts, log = interruptible_kernel(chance.run_by_chance, len(instance))(
            requests, believed, moments, rules, ahead, worker, new_log(), timer, task.until
        )
    running = int(worker.now.active[0])
    return Attempts(attempts[0], attempts[1], attempts[2], running, log.finished())


def run_to_threshold(task: Task) -> Attempts:
    """Run a policy that admits to a threshold and clears where the memory overflows."""
    instance, clock = task.instance, task.clock
    policy: OverflowPolicy = task.policy
    rules = decisions.Thresholds(
        serving.share_of(1 - Fraction(str(policy.alpha)), instance.memory),
        1.0 if policy.beta is None else policy.beta,
        task.patience,
        task.seed,
    )
    requests, worker = requests_of(instance, clock), new_worker(len(instance))
    with timing(clock) as timer:
        attempts, log, outcome, since, lasted, looping = interruptible_kernel(
            decisions.run_to_threshold, len(instance)
        )(requests, rules, worker, new_log(), timer, task.until)
    loop = stall = None
    if outcome == decisions.LOOPS:
        members = tuple(looping.tolist())
        if clock.unit == "steps":  # none is admitted: the same at every step
            loop = Loop(int(since), max(1, int(lasted)), members)
        else:
            loop = Loop(since, lasted, members, clock.unit)
    elif outcome == decisions.STALLED:
        stall = _stall(since, int(lasted), clock)
    running = int(worker.now.active[0])
    return Attempts(attempts[0], attempts[1], attempts[2], running, log.finished(), loop, stall)


def _stall(time: float, idle: int, clock: Clock) -> Stall:
    return Stall(int(time) if clock.unit == "steps" else time, idle, clock.unit)


def of_attempts(task: Task, attempts: Attempts) -> ClockedRun:
    """Return the run in which these attempts were made."""
    instance = task.instance
    count = len(instance)
    first, last = np.full(count, -1), np.full(count, -1)
    made = attempts.before + attempts.tokens
    done = made == instance.outputs[attempts.requests]
    last[attempts.requests[done]] = (attempts.starts + attempts.tokens - 1)[done]
    gone = ~done
    gone[len(gone) - attempts.running :] = False
    back = attempts.requests[gone]
    held = instance.prompts[back] + made[gone]
    # Of the first attempt whose tokens were kept, unless the run was stopped before its batch.
    kept = ~gone if attempts.preemption == "restarted" else np.ones_like(gone)
    kept &= attempts.starts < len(attempts.log.spans)
    first[attempts.requests[kept][::-1]] = attempts.starts[kept][::-1]
    return ClockedRun(
        instance,
        task.policy.name,
        task.clock,
        first_batch=first,
        last_batch=last,
        log=attempts.log,
        preempted=np.bincount(back, minlength=count),
        preempted_tokens_by_request=np.bincount(back, held, minlength=count).astype(np.int64),
        until=task.until,
        intervals=task.intervals,
        loop=attempts.loop,
        stall=attempts.stall,
        preemption=attempts.preemption,
    )


def order_on_clock(task: Task) -> ClockedRun:
    """Run an order of requests under its rule."""
    _check_rule(task, "prefix", "skip", "window")
    return _admitted(task, task.policy.order(task.instance, task.clock))


def batches_on_clock(task: Task) -> ClockedRun:
    """Run a choice of batches under the prefix rule."""
    _check_rule(task, "prefix")
    return _admitted(task, task.policy.selector(task.instance))


def _check_rule(task: Task, *offered: str) -> None:
    if task.policy.rule.partition(":")[0] not in offered:
        raise PolicyError(
            f"policy {task.policy.name!r}: on a clock the rule {task.policy.rule!r} is not "
            "offered, as it would plan all waiting requests again before every batch; use prefix, "
            "or skip or window with a fixed order"
        )


def _admitted(task: Task, order: IntArray | BatchSelector) -> ClockedRun:
    requests, limits = requests_of(task.instance, task.clock), window_of(task.policy.rule)
    starts, log = admit_on_clock(requests, order, task.clock, limits=limits, until=task.until)
    return admitted_run(task, starts, log)


def serve_engine(task: Task) -> ClockedRun:
    """Run a serving engine."""
    policy, requests = task.policy, requests_of(task.instance, task.clock)
    how, limits = serving.BATCHING.index(policy.batching), serving.limits_of(policy, task.instance)
    served, log = serving.serve(requests, task.clock, how, limits, task.until)
    return served_run(task, served, log, "recomputed")


def serve_in_queues(task: Task) -> ClockedRun:
    """Run a policy that takes requests in when enough of them wait."""
    requests = requests_of(task.instance, task.clock)
    queues = task.policy.queues(task.instance, task.clock, requests.arrivals)
    served, log = serve_waiting(requests, task.clock, queues, task.until)
    return served_run(task, served, log, "lost")


class Runner(NamedTuple):
    """How policies of a kind are run."""

    in_steps: Callable[[Task], Execution] | None  # None where batches must take time
    on_clock: Callable[[Task], ClockedRun]
    attempts: Callable[[Task], Attempts] | None = None  # of policies that may preempt
    paused: type[Replicas] | None = None  # workers that a router looks at between batches

    def run(self, task: Task) -> Execution | ClockedRun:
        """Run a policy in steps or on a clock."""
        if task.timed:
            return self.on_clock(task)
        assert self.in_steps is not None
        return self.in_steps(task)


def _of_attempts(attempts: Callable[[Task], Attempts]) -> Runner:
    """Return the runner of policies that may preempt requests, given what finds their attempts."""
    return Runner(
        lambda task: in_steps(task, attempts(task)),
        lambda task: of_attempts(task, attempts(task)),
        attempts,
    )


def raise_if_interrupted(run: Execution | ClockedRun) -> None:
    """Raise KeyboardInterrupt where Ctrl-C struck a rolling horizon that finished all the same."""
    if run.decisions is not None and run.decisions.interrupted:
        raise KeyboardInterrupt


_RUNNERS: dict[str, Runner] = {
    "order": Runner(admit_in_order_of, order_on_clock, paused=OrderedWorkers),
    "batch": Runner(admit_chosen, batches_on_clock),
    "plan": _of_attempts(run_planned),
    "chance": _of_attempts(run_by_chance),
    "threshold": _of_attempts(run_to_threshold),
    "decision": _of_attempts(run_decided),
    "engine": Runner(None, serve_engine, paused=EngineWorkers),
    "wait": Runner(None, serve_in_queues),
}


def runner_of(policy: Policy) -> Runner:
    """Return what runs policies of a kind; rooms above this one add some."""
    kind = policy.needs.kind
    return _RUNNERS.get(kind) or cast("Runner", added("runner", kind))
