"""What a sweep is asked to do, and one run of it."""

from __future__ import annotations

import inspect
import itertools
import json
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched._internal.arguments import whole
from optsched._internal.aside import stopwatch
from optsched._internal.fingerprints import fingerprint
from optsched._version import __version__
from optsched.errors import InstanceError, OptschedError, nearest, require_known
from optsched.experiments.cells import Own, carried, carried_option, loaded, name_of, rehearse
from optsched.policies import get_policy, with_rule
from optsched.problem.forecasts import check_intervals
from optsched.problem.instance import Instance
from optsched.problem.premises import strongest
from optsched.simulate import RunSettings
from optsched.simulate import run as run_policy
from optsched.simulate.dispatch import fitted
from optsched.simulate.runners import raise_if_interrupted
from optsched.simulate.settings import ON_CLUSTER
from optsched.workloads import FAMILIES, family, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from optsched._internal.files import JSON
    from optsched.bounds.ascent import Bound, BoundMethod


#: Under this name `optsched.solve` stands among the policies.
HINDSIGHT = "hindsight"
OF_SOLVE = "method", "time_limit"  # what it takes beside `SolveParams`
OK = "ok"

Parameters = tuple[tuple[str, Any], ...]
Table = Mapping[str, Any]  # of TOML


@dataclass(frozen=True)
class Source:
    """How an instance is made: by parameters as in the file, the trace or the family first."""

    parameters: Parameters
    trace: Instance | None = None  # read once, where the sweep is planned; None for a family

    def make(self, seed: int) -> Instance:
        """Return the instance; the seed draws that of a family."""
        if self.trace is not None:
            return self.trace
        parameters = dict(self.parameters)
        return family(parameters.pop("family"), seed=seed, **parameters)

    @cached_property
    def fingerprint(self) -> str:
        """What tells it from all others, however they differ."""
        return fingerprint(replace(self, parameters=tuple(sorted(self.parameters, key=repr))))


@dataclass(frozen=True)
class SweepRun:
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

    def provenance(self) -> JSON:
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


def perform(run: SweepRun) -> JSON:
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


def killed(run: SweepRun) -> JSON:
    """Return the row of a run whose process was killed whenever it was tried."""
    reason = "the process was killed whenever it did this run; it may need more memory"
    return run.provenance() | {"status": reason}


def _executed(planned: SweepRun, instance: Instance) -> JSON:
    policy = loaded(planned.policy)
    options = {name: loaded(value) for name, value in planned.options}
    began = stopwatch()
    execution = run_policy(instance, policy, seed=planned.seed, **options)
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


def _solved(run: SweepRun, instance: Instance) -> JSON:
    from optsched.optimum.solving import solve
    from optsched.optimum.state import SolveParams

    options = dict(run.options)
    own = {name: options.pop(name) for name in OF_SOLVE if name in options}
    stop = threading.Event()  # which Ctrl-C sets: what was found by then is no result to keep
    result = solve(instance, params=SolveParams(seed=run.seed, stop=stop, **options), **own)
    if stop.is_set():
        raise KeyboardInterrupt
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


def _claims(execution: Any, instance: Instance) -> JSON:
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


#: Of `optsched.solve`; others would make its costs differ from those of the policies beside it.
HINDSIGHT_OPTIONS = (*OF_SOLVE, "work", "threads", "memory_limit")
KEYS = ("name", "seeds", "bound", "instances", "policies")
MAX_SEEDS = 1_000_000


@dataclass(frozen=True)
class SweepPlan:
    """All runs of a sweep."""

    name: str
    runs: tuple[SweepRun, ...]  # every run once; those of one instance follow each other
    config: JSON  # as in the file

    @property
    def key(self) -> str:
        """What the sweep is: all its runs."""
        return fingerprint(sorted(run.key for run in self.runs))


