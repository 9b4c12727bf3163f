"""`regret`: policies x loads x horizons x seeds; and from which load on a backlog grows."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched._internal.arguments import as_count, as_number
from optsched._internal.fingerprints import fingerprint
from optsched._version import __version__
from optsched.errors import OptschedError
from optsched.experiments.cells import INTERRUPTED, Places, finish
from optsched.experiments.own import PLAIN, Own, carried, loaded, name_of, rehearse
from optsched.experiments.regrets.cell import Cell, Task, perform
from optsched.experiments.regrets.result import Regret
from optsched.experiments.regrets.source import numbers_of, read_source, seeds_of
from optsched.experiments.store import JsonFolder, Store, locked, open_folder, refuse_begun
from optsched.policies import get_policies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.clock import Clock
    from optsched.experiments.cells import Progress
    from optsched.policies import Policy
    from optsched.problem.instance import Instance

    SomePolicy = str | Policy | Callable[[Any], Any]
    SomePolicies = SomePolicy | Sequence[SomePolicy]

_TOLERANCE = 0.05  # of the mean latency of requests that are alone
_MANIFEST = "_regret.json"
_VARYING = ("load", "rate", "horizon", "seed")  # of the instances of one regret


def regret(
    source: str | Path | Instance = "family:equal-prompts",
    policies: SomePolicies = ("mc-sf", "area"),
    loads: float | Sequence[float] = (0.8, 1.2),
    horizons: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] = 5,
    *,
    memory: int | None = None,
    clock: str | Clock | None = None,
    time_limit: float = 0.0,
    tolerance: float | None = None,
    jobs: Any = 1,
    on_progress: Callable[[Progress], object] | None = None,
) -> Regret:
    """Enclose the regret of policies between the best schedule known and a proven bound.

    The regret of an instance is the policy's mean latency minus the least possible one (Jaillet
    Def. 5.1, which takes the expectation). All policies see the same instances, and instances of
    different horizons share no request.

    Parameters
    ----------
    source
        ``family:NAME,key=number,...``, a trace or an instance. The lengths of a trace are drawn
        with replacement, and its requests arrive by a Poisson process.
    policies
        Names, policy objects, functions or "module:name", or one of them; they know the outputs.
    loads
        Memory-time that arrives per step over the memory: rate times mean :math:`A_i` over
        :math:`M`. On a clock the work that arrives per unit of time.
    horizons
        Numbers of steps, or seconds on a clock, in which requests arrive. The runs go on until all
        are completed. None takes 100, 1,000 and 10,000, or ten times as many until the first brings
        enough requests.
    seeds
        How many instances per load and horizon, with seeds from 0, or the seeds themselves. Bands
        need two, and more make them narrower.
    memory
        Memory of the worker in tokens; None: that of the family or the trace.
    clock
        A clock that is a weighted sum, or its name: horizons and regret are in its unit, and bounds
        hold for all ways to form batches. None: steps.
    time_limit
        Seconds of `optsched.solve` per instance, which is called for instances of up to
        20,000 requests. With 0 the result does not depend on the speed of the machine.
    tolerance
        Growth of regret per tenfold horizon, in steps, that does not count; None means 5 % of the
        mean output.
    jobs
        Processes on this machine; None: one per core. Or a Dask `Client` or `Cluster`, or the
        address of its scheduler.
    on_progress
        Called when an instance is finished, with `done`, `count` and `seconds_left`; printed, it
        is one line.

    Returns
    -------
    Regret
        Intervals, bands, growth; after Ctrl-C those of what was finished, as "interrupted".

    Raises
    ------
    OptschedError, PolicyError
        If an argument is invalid, or a policy is unknown or does not complete all requests.

    Examples
    --------
    Outputs that are all the same: waves of ten cost `mc-sf` a multiple of what is possible.

    >>> import optsched
    >>> result = optsched.regret(
    ...     "family:equal-prompts,output_least=10", ["mc-sf"], [1.2], [100, 200, 400, 800], seeds=5)
    >>> result.growth("mc-sf", 1.2).verdict
    'grows'
    """
    tasks = _tasks(source, policies, loads, horizons, seeds, memory, time_limit, clock)
    return _enclosed(tasks, tolerance, Store(), _places(jobs), on_progress)


def regret_into(
    out: str | Path,
    source: str | Path | Instance,
    policies: SomePolicies,
    *,
    resume: bool = False,
    tolerance: float | None = None,
    jobs: Any = 1,
    on_progress: Callable[[Progress], object] | None = None,
    **options: Any,
) -> Regret:
    """Enclose the regret as `regret` does, with a folder of instances that can be resumed."""
    places, tasks, path = _places(jobs), _tasks(source, policies, **options), Path(out)
    settings = _settings(next(iter(tasks.values())))
    open_folder(path, _MANIFEST, "regret", settings, resume=resume)
    with locked(path):
        store = JsonFolder(path, tasks)
        if not resume:
            refuse_begun(path, len(store), len(tasks), "instances of this regret")
        return _enclosed(tasks, tolerance, store, places, on_progress)


def _places(jobs: Any) -> Places:
    """Return where instances are enclosed: on this machine, unless it is Dask's."""
    here = jobs is None or isinstance(jobs, Real)
    return Places(jobs) if here else Places(None, jobs)


