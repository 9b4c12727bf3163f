"""Regret against the hindsight optimum, and whether it grows (docs/regret.md has the test)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optsched._internal.arguments import as_count, as_number, checked
from optsched._internal.aside import untimed
from optsched._internal.fingerprints import fingerprint
from optsched._internal.imports import data_frame
from optsched._internal.numbers import number, proven, reach, student
from optsched._internal.views import View, draw, text
from optsched._version import __version__
from optsched.errors import OptschedError
from optsched.experiments import cells as runner
from optsched.experiments import regret_cells
from optsched.policies import get_policies
from optsched.problem.instance import Instance
from optsched.problem.premises import deployable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt
    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray
    from optsched._internal.files import JSON
    from optsched.clock import Clock
    from optsched.experiments.cells import CellProgress
    from optsched.policies.registry import PolicyLike
    from optsched.problem.premises import Knowledge

    SomePolicies = PolicyLike | Sequence[PolicyLike]
    Source = str | Path | Instance

Verdict = Literal["bounded", "grows", "undecided", "too few points"]
_LEAST_HORIZONS, _LEAST_SEEDS = 4, 5
TOO_FEW = (
    f"whether regret grows is said from {_LEAST_HORIZONS} horizons and {_LEAST_SEEDS} seeds on"
)
_CERTAIN = 0.995  # power that need not be said
POWER = 0.9  # with which a growth that is called detectable is found


@dataclass(frozen=True)
class Growth:
    """How the ends of the regret interval move per tenfold horizon."""

    verdict: Verdict
    low: float  # mean growth of the lower end
    high: float  # mean growth of the upper end
    low_floor: float  # one-sided confidence limit: the lower end grows by more than this
    high_ceiling: float  # and the upper end by less than this; infinite with a single seed
    tolerance: float  # growth that does not count
    detectable: float  # a lower end that grows by this is called growing with probability 0.9
    power: float  # probability that an upper end that does not grow is called bounded
    exponent: float | None  # of the horizon, by which the lower end grows; None if not known
    horizons: tuple[int, ...]
    seeds: int
    confidence: float  # of each limit
    unit: str = "steps"

    def to_dict(self) -> JSON:
        """Return everything as plain data, ready for JSON; None for what is infinite."""
        return finite(vars(self))

    def __str__(self) -> str:
        if self.verdict == "bounded":
            most = f"grows by at most {proven(self.high_ceiling, up=True, digits=3)}"
            if self.high_ceiling < 0:
                most = f"falls by at least {proven(-self.high_ceiling, digits=3)}"
            power = "" if self.power > _CERTAIN else f", power {self.power:.2f}"
            return (
                f"bounded: {most} {self.unit} per tenfold horizon (tolerance "
                f"{self.tolerance:,.3g}{power})"
            )
        if self.verdict == "grows":
            power = "" if self.exponent is None else f", like T^{self.exponent:.2f}"
            return (
                f"grows: by more than {proven(self.low_floor, digits=3)} {self.unit} per tenfold "
                f"horizon{power} "
                f"(tolerance {self.tolerance:,.3g})"
            )
        power = f"growth of {self.detectable:,.3g} would show"
        if self.verdict == "too few points":
            power = TOO_FEW
        return (
            f"{self.verdict}: the lower end grows by {self.low:,.3g}, the upper end by "
            f"{self.high:,.3g} {self.unit} per tenfold horizon "
            f"(tolerance {self.tolerance:,.3g}, {power})"
        )


def finite(record: JSON) -> JSON:
    """Return a record with None for what is infinite."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }


