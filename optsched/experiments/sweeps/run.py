"""One run of a sweep: what it is, and the row that it becomes, wherever it is carried out."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from optsched._internal.fingerprints import fingerprint
from optsched._internal.loading import stopwatch
from optsched._version import __version__
from optsched.errors import OptschedError
from optsched.experiments.own import Own, loaded
from optsched.problem.premises import strongest

if TYPE_CHECKING:
    from optsched.bounds.one_worker import Bound, BoundMethod
    from optsched.problem.instance import Instance

#: Under this name `optsched.solve` stands among the policies.
HINDSIGHT = "hindsight"
OF_SOLVE = "method", "time_limit"  # what it takes beside `SolveParams`
OK = "ok"

Parameters = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Source:
    """How an instance is made: by parameters as in the file, the trace or the family first."""

    parameters: Parameters
    trace: Instance | None = None  # read once, where the sweep is planned; None for a family

    def make(self, seed: int) -> Instance:
        """Return the instance; the seed draws that of a family."""
        if self.trace is not None:
            return self.trace
        from optsched.workloads import family

        parameters = dict(self.parameters)
        return family(parameters.pop("family"), seed=seed, **parameters)

    @cached_property
    def fingerprint(self) -> str:
        """What tells it from all others, however they differ."""
        return fingerprint(replace(self, parameters=tuple(sorted(self.parameters, key=repr))))


@dataclass(frozen=True)
class Run:
    """One policy on one instance with one seed."""

    source: Source
    policy: str | Own  # the full name, rule and parameters included; or "hindsight"
    options: Parameters  # of `optsched.run`, or of `optsched.solve` for "hindsight"
    seed: int
    bound: bool = False  # whether the row is to have the instance's lower bound

    @cached_property
    def key(self) -> str:
        """What the run is, as a hash that is the same on every machine."""
        source: Any = self.source.fingerprint  # found once for all runs on it
        options = tuple(sorted(self.options, key=repr))
        return fingerprint(replace(self, source=source, options=options))[:32]

    def provenance(self) -> dict[str, Any]:
        """Return the columns that say what was run."""
        return {
            "key": self.key,
            **dict(self.source.parameters),
            "source": json.dumps(dict(self.source.parameters), default=str),
            "policy": str(self.policy),
            "policy_fingerprint": getattr(self.policy, "fingerprint", None),
            **{name: str(v) if isinstance(v, Own) else v for name, v in self.options},
            "seed": self.seed,
            "version": __version__,
        }


def perform(run: Run) -> dict[str, Any]:
    """Carry a run out and return its row; any error becomes its status."""
    row = run.provenance()
    try:
        instance = _instance(run.source, run.seed)
        row |= {
            "instance": instance.name,
            "requests": len(instance),
            "memory": instance.memory,
            "fingerprint": instance.fingerprint,
        }
        metrics = _solved(run, instance) if run.policy == HINDSIGHT else _executed(run, instance)
        row = row | metrics | row  # where a metric has the name of an option, the option stays
    except Exception as error:
        # One failing run must not end a sweep of thousands, so whatever it is becomes a sentence.
        row["status"] = " ".join(str(error).split())
        if not isinstance(error, OptschedError):
            row["status"] = f"{type(error).__name__}: {row['status']}"
    return row


def killed(run: Run) -> dict[str, Any]:
    """Return the row of a run whose process was killed whenever it was tried."""
    reason = "the process was killed whenever it did this run; it may need more memory"
    return run.provenance() | {"status": reason}


def _executed(planned: Run, instance: Instance) -> dict[str, Any]:
    from optsched.policies import get_policy
    from optsched.simulate import run
    from optsched.simulate.runners import raise_if_interrupted

    policy = loaded(planned.policy)
    options = {name: loaded(value) for name, value in planned.options}
    began = stopwatch()
    execution = run(instance, policy, seed=planned.seed, **options)
    seconds = stopwatch() - began
    raise_if_interrupted(execution)
    metrics = {
        name: json.dumps(value) if isinstance(value, dict | list) else value
        for name, value in execution.metrics().items()
    }
    done, all_of_them = metrics["completed"], metrics["requests"]
    status = OK if done == all_of_them else f"completes {done} of {all_of_them} requests"
    rule = getattr(get_policy(policy), "rule", None)
    claims = _claims(execution, instance) if planned.bound else {}
    told = {"knows": execution.knows, "rule": rule, "status": status, "seconds": seconds}
    return told | metrics | claims


def _solved(run: Run, instance: Instance) -> dict[str, Any]:
    from optsched.optimum.params import SolveParams
    from optsched.optimum.solving import solve

    options = dict(run.options)
    own = {name: options.pop(name) for name in OF_SOLVE if name in options}
    result = solve(instance, params=SolveParams(seed=run.seed, **options), **own)
    return {
        "knows": "outputs",
        "status": OK,
        "seconds": result.seconds,
        "completed": len(instance),
        **result.schedule.metrics(),
        "bound": result.bound,
        "bound_method": result.proof,
        "gap": result.gap,
        "proven_optimal": result.proven_optimal,
        "stopped": result.status,
    }


def _claims(execution: Any, instance: Instance) -> dict[str, Any]:
    """Return the bound that covers a run and the gap to it, or why there is none."""
    bounds = [_bound(instance)]
    if execution.split:  # the one bound that allows preempted requests to go on
        bounds.append(_bound(instance, "closed-form"))
    proven, why = strongest(bounds, execution.facts)
    if proven is None:
        return {"gap": None, "why_no_gap": why}
    latency = execution.total_latency
    gap = (latency - proven.value) / latency
    return {"bound": proven.value, "bound_method": proven.method, "gap": gap}


# Runs of one instance follow each other, so a process that has made it will need it again.
@lru_cache(maxsize=4)
def _instance(source: Source, seed: int) -> Instance:
    return source.make(seed)


@lru_cache(maxsize=4)
def _bound(instance: Instance, method: BoundMethod = "auto") -> Bound:
    from optsched.bounds.bound import bound

    return bound(instance, method)
