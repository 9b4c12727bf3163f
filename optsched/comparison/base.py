"""What all comparisons have in common: runs by the name of their policy."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from math import inf, isclose, isnan
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from optsched._internal.extras import data_frame
from optsched._internal.views import draw, html, write
from optsched.errors import PolicyError, nearest
from optsched.execution import Run
from optsched.instance import Instance
from optsched.policies import POLICIES
from optsched.premises import strongest
from optsched.solvers.bounds.bound import round_down

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched.premises import Claim
    from optsched.solvers.bounds.bound import Bound, ClockBound

ROUNDING = 1e-9  # relative, of a mean over sums of batches

AnyRun = TypeVar("AnyRun", bound=Run)

#: Run before times are taken; it has every column that the key of a user's policy may read.
TINY = Instance([1, 1], [1, 1], 64, [0, 1], weights=[1, 1], deadlines=[2, 3], seconds_per_step=1.0)


class Comparison(ABC, Generic[AnyRun]):
    """Runs of several policies side by side.

    `comparison["area"]` is the run of a policy, iteration goes over all runs, and `best` is the
    one with the fewest unfinished requests and then the least mean latency, without the
    `references`, which know more than the others; `tied` lists all that are as good. In steps and
    on a clock there are proven `bounds`, and the `gap` of each policy to the one that covers it;
    on a cluster there may be several traces.
    """

    _table: str  # the names of its table, its plot and its page in `optsched.report`
    _plot: str
    _page: str
    runs: Sequence[AnyRun] | Mapping[str, Sequence[AnyRun]]
    intervals: str | None = None  # what policies know of the outputs; None: all that they need
    warm_up: float | None = 0.0  # before which nothing counts

    @property
    def bounds(self) -> tuple[Claim, ...]:
        """Proven lower bounds on the total latency, each under premises of its own."""
        return ()

    def covering(self, run: str | AnyRun) -> tuple[Claim | None, str | None]:
        """Return the largest bound whose premises cover a run, or None and why there is none.

        Parameters
        ----------
        run
            A run, or the name of its policy.
        """
        if self.warm_up:
            return None, "requests that arrive before the warm-up do not count"
        return strongest(self.bounds, (self[run] if isinstance(run, str) else run).facts)

    def gap(self, run: str | AnyRun) -> float | None:
        """Return (total latency - bound) / total latency: no schedule can save more than that.

        None where no bound covers the run; `covering` says why.
        """
        covering, _ = self.covering(run)
        if covering is None:
            return None
        latency = (self[run] if isinstance(run, str) else run).total_latency
        return (latency - covering.value) / latency

    def _claims(self, run: AnyRun) -> dict[str, Any]:
        """Return what JSON says of the gap of a run."""
        gap = self.gap(run)
        return {"gap": gap} | ({"why_no_gap": self.covering(run)[1]} if gap is None else {})

    @property
    def notes(self) -> list[str]:
        """What must be said beside the numbers, one sentence each."""
        found = []
        if not self.comparable:
            found.append(
                "The runs completed different requests, so that their means are of different ones "
                "and no policy is the best."
            )
        elif len(self.tied) > 1:
            names = [run.policy for run in self.tied]
            found.append(f"{', '.join(names[:-1])} and {names[-1]} are equal.")
        reasons: dict[str, list[str]] = {}
        for run in self if self.bounds else ():
            if why := self.covering(run)[1]:
                reasons.setdefault(why, []).append(run.policy)
        return found + [f"No gap of {', '.join(names)}: {why}." for why, names in reasons.items()]

    def by_policy(self) -> dict[str, AnyRun]:
        """Return the run of each policy, in the order in which they were asked for.

        Returns
        -------
        dict
            By the name of the policy; on a cluster the run on the first trace.
        """
        if isinstance(self.runs, Mapping):
            return {policy: runs[0] for policy, runs in self.runs.items()}
        return {run.policy: run for run in self.runs}

    @property
    def policies(self) -> list[str]:
        """Names of the policies, in the order in which they were asked for."""
        return list(self.by_policy())

    @property
    def references(self) -> list[str]:
        """Names of the policies that know the outputs beside others that know intervals only."""
        if self.intervals in (None, "exact"):
            return []
        known = {name for name, policy in POLICIES.items() if policy.needs.knows == "hindsight"}
        return [name for name in self.policies if re.split("[:+]", name)[0] in known]

    @property
    def best(self) -> AnyRun:
        """The first of `ranked`: never a reference beside other policies."""
        return self.ranked()[0]

    @property
    def comparable(self) -> bool:
        """Whether all runs of a trace completed the same requests, and means say which is best."""
        listed = self.runs.values() if isinstance(self.runs, Mapping) else [[r] for r in self.runs]
        traces = zip(*listed, strict=False)
        return not any(
            any(run.unfinished for run in trace)
            and len({run.completed.tobytes() for run in trace}) > 1
            for trace in traces
        )

    @property
    def tied(self) -> list[AnyRun]:
        """The best run, and all that equal it up to rounding."""
        best = self.best

        def equal(run: AnyRun) -> bool:
            alike = isclose(run.mean_latency, best.mean_latency, rel_tol=ROUNDING)
            return alike and run.unfinished == best.unfinished

        others = [run for run in self.ranked() if run.policy not in self.references and equal(run)]
        return others or [best]

    def ranked(self) -> list[AnyRun]:
        """Return the runs by unfinished requests, then by mean latency; references come last.

        Returns
        -------
        list
            One run per policy; on a cluster those on the first trace.
        """
        references = self.references

        def place(run: AnyRun) -> tuple[bool, int, float]:
            latency = run.mean_latency
            return run.policy in references, run.unfinished, inf if isnan(latency) else latency

        return sorted(self, key=place)

    def __getitem__(self, policy: str) -> AnyRun:
        """Return the run of a policy by its name."""
        runs = self.by_policy()
        if policy not in runs:
            raise PolicyError(f"policy {policy!r} did not run: {nearest(str(policy), runs)}")
        return runs[policy]

    def __iter__(self) -> Iterator[AnyRun]:
        """Iterate over the runs."""
        return iter(self.by_policy().values())

    def __len__(self) -> int:
        """Return the number of policies."""
        return len(self.by_policy())

    def __repr__(self) -> str:
        names = ", ".join(self.by_policy())
        best = f": best {self.best.policy!r}" if self.comparable else ""
        return f"<{type(self).__name__} of {names}{best}>"

    def _repr_html_(self) -> str:
        return html(self._table, self)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything but the runs themselves as plain data, ready for JSON.

        Returns
        -------
        dict
            Among its keys "policies", a list with the metrics of each.
        """

    def _marked(self, run: AnyRun, entry: dict[str, Any]) -> dict[str, Any]:
        """Add to what JSON says of a run the deadlines it met, and whether it is a reference."""
        if "missed_deadlines" in entry:
            entry["met_deadlines"] = len(run.instance) - entry["missed_deadlines"]
        if run.policy in self.references:
            entry["reference"] = True
        return entry

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per policy, indexed by its name.

        Returns
        -------
        pandas.DataFrame
            Columns as the keys of the entries under "policies" in `to_dict`.

        Examples
        --------
        >>> from optsched import Instance, compare
        >>> compare(Instance([1], [2], memory=3), "area").to_pandas().loc["area", "makespan"]
        np.int64(2)
        """
        frame = data_frame(self.to_dict()["policies"]).set_index("policy")
        return frame.drop(columns="intervals", errors="ignore")

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the policies against each other.

        Parameters
        ----------
        ax
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on.
        """
        return draw(self._plot, self, ax)

    def to_html(self, path: str | Path) -> None:
        """Write the comparison as one HTML file that needs no network.

        Parameters
        ----------
        path
            Where to write it; the file is whole or not there.
        """
        write(self._page, path, self)


def check_bound(bound: Bound | ClockBound, instance: Instance) -> None:
    """Refuse a bound that was found for other requests."""
    if bound.premises.fingerprint != instance.fingerprint:
        raise PolicyError(
            f"the bound of {bound.value:g} is of another instance than {instance.name!r}; leave it "
            "out, or find it with bound(instance)"
        )


def describe_bound(bound: Bound | ClockBound, instance: Instance) -> dict[str, Any]:
    """Return what the JSON of a comparison says of a bound, and under which premises it holds."""
    return {
        "value": bound.value,
        "mean_latency": round_down(Fraction(bound.value) / len(instance)),
        "method": bound.method,
        "seconds": bound.seconds,
        "premises": bound.premises.to_dict(),
    }


def describe_instance(instance: Instance, last_arrival: float) -> dict[str, Any]:
    """Return what the JSON of a comparison says of the requests."""
    return {
        "name": instance.name,
        "requests": len(instance),
        "memory": instance.memory,
        "last_arrival": last_arrival,
        "seconds_per_step": instance.seconds_per_step,
    }