def growth_of(
    horizons: Sequence[int],
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    tolerance: float,
    *,
    confidence: float = 0.95,
    unit: str = "steps",
) -> Growth:
    """Test whether regret grows, from its ends: a row per seed, a column per horizon."""
    lows, highs = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    steps = np.asarray(horizons)
    if lows.shape != highs.shape or lows.ndim != 2 or lows.shape[1:] != steps.shape:
        raise OptschedError(
            f"growth needs one row per seed and one column per horizon, but there are "
            f"{len(steps)} horizons and ends of shapes {lows.shape} and {highs.shape}"
        )
    if len(steps) < 2 or np.any(np.diff(steps) <= 0) or steps[0] < 1:
        raise OptschedError("growth needs at least two horizons, ascending and positive")
    if np.any(lows > highs):
        raise OptschedError("a lower end of regret is above its upper end")
    few = len(steps) < _LEAST_HORIZONS or len(lows) < _LEAST_SEEDS
    # The upper half of the range on the scale of the lines, and two horizons at least.
    half = min(len(steps) - 2, int(np.searchsorted(steps, math.sqrt(steps[0] * steps[-1]))))
    steps, lows, highs = steps[half:], lows[:, half:], highs[:, half:]
    low_line, high_line = _Slope(steps, lows, confidence), _Slope(steps, highs, confidence)
    low_floor = low_line.mean - low_line.margin
    high_ceiling = high_line.mean + high_line.margin
    means = lows.mean(axis=0)
    known = not few and bool(np.all(means > 0))
    verdict: Verdict = "undecided"
    if few:
        verdict = "too few points"
    elif high_ceiling < tolerance:
        verdict = "bounded"
    elif low_floor > tolerance:
        verdict = "grows"
    return Growth(
        verdict,
        low_line.mean,
        high_line.mean,
        low_floor,
        high_ceiling,
        tolerance,
        tolerance + low_line.detectable(),
        high_line.power(tolerance),
        float(np.polyfit(np.log(steps), np.log(means), 1)[0]) if known else None,
        tuple(steps.tolist()),
        len(lows),
        confidence,
        unit,
    )


class _Slope:
    """The mean over seeds of slopes against the logarithm of the horizon."""

    def __init__(self, steps: npt.NDArray[np.int64], ends: FloatArray, confidence: float) -> None:
        at = np.log10(steps)
        at = at - at.mean()
        slopes = ends @ at / (at @ at)
        self.mean = float(slopes.mean())
        self._free = len(slopes) - 1
        self._error = float(slopes.std(ddof=1)) / math.sqrt(len(slopes)) if self._free else math.inf
        self._limit = student(confidence, len(slopes)) if self._free else math.inf
        self.margin = self._limit * self._error

    def power(self, distance: float) -> float:
        with untimed():
            from scipy.special import nctdtr

        if not self._free:
            return 0.0
        if self._error == 0:
            return float(distance > 0)
        shift = min(distance / self._error, 1e3)  # further is certain, and overflows
        if shift == 1e3:
            return 1.0
        return 1.0 - float(np.nan_to_num(nctdtr(self._free, shift, self._limit)))

    def detectable(self) -> float:
        if not self._free or self._error == 0:
            return self._error
        near, far = 0.0, self._error
        while self.power(far) < POWER:
            far *= 2
        for _ in range(_HALVINGS):
            middle = (near + far) / 2
            near, far = (near, middle) if self.power(middle) >= POWER else (middle, far)
        return far


_HALVINGS = 50  # to a distance that has all digits of a double
_DECIMALS = 12  # of regrets that sums in another order must not change


@dataclass(frozen=True)
class Band:
    """Regret of one policy at one load and horizon, over seeds, in the unit per request."""

    policy: str
    load: float
    rate: float
    horizon: int
    seeds: int
    requests: float  # in the mean
    mean_latency: float
    low: float  # mean lower end, against the best schedule known
    high: float  # mean upper end, against the bound
    floor: float  # the expected regret is above this with the confidence of the result
    ceiling: float  # and below this; infinite with a single seed
    ratio_low: float  # mean ends of the ratio to the least possible latency
    ratio_high: float
    worst_ratio: float  # the competitive ratio (Jaillet Def. 6.1) is at least this
    knows: Knowledge | None = None  # what the policy is told of an output before it ends


