"""What `regret` found: intervals with confidence bands, their growth, and paired differences."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.extras import data_frame
from optsched._internal.numbers import number
from optsched._internal.student import reach
from optsched._internal.views import draw, html, text, write
from optsched.errors import OptschedError
from optsched.experiments.regrets.growth import TOO_FEW, Growth, finite, growth_of
from optsched.problem.premises import deployable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray
    from optsched.experiments.regrets.cell import Cell
    from optsched.experiments.regrets.threshold import OverloadThreshold
    from optsched.problem.premises import Knowledge

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
class Regret:
    """Regret of policies as intervals that are proven, instance by instance.

    It is at least the distance to the best schedule known, and at most that to a proven bound.
    Methods take the name of a policy, a load and a horizon; an `OptschedError` says which of these
    there is no instance of, or not enough.

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
    >>> result.growth("mc-sf", 0.6).verdict
    'bounded'
    """

    source: str
    memory: int
    policies: tuple[str, ...]
    cells: tuple[Cell, ...]
    tolerance: float
    status: str = "complete"
    thresholds: tuple[OverloadThreshold, ...] = ()
    confidence: float = 0.95
    clock: str | None = None
    unit: str = "steps"
    knows: Mapping[str, Knowledge] = field(default_factory=dict)

    @cached_property
    def _groups(self) -> dict[tuple[float, int], list[Cell]]:
        groups: dict[tuple[float, int], list[Cell]] = {}
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
        """Return mean interval and confidence limits.

        These are the lower end of the mean regret minus a margin, and the upper end plus a margin,
        by Student's t over the seeds, each at half the risk.
        """
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
        table = table.round(_DECIMALS)
        return growth_of(
            horizons,
            table[..., 0],
            table[..., 1],
            self.tolerance,
            confidence=self.confidence,
            unit=self.unit,
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
        """Return by load and horizon how much larger a policy's mean latency is than another's.

        Both see the same instances, so that shared randomness cancels out of the confidence limits.
        """
        rows = []
        for load, horizon in self._groups:
            cells, _ = (self._cells(load, horizon, name) for name in (policy, other))
            paired = [[(c.latencies[policy] - c.latencies[other]) / c.requests] for c in cells]
            mean, margin = float(np.mean(paired)), self._margins(np.array(paired))[0]
            rows.append((load, horizon, len(cells), mean, mean - margin, mean + margin))
        columns = ["load", "horizon", "seeds", "difference", "floor", "ceiling"]
        return data_frame(rows, columns=columns).set_index(["load", "horizon"])

    def _cells(self, load: float, horizon: int, policy: str) -> list[Cell]:
        if policy not in self.policies:
            raise OptschedError(f"policy {policy!r} was not run; there are {self.policies}")
        if (load, horizon) not in self._groups:
            raise OptschedError(f"there is no instance of load {load} and horizon {horizon}")
        return self._groups[load, horizon]

    def _margins(self, values: FloatArray) -> list[float]:
        """Return half the width of a two-sided confidence interval of each column's mean."""
        return [reach(column, self.confidence) for column in values.T]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per policy, load and horizon, indexed by these.

        `low` and `high` are the mean ends of the regret interval, against the best schedule known
        and against the bound; `floor` and `ceiling` its confidence limits; `ratio_low`,
        `ratio_high` and `worst_ratio` the mean ends and the largest lower end of the ratio to the
        least possible latency; beside them `rate`, `seeds`, `requests`, `mean_latency`, `knows`.
        """
        frame = data_frame([vars(band) for band in self.bands()])
        return frame.set_index(["policy", "load", "horizon"]).sort_index()

    def to_dict(self) -> dict[str, Any]:
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
        """What was found, one sentence each: who can be deployed, growth, and thresholds."""
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
        return [*dict.fromkeys(found), *told, *few, *map(str, self.thresholds)]

    def plot(self, ax: Axes | None = None, load: float | None = None) -> Axes:
        """Plot the regret of each policy against the horizon, at a load, or the lowest."""
        return draw("plot_regret", self, self.loads[0] if load is None else load, ax)

    def to_html(self, path: str | Path) -> None:
        """Write intervals, growth and ratios as one HTML file that needs no network."""
        write("regret_page", path, self)

    def __repr__(self) -> str:
        what = f"{', '.join(self.policies)}; {len(self.cells)} instances"
        return f"<Regret {self.source!r}: {what}, {self.status}>"

    def _repr_html_(self) -> str:
        return html("regret_table", self)

    def __str__(self) -> str:
        interrupted = "" if self.status == "complete" else " (interrupted)"
        clock = "" if self.clock is None else f", clock {self.clock}"
        lines = [f"{self.source}, memory {self.memory:,} tokens{clock}{interrupted}"]
        return "\n".join([*lines, text("regret_table", self), *self.notes])