def read_plan(config: str | Path | Table, seed: int = 0) -> SweepPlan:
    """Read a sweep and check it, so that no run is refused that could have been refused before."""
    where, base, content = _opened(config)
    _check_keys(content, KEYS, where)
    name = content.get("name", where.removesuffix(".toml"))
    bound = content.get("bound", False)
    if not isinstance(name, str) or not isinstance(bound, bool):
        raise OptschedError(f"{where}: name must be a text in quotes, and bound true or false")
    if type(seed) is not int:
        raise OptschedError(f"seed is {seed!r}, but must be a whole number")
    seeds = [each + seed for each in _seeds(content.get("seeds", 1), where)]
    if max(seeds) >= 2**63:  # a column of the results
        raise OptschedError(f"{where}: the largest seed is {max(seeds)}, but must be below 2^63")
    sources: list[Source] = []
    for at, table in _tables(content, "instances", where):
        sources += _sources(table, at, base, seeds[0])
    policies: list[tuple[str | Own, Parameters]] = []
    for at, table in _tables(content, "policies", where):
        policies += _policies(table, at, sources[0].make(seeds[0]))
    policies = [(policy, _in_one_way(options, policies)) for policy, options in policies]
    own = _check_names(policies, where)
    runs = [
        SweepRun(source, policy, options, each, bound)
        for source, each, (policy, options) in itertools.product(sources, seeds, policies)
    ]
    _check_distinct(runs, where)
    known = json.loads(json.dumps(content, default=name_of))
    return SweepPlan(
        name, tuple(runs), known | {"seeds": seeds} | ({"own code": own} if own else {})
    )


def _opened(config: str | Path | Table) -> tuple[str, Path, Table]:
    """Return what to call the sweep in messages, where its traces are, and its content."""
    if isinstance(config, Mapping):
        return "sweep", Path(), config
    if not isinstance(config, (str, PathLike)):
        raise OptschedError(f"the sweep is {config!r}, but must be a TOML file or a mapping")
    path = Path(config)
    try:
        return path.name, path.parent, tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as reason:
        raise OptschedError(f"{path} is not valid TOML: {reason}") from None
    except OSError as error:
        raise OptschedError(f"cannot read the sweep {path}: {error.strerror}") from None


def _seeds(seeds: object, where: str) -> list[int]:
    counts = [whole(each) for each in (seeds if isinstance(seeds, list) else [seeds])]
    found = [each for each in counts if each is not None and each >= 0]
    if not isinstance(seeds, list) and found and 1 <= found[0] <= MAX_SEEDS:
        return list(range(found[0]))
    if isinstance(seeds, list) and seeds and len(found) == len(seeds):
        return found
    raise OptschedError(
        f"{where}: seeds is {seeds!r}, but must be how many there are, up to {MAX_SEEDS:,}, or a "
        "list of whole numbers from 0"
    )


def _tables(content: Table, key: str, where: str) -> Iterator[tuple[str, Any]]:
    tables = content.get(key)
    if not isinstance(tables, list) or not tables:
        raise OptschedError(f"{where} names no {key}; add at least one table [[{key}]]")
    for number, table in enumerate(tables, 1):
        at = f"{where}, {key} {number}"
        if not isinstance(table, dict):
            raise OptschedError(f"{at}: {table!r} is not a table; write it under [[{key}]]")
        yield at, table


def _sources(table: Table, at: str, base: Path, seed: int) -> Iterator[Source]:
    """Make every instance once, so that what cannot be made is rejected before anything is run."""
    kinds = [kind for kind in ("family", "trace") if kind in table]
    if len(kinds) != 1:
        _check_keys(table, {"family", "trace", *_keywords_of_traces(), *_all_of_families()}, at)
        raise OptschedError(f"{at}: name either a family or a trace")
    kind = kinds[0]
    for name in _listed(table[kind]):
        known = _keywords_of_traces() if kind == "trace" else _keywords_of_family(name, at)
        _check_keys(table, [kind, *known], at)
    for parameters in _product(table, kind, at):
        try:
            trace = _trace(base, **parameters) if kind == "trace" else None
            if isinstance(given := parameters.get("trace"), Instance):
                parameters["trace"] = given.name
            source = Source(tuple(parameters.items()), trace)
            source.make(seed)
        except MemoryError:
            reason = "that needs more memory than there is; choose fewer requests"
        except TypeError:
            reason = "a value is not of the kind that is needed, such as a number"
        except (OptschedError, OSError) as error:
            reason = str(error.strerror if isinstance(error, OSError) else error)
        else:
            yield source
            continue
        raise InstanceError(f"{at} ({_shown(parameters.items())}): {reason}")


def _trace(base: Path, trace: object, **parameters: Any) -> Instance:
    if isinstance(trace, Instance):
        return trace.replace(**parameters) if parameters else trace
    if not isinstance(trace, str) or trace.startswith("family:"):
        raise OptschedError(
            'a trace is the name of a file in quotes; write a family as family = "uniform"'
        )
    return read_trace(base / trace, **parameters)