@dataclass(frozen=True, repr=False)
class Regret(View):
    """Regret of policies as intervals that are proven, instance by instance.

    It is at least the distance to the best schedule known, and at most that to a proven bound.
    Methods take the name of a policy, a load and a horizon; an `OptschedError` says which of these
    has no instance, or too few.

    Attributes
    ----------
    source, memory
        Where requests came from, and the tokens that the worker can hold.
    cells
        One entry per instance: load, horizon and seed.
    tolerance
        Growth per tenfold horizon that does not count.
    status
        "complete" or "interrupted".
    thresholds
        Loads at which policies become overloaded, where they were asked for.
    confidence
        Of bands and tests.
    clock, unit
        The clock, where there is one, and what times are counted in.
    knows
        What each policy is told of an output before it ends: "outputs", "forecast" or "nothing".

    Examples
    --------
    >>> import optsched
    >>> result = optsched.regret(
    ...     "family:equal-prompts", ["mc-sf"], [0.6], [50, 100, 200, 400], seeds=5)
    >>> band = result.band("mc-sf", 0.6, 400)
    >>> 0 <= band.low <= band.high < 0.05
    True
    """

    source: str
    memory: int
    policies: tuple[str, ...]
    cells: tuple[regret_cells.Cell, ...]
    tolerance: float
    status: str = "complete"
    thresholds: tuple[regret_cells.OverloadThreshold, ...] = ()
    confidence: float = 0.95
    clock: str | None = None
    unit: str = "steps"
    knows: Mapping[str, Knowledge] = field(default_factory=dict)
    _view = ("regret_table", "plot_regret", "regret_page")

    @cached_property
    def _groups(self) -> dict[tuple[float, int], list[regret_cells.Cell]]:
        groups: dict[tuple[float, int], list[regret_cells.Cell]] = {}
        for cell in sorted(self.cells, key=lambda cell: (cell.load, cell.horizon, cell.seed)):
            groups.setdefault((cell.load, cell.horizon), []).append(cell)
        return groups

    @property
    def loads(self) -> list[float]:
        """Loads with at least one instance, ascending."""
        return sorted({cell.load for cell in self.cells})

    def horizons(self, load: float) -> list[int]:
        """Return the horizons with at least one instance of a load, ascending."""
        return sorted({cell.horizon for cell in self.cells if cell.load == load})

    def band(self, policy: str, load: float, horizon: int) -> Band:
        """Return the mean interval, with confidence limits by Student's t over the seeds."""
        cells = self._cells(load, horizon, policy)
        ends = np.array([cell.regret(policy) for cell in cells])
        ratios = np.array([cell.ratio(policy) for cell in cells])
        low, high = ends.mean(axis=0).tolist()
        below, above = self._margins(ends)
        return Band(
            policy,
            load,
            cells[0].rate,
            horizon,
            len(cells),
            float(np.mean([cell.requests for cell in cells])),
            float(np.mean([cell.latencies[policy] / cell.requests for cell in cells])),
            low,
            high,
            max(0.0, low - below),  # regret is not negative
            high + above,
            float(ratios[:, 0].mean()),
            float(ratios[:, 1].mean()),
            float(ratios[:, 0].max()),
            self.knows.get(policy),
        )

    def bands(self) -> list[Band]:
        """Return all bands, by load, horizon and policy."""
        return [
            self.band(policy, load, horizon)
            for load, horizon in self._groups
            for policy in self.policies
        ]

    def growth(self, policy: str, load: float) -> Growth:
        """Test whether regret grows, by the seeds for which all horizons are done."""
        horizons = self.horizons(load)
        if len(horizons) < 2:
            raise OptschedError("growth needs at least two horizons")
        ends = {
            horizon: {cell.seed: cell.regret(policy) for cell in self._cells(load, horizon, policy)}
            for horizon in horizons
        }
        seeds = sorted(set.intersection(*(set(each) for each in ends.values())))
        if not seeds:
            raise OptschedError("no seed was run at all horizons")
        table = np.array([[ends[horizon][seed] for horizon in horizons] for seed in seeds])
        low, high = np.moveaxis(table.round(_DECIMALS), -1, 0)
        return growth_of(
            horizons, low, high, self.tolerance, confidence=self.confidence, unit=self.unit
        )

    def growths(self) -> list[tuple[str, float, Growth]]:
        """Return policy, load and growth wherever growth can be tested."""
        found = []
        for load in self.loads:
            for policy in self.policies:
                try:
                    found.append((policy, load, self.growth(policy, load)))
                except OptschedError:
                    break  # an interrupted run may not have the horizons
        return found

    def difference(self, policy: str, other: str) -> pd.DataFrame:
        """Return how much larger mean latencies are than another policy's, paired by instance."""
        rows = []
        for load, horizon in self._groups:
            cells, _ = (self._cells(load, horizon, name) for name in (policy, other))
            paired = [[(c.latencies[policy] - c.latencies[other]) / c.requests] for c in cells]
            mean, margin = float(np.mean(paired)), self._margins(np.array(paired))[0]
            rows.append((load, horizon, len(cells), mean, mean - margin, mean + margin))
        columns = ["load", "horizon", "seeds", "difference", "floor", "ceiling"]
        return data_frame(rows, columns=columns).set_index(["load", "horizon"])

    def _cells(self, load: float, horizon: int, policy: str) -> list[regret_cells.Cell]:
        if policy not in self.policies:
            raise OptschedError(f"policy {policy!r} was not run; there are {self.policies}")
        if (load, horizon) not in self._groups:
            raise OptschedError(f"there is no instance of load {load} and horizon {horizon}")
        return self._groups[load, horizon]

    def _margins(self, values: FloatArray) -> list[float]:
        return [reach(column, self.confidence) for column in values.T]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per policy, load and horizon, indexed by these.

        `low` and `high` are the mean ends of the regret interval, `floor` and `ceiling` its
        confidence limits; `ratio_low`, `ratio_high` and `worst_ratio` the mean ends and the largest
        lower end of the ratio to the least possible latency.
        """
        frame = data_frame([vars(band) for band in self.bands()])
        return frame.set_index(["policy", "load", "horizon"]).sort_index()

    def to_dict(self) -> JSON:
        """Return everything as plain data, with the rows of `to_pandas` under "intervals"."""
        names = ("source", "memory", "policies", "status", "tolerance", "confidence", "clock")
        return {name: getattr(self, name) for name in names} | {
            "unit": self.unit,
            "policies": list(self.policies),
            "intervals": [finite(vars(band)) for band in self.bands()],
            "growth": [
                {"policy": policy, "load": load, **growth.to_dict()}
                for policy, load, growth in self.growths()
            ],
            "thresholds": [threshold.to_dict() for threshold in self.thresholds],
            "cells": [cell.to_dict() for cell in self.cells],
        }

    @property
    def notes(self) -> list[str]:
        """What was found, one sentence each: what can be deployed, growth, and thresholds."""
        found, growths = [], self.growths()
        for load in self.loads:
            horizon = self.horizons(load)[-1]
            bands = [self.band(policy, load, horizon) for policy in self.policies]
            rows = [(band.policy, band.knows, band.mean_latency) for band in bands]
            ranked = sorted(rows, key=lambda row: row[2])
            said = deployable(ranked, lambda value: f"{number(value)} {self.unit}")
            some = any(band.knows != "outputs" for band in bands)  # and so at every load
            where = f"Load {load:g}, horizon {horizon:,}: " * some
            found += [where + " ".join(said)] if said else []
        named = [each for each in growths if each[2].verdict != "too few points"]
        told = [f"{policy}, load {load:g}: {growth}" for policy, load, growth in named]
        few = [f"{TOO_FEW.capitalize()}; here are fewer."] * (len(named) < len(growths))
        same: dict[tuple[float, ...], list[str]] = {}
        for policy in self.policies:
            key = tuple(cell.latencies[policy] for cell in self.cells)
            same.setdefault(key, []).append(policy)
        alike = [f"{' and '.join(some)} do the same here." for some in same.values() if some[1:]]
        return [*dict.fromkeys(found), *alike, *told, *few, *map(str, self.thresholds)]

    def plot(self, ax: Axes | None = None, load: float | None = None) -> Axes:
        """Plot the regret of each policy against the horizon, at a load, or the lowest."""
        return draw("plot_regret", self, self.loads[0] if load is None else load, ax)

    def __repr__(self) -> str:
        what = f"{', '.join(self.policies)}; {len(self.cells)} instances"
        return f"<Regret {self.source!r}: {what}, {self.status}>"

    def __str__(self) -> str:
        interrupted = "" if self.status == "complete" else " (interrupted)"
        clock = "" if self.clock is None else f", clock {self.clock}"
        lines = [f"{self.source}, memory {self.memory:,} tokens{clock}{interrupted}"]
        return "\n".join([*lines, text("regret_table", self), *self.notes])


_TOLERANCE = 0.05  # of the mean latency of requests that are alone
_VARYING = ("load", "rate", "horizon", "seed")  # of the instances of one regret
_LOADS, _SEEDS = (0.8, 1.2), 5


@checked()
def regret(
    source: Source | Sequence[Source] = "family:equal-prompts",
    policies: SomePolicies = ("mc-sf", "area"),
    loads: float | Sequence[float] = _LOADS,
    horizons: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] = _SEEDS,
    *,
    memory: int | None = None,
    clock: str | Clock | None = None,
    time_limit: float = 0.0,
    tolerance: float | None = None,
    jobs: object = 1,
    keep_instances: str | Path | None = None,
    resume: bool = False,
    on_progress: Callable[[CellProgress], object] | None = None,
) -> Regret:
    """Enclose the regret of policies between the best schedule known and a proven bound.

    The regret of an instance is the policy's mean latency minus the least possible one (Jaillet
    Def. 5.1, which takes the expectation). All policies see the same instances, and instances of
    different horizons share no request.

    Parameters
    ----------
    source
        A trace or ``family:NAME,key=number,...``. The lengths of a trace are drawn with
        replacement, and its requests arrive by a Poisson process. Or an instance, or a list of
        instances and traces: each is run as it is, with their mean load and longest horizon in the
        result; of one instance, with other loads, horizons or seeds, lengths are drawn as well.
    policies
        Names, policy objects, functions or "module:name", or one of them; they know the outputs.
    loads
        Memory-time that arrives per step over the memory: rate times mean :math:`A_i` over
        :math:`M`. On a clock the work that arrives per unit of time.
    horizons
        Numbers of steps, or seconds on a clock, in which requests arrive; all are then completed.
        None: 100, 1,000 and 10,000, or ten times as many until the first brings enough requests.
    seeds
        How many instances per load and horizon, with seeds from 0, or the seeds themselves; bands
        need two.
    memory
        Memory of the worker in tokens; None: that of the family or the trace.
    clock
        A clock that is a weighted sum, or its name: horizons and regret are in its unit, and bounds
        hold for all ways to form batches. None: steps.
    time_limit
        Seconds of `optsched.solve` per instance of up to 20,000 requests. With 0 the result does
        not depend on the speed of the machine.
    tolerance
        Growth of regret per tenfold horizon that does not count; None: 5 % of the mean output.
    jobs
        Processes on this machine; None: one per core. Or a Dask `Client` or `Cluster`, or the
        address of its scheduler.
    keep_instances, resume
        A folder for the result of each instance, and whether to go on with those that are in it.
    on_progress
        Called when an instance is finished, with `done`, `count` and `seconds_left`.

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
    here: Any = jobs is None or isinstance(jobs, Real)
    places = runner.Places(*(jobs, None) if here else (None, jobs))
    tasks = _tasks(source, policies, loads, horizons, seeds, memory, time_limit, clock)
    kept: Any = nullcontext(runner.Store())
    if keep_instances is not None:
        settings = _settings(next(iter(tasks.values())))
        kept = _Folder.opened(Path(keep_instances), settings, tasks, resume=resume)
    with kept as store:
        return _enclosed(tasks, tolerance, store, places, on_progress)