def _settings(task: Task) -> dict[str, Any]:
    """Return what all instances share, in words, with a fingerprint of what those do not say."""
    shared = {
        each.name: getattr(part, each.name)
        for part in (task.source, task)
        for each in fields(part)
        if each.name not in ("source", *_VARYING)
    }
    told = {name: _told(value) for name, value in shared.items()}
    return {"source": told.pop("name"), **told, "version": __version__}


def _told(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_told(each) for each in value]
    return value if isinstance(value, PLAIN) else f"{name_of(value)} {fingerprint(value)[:16]}"


def _tasks(
    source: str | Path | Instance,
    policies: SomePolicies,
    loads: float | Sequence[float] = (0.8, 1.2),
    horizons: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] = 5,
    memory: int | None = None,
    time_limit: float = 0.0,
    clock: str | Clock | None = None,
) -> dict[str, Task]:
    """Check what is asked for, and return its instances by their keys."""
    chosen = tuple(carried(policy) for policy in get_policies(policies))
    drawn = read_source(source, memory, clock)
    loads, seeds = sorted(numbers_of("loads", loads)), seeds_of(seeds)
    rates = {load: drawn.rate(load) for load in loads}
    if horizons is None:
        horizons = drawn.horizons(rates[loads[0]])
    horizons = sorted(as_count("a horizon", each) for each in numbers_of("horizons", horizons))
    as_number("time_limit", time_limit, lambda x: x >= 0, "a number of at least 0")
    if time_limit and clock is not None:
        raise OptschedError("time_limit is for the search in steps; leave it or the clock out")
    for load in loads:
        drawn.check(rates[load], horizons[0])
    few = drawn.draw(rates[loads[0]], horizons[0], seeds[0])
    for policy in chosen:
        if isinstance(policy, Own):
            rehearse(policy, few, clock=drawn.clock)
    shared = fingerprint(drawn)  # found once, for it may be a long trace
    tasks = [
        Task(drawn, chosen, load, rates[load], horizon, seed, time_limit)
        for horizon, seed, load in itertools.product(horizons, seeds, loads)  # quick ones first
    ]
    return {_key(task, shared): task for task in tasks}


def _key(task: Task, source: Any) -> str:
    """Return a name for the result of a task that no other question has."""
    place = f"load-{task.load}-horizon-{task.horizon}-seed-{task.seed}"
    return f"{place}-{fingerprint(replace(task, source=source))[:16]}"


def _enclosed(
    tasks: dict[str, Task],
    tolerance: float | None,
    store: Store[dict[str, Any]],
    places: Places,
    on_progress: Callable[[Progress], object] | None,
) -> Regret:
    """Carry out what is not in the store."""
    task = next(iter(tasks.values()))
    if tolerance is None:
        tolerance = _TOLERANCE * task.source.mean_alone
    as_number("tolerance", tolerance, lambda x: x > 0, "a number above 0")
    policies = get_policies([loaded(policy) for policy in task.policies])
    status = finish(_plain, tasks, store, places, title="instances", on_progress=on_progress)
    if status == INTERRUPTED and not store:
        raise KeyboardInterrupt
    cells = [Cell(**content) for content in store.values()]
    return Regret(
        task.source.name,
        task.source.memory_tokens,
        tuple(policy.name for policy in policies),
        tuple(sorted(cells, key=lambda cell: (cell.load, cell.horizon, cell.seed))),
        float(tolerance),
        status,
        clock=None if task.source.clock is None else task.source.clock.name,
        unit=task.source.unit,
        knows={policy.name: policy.knows(task.source.sample) for policy in policies},
    )


def _plain(task: Task) -> dict[str, Any]:
    return perform(task).to_dict()