def _policies(table: Table, at: str, instance: Instance) -> Iterator[tuple[str | Own, Parameters]]:
    if "name" not in table:
        raise OptschedError(f"{at}: the key 'name' is missing; it names a policy, or several")
    names = _listed(table["name"])
    if HINDSIGHT in names and len(names) > 1:
        raise OptschedError(f"{at}: {HINDSIGHT} has options of its own; write a table of its own")
    without = ("seed", "cluster", *ON_CLUSTER)
    known = HINDSIGHT_OPTIONS if names == [HINDSIGHT] else _keywords(RunSettings, *without)
    _check_keys(table, ["name", *known], at)
    for options in _product(table, "name", at):
        try:
            policy = _checked(options.pop("name"), options, instance)
        except OptschedError as error:
            raise type(error)(f"{at}: {error}") from None
        yield policy, tuple(options.items())


def _in_one_way(options: Parameters, policies: list[tuple[str | Own, Parameters]]) -> Parameters:
    """Write numbers of workers as text where others are memories: a column holds one kind."""
    every = [value for _, each in policies for name, value in each if name == "workers"]
    if not any(isinstance(value, str) for value in every):
        return options
    return tuple((name, str(value) if name == "workers" else value) for name, value in options)


def _check_names(policies: list[tuple[str | Own, Parameters]], where: str) -> dict[str, str]:
    """Return fingerprints of what is the user's own by name, refusing two things of one name."""
    found: dict[str, str] = {}
    for policy, options in policies:
        for each in (policy, *(value for _, value in options)):
            code = each.fingerprint if isinstance(each, Own) else ""
            if isinstance(each, str | Own) and found.setdefault(str(each), code) != code:
                raise OptschedError(f"{where}: there are two of the name {str(each)!r}; rename one")
    return {name: code for name, code in found.items() if code}


def _checked(name: Any, options: JSON, instance: Instance) -> str | Own:
    """Check a policy and its options, and take its rule out of them into its name."""
    if isinstance(name, str) and name == HINDSIGHT:
        from optsched.optimum.solving import METHODS
        from optsched.optimum.state import SolveParams

        method = str(options.get("method", "auto"))
        require_known("method", method, METHODS, OptschedError)
        ours = {key: value for key, value in options.items() if key not in OF_SOLVE}
        params = SolveParams(**ours)
        params.check_method(method)
        params.options(options.get("time_limit"))
        return name
    fitted(name, RunSettings(**options))
    policy = carried(with_rule(get_policy(name), options.pop("rule", "prefix")))
    if "intervals" in options:
        check_intervals(options["intervals"])
    for key in options:
        options[key] = carried_option(key, options[key])
    if any(isinstance(each, Own) for each in (policy, *options.values())):
        rehearse(policy, instance, **options)
    return policy


def _check_distinct(runs: list[SweepRun], where: str) -> None:
    seen = set()
    for run in runs:
        if run.key in seen:
            raise OptschedError(
                f"{where}: the run of {run.policy} on {_shown(run.source.parameters)} with seed "
                f"{run.seed} is asked for twice; take one out"
            )
        seen.add(run.key)


def _shown(parameters: Iterable[tuple[str, object]]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in parameters)


def _check_keys(table: Table, known: Iterable[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise OptschedError(f"{where}: unknown key {key!r}; {nearest(key, known)}")


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _product(table: Table, first: str, at: str) -> Iterator[JSON]:
    """Yield every choice of one value per key, the named key before the others."""
    keys = [first, *(key for key in table if key != first)]
    for key in keys:
        if table[key] == []:
            raise OptschedError(f"{at}: {key} is an empty list; name at least one value")
    for values in itertools.product(*(_listed(table[key]) for key in keys)):
        yield dict(zip(keys, values, strict=True))


def _keywords(function: Callable[..., Any], *without: str) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind != p.VAR_KEYWORD and p.name not in without]


def _keywords_of_traces() -> list[str]:
    return _keywords(read_trace, "path", "note")


def _keywords_of_family(name: object, at: str) -> list[str]:
    if name not in FAMILIES:
        raise InstanceError(f"{at}: there is no family {name!r}; {nearest(str(name), FAMILIES)}")
    return [*_keywords(family, "name", "seed"), *FAMILIES[name].parameters]


def _all_of_families() -> set[str]:
    return {key for name in FAMILIES for key in _keywords_of_family(name, "")}