class _Folder(runner.JsonFolder):
    kind, title = "regret", "instances"


def _settings(task: regret_cells.RegretTask) -> JSON:
    """Return what all instances share, in words, with a fingerprint of what those do not say."""
    shared = {
        each.name: getattr(part, each.name)
        for part in (task.source, task)
        for each in fields(part)
        if each.name not in ("source", *_VARYING, *(("trace",) if task.source.whole else ()))
    }
    told = {name: _told(value) for name, value in shared.items()}
    return {"source": told.pop("name"), **told, "version": __version__}


def _told(value: object) -> Any:
    if isinstance(value, tuple):
        return [_told(each) for each in value]
    if isinstance(value, runner.PLAIN):
        return value
    return f"{runner.name_of(value)} {fingerprint(value)[:16]}"


def _tasks(
    source: Source | Sequence[Source],
    policies: SomePolicies,
    loads: float | Sequence[float],
    horizons: int | Sequence[int] | None,
    seeds: int | Sequence[int],
    memory: int | None = None,
    time_limit: float = 0.0,
    clock: str | Clock | None = None,
) -> dict[str, regret_cells.RegretTask]:
    """Check what is asked for, and return its instances by their keys."""
    chosen = tuple(runner.carried(policy) for policy in get_policies(policies))
    as_number("time_limit", time_limit, lambda x: x >= 0, "a number of at least 0")
    if time_limit and clock is not None:
        raise OptschedError("time_limit is for the search in steps; leave it or the clock out")
    plain = (loads, horizons, seeds) == (_LOADS, None, _SEEDS)
    if isinstance(source, Instance) and plain:
        source = [source]
    if not isinstance(source, (str, PathLike, Instance)) and isinstance(source, Sequence):
        if not plain:
            raise OptschedError("instances are run as they are; leave loads, horizons, seeds out")
        given, load, rate, longest = regret_cells.read_sources(source, memory, clock)
        _rehearse(chosen, given[0].sample, given[0].clock)
        whole = [
            regret_cells.RegretTask(each, chosen, load, rate, longest, number, time_limit)
            for number, each in enumerate(given)
        ]
        return {_key(task, fingerprint(task.source)): task for task in whole}
    drawn = regret_cells.read_source(source, memory, clock)
    loads, seeds = sorted(regret_cells.numbers_of("loads", loads)), regret_cells.seeds_of(seeds)
    rates = {load: drawn.rate(load) for load in loads}
    if horizons is None:
        horizons = drawn.horizons(rates[loads[0]])
    horizons = sorted(
        as_count("a horizon", each) for each in regret_cells.numbers_of("horizons", horizons)
    )
    for load in loads:
        drawn.check(rates[load], horizons[0])
    _rehearse(chosen, drawn.draw(rates[loads[0]], horizons[0], seeds[0]), drawn.clock)
    shared = fingerprint(drawn)  # found once, for it may be a long trace
    tasks = [
        regret_cells.RegretTask(drawn, chosen, load, rates[load], horizon, seed, time_limit)
        for horizon, seed, load in itertools.product(horizons, seeds, loads)  # quick ones first
    ]
    return {_key(task, shared): task for task in tasks}


def _rehearse(policies: Sequence[object], few: Instance, clock: Clock | None) -> None:
    for policy in policies:
        if isinstance(policy, runner.Own):
            runner.rehearse(policy, few, clock=clock)


def _key(task: regret_cells.RegretTask, source: Any) -> str:
    """Return a name for the result of a task that no other question has."""
    place = f"load-{task.load}-horizon-{task.horizon}-seed-{task.seed}"
    return f"{place}-{fingerprint(replace(task, source=source))[:16]}"


def _enclosed(
    tasks: dict[str, regret_cells.RegretTask],
    tolerance: float | None,
    store: runner.Store[JSON],
    places: runner.Places,
    on_progress: Callable[[CellProgress], object] | None,
) -> Regret:
    task = next(iter(tasks.values()))
    if tolerance is None:
        tolerance = _TOLERANCE * task.source.mean_alone
    as_number("tolerance", tolerance, lambda x: x > 0, "a number above 0")
    policies = get_policies([runner.loaded(policy) for policy in task.policies])
    status = runner.finish(_plain, tasks, store, places, title="instances", on_progress=on_progress)
    if status == runner.INTERRUPTED and not store:
        raise KeyboardInterrupt
    cells = [regret_cells.Cell(**content) for content in store.values()]
    return Regret(
        task.source.name,
        task.source.sample.memory,
        tuple(policy.name for policy in policies),
        tuple(sorted(cells, key=lambda cell: (cell.load, cell.horizon, cell.seed))),
        float(tolerance),
        status,
        clock=None if task.source.clock is None else task.source.clock.name,
        unit=task.source.unit,
        knows={policy.name: policy.knows(task.source.sample) for policy in policies},
    )


def _plain(task: regret_cells.RegretTask) -> JSON:
    return regret_cells.perform(task).to_dict()
