r"""Requests that cannot all complete in time: windows, and the conflicts that arithmetic finds.

Request :math:`i` has to run within its window: it starts from :math:`e_i = a_i` on and completes by
its due step :math:`f_i`, the earlier of its deadline and the horizon. Requests *conflict* if no
starts keep them all within their windows and the memory. Four facts about conflicts that are
irreducible, that is, vanish without any one of their requests:

- *One request* conflicts exactly if :math:`e_i + o_i > f_i`.
- *Two requests* that can each run alone conflict exactly if :math:`f_j - o_j - e_i < D_{ij}` and
  :math:`f_i - o_i - e_j < D_{ji}`, where
  :math:`D_{ij} = \min\{o_i, \max\{o_i - o_j,\, 2 o_i + s_i + s_j - M\}\}` is the least
  :math:`p_j - p_i` with which :math:`i` may complete first (Eq. 6 at :math:`c_i`).
- *Memory-time.* Requests whose windows lie within the steps :math:`b + 1, \dots, f` conflict if
  :math:`\sum A_i > M (f - b)`.
- *No part in any conflict* have requests whose last start :math:`f_i - o_i` is at least that of
  `latest_starts`: they can be added to whatever the others do.

A running request is one whose window holds one start only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optsched.errors import ModelError
from optsched.models.hindsight import HindsightProgram
from optsched.models.running import NOTHING_RUNNING, Running, latest_starts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched._internal.arrays import IntArray
    from optsched.instance import Instance

#: How a conflict is proven: by the arithmetic of one, two or many requests, or by a search.
Proof = Literal["window", "pair", "memory-time", "search"]

_LISTED = 12  # requests that a sentence names
_FEW = 3  # requests of which a conflict has no fewer if arithmetic finds no pair and no single one


@dataclass(frozen=True)
class Conflict:
    """Requests that cannot all complete in time, and the steps whose memory they would overfill.

    Attributes
    ----------
    requests, indices
        Their labels, and their indices in the instance, ascending.
    running
        Indices of the running requests that leave them too little memory, ascending.
    steps
        Steps at which the limit of memory is needed for the conflict: without it elsewhere they
        conflict all the same. Empty where time alone is too short.
    proof
        How the conflict is proven: by the arithmetic of one "window", of a "pair" or of
        "memory-time", or by the "search" of a solver.
    irreducible
        Whether it vanishes without any one of the requests, running ones included.
    smallest
        Whether it is proven that no conflict has fewer requests: it is for up to three, running
        ones included.
    tight
        Whether it vanishes with endless memory at any one of the steps.
    reason
        The contradiction.

    Examples
    --------
    >>> from optsched import Instance, explain_infeasibility
    >>> instance = Instance([4, 4, 1], [2, 2, 2], 9, deadlines=[3, 3, 9], labels=["a", "b", "c"])
    >>> conflict = explain_infeasibility(instance)
    >>> conflict.requests, conflict.steps
    (('a', 'b'), (range(2, 3),))
    """

    requests: tuple[str, ...]
    indices: tuple[int, ...]
    steps: tuple[range, ...]
    proof: Proof
    irreducible: bool
    smallest: bool
    tight: bool
    reason: str
    running: tuple[int, ...] = ()

    def __str__(self) -> str:
        count = len(self.requests)
        everyone = {1: "", 2: "both "}.get(count, "all ")
        subject = f"{_listed(self.requests)} cannot {everyone}complete in time"
        if self.running:
            subject += f" beside running {_listed([str(number) for number in self.running])}"
        if self.proof == "window":
            return f"{subject}: {self.reason}"
        claim = "; without any one of them the others can" if self.irreducible else ""
        if self.smallest:
            claim = "; no smaller set of requests conflicts"
        elif not self.irreducible:
            claim = "; a part of them may conflict already, which more time would tell"
        return f"{subject}: {self.reason}{claim}"


@dataclass(frozen=True)
class RowConflict:
    """Rows of a linear model that no point satisfies together.

    Attributes
    ----------
    rows
        Their names, those of small families first.
    irreducible
        Whether a point satisfies all others without any one of them.
    solver
        By whose word.

    Examples
    --------
    >>> from optsched import HindsightProgram, Instance, explain_infeasibility
    >>> model = HindsightProgram(Instance([1, 1], [2, 2], memory=4), horizon=4).to_linear()
    >>> early = model.with_rows("early", {"start": model.columns_of("start") > 0}, upper=0)
    >>> print(explain_infeasibility(early))
    rows early, once[0] and memory[2] cannot all hold; without any one of them the others can (...)
    """

    rows: tuple[str, ...]
    irreducible: bool
    solver: str

    def __str__(self) -> str:
        if not self.rows:
            return f"no point lies within the bounds of all columns ({self.solver})"
        claim = "a part of them may conflict already, which more time would tell"
        if self.irreducible:
            claim = "without any one of them the others can"
        verb = {1: "cannot", 2: "cannot both"}.get(len(self.rows), "cannot all")
        return f"{_listed(self.rows, 'row')} {verb} hold; {claim} ({self.solver})"


@dataclass(frozen=True, eq=False)
class Windows:
    """The steps within which each request of an instance has to run."""

    instance: Instance
    horizon: int | None = None
    now: int = 0
    running: int = 0

    @classmethod
    def beside(
        cls, instance: Instance, horizon: int | None, now: int, running: Running = NOTHING_RUNNING
    ) -> Windows:
        """Return the windows of an instance beside running requests, which come first."""
        running.fit(instance.memory, now)
        if now == 0 and not len(running.tokens):
            return cls(instance, horizon)
        return cls(running.join(instance, now), horizon, now, len(running.tokens))

    def __post_init__(self) -> None:
        horizon = self.horizon
        if horizon is not None and (int(horizon) != horizon or horizon < 1):
            raise ModelError(f"horizon is {horizon}, but must be a whole number of at least 1")
        if horizon is None and self.instance.deadlines is None:
            raise ModelError("there are no deadlines and no horizon, so that nothing can be late")

    @property
    def earliest(self) -> IntArray:
        """First start of each request, shape (n,)."""
        return self.instance.arrivals

    @cached_property
    def due(self) -> IntArray:
        """Step by which each request has to complete, shape (n,)."""
        due = self.instance.deadlines
        if due is None:
            due = np.full(len(self.instance), self.horizon, dtype=np.int64)
        elif self.horizon is not None:
            due = np.minimum(due, self.horizon)
        ends = self.now + self.instance.outputs[: self.running]
        return np.concatenate([ends, due[self.running :]])

    @property
    def latest(self) -> IntArray:
        """Last start of each request, shape (n,)."""
        return np.asarray(self.due - self.instance.outputs)

    @property
    def too_narrow(self) -> IntArray:
        """Requests that could not complete in time even alone."""
        return np.flatnonzero(self.latest < self.earliest)

    def contested(self) -> IntArray:
        """Find the requests that can be part of an irreducible conflict of two or more."""
        kept = np.flatnonzero(self.latest >= self.earliest)
        while len(kept):
            free = self.latest[kept] >= latest_starts(self.instance.take(kept))
            if not free.any():
                break
            kept = kept[~free]
        return kept

    def clashing_pair(self, requests: IntArray) -> tuple[int, int] | None:
        """Find two requests that cannot both complete in time."""
        instance = self.instance
        prompts, outputs = instance.prompts[requests], instance.outputs[requests]
        earliest, latest = self.earliest[requests], self.latest[requests]

        def apart(first: Any, second: Any) -> Any:
            """Return the least distance of starts with which the first may complete first."""
            together = prompts[first] + prompts[second] - instance.memory
            overlap = np.maximum(outputs[first] - outputs[second], 2 * outputs[first] + together)
            return np.minimum(outputs[first], overlap)

        for one in range(len(requests) - 1):
            others = np.arange(one + 1, len(requests))
            clash = latest[others] - earliest[one] < apart(one, others)
            clash &= latest[one] - earliest[others] < apart(others, one)
            if clash.any():
                return int(requests[one]), int(requests[others[np.argmax(clash)]])
        return None

    def overload(self, requests: IntArray) -> IntArray | None:
        """Find requests that hold more memory-time than there is within their windows."""
        order = requests[np.argsort(-self.earliest[requests], kind="stable")]
        begin, due = self.earliest[order], self.due[order]
        areas = self.instance.areas[order].astype(np.float64)
        found: list[tuple[int, int, int]] = []  # members, the last of them in order, and the end
        for end in np.unique(due).tolist():
            inside = due <= end
            held = np.cumsum(np.where(inside, areas, 0.0))
            offered = float(self.instance.memory) * (end - begin)
            over = np.flatnonzero(inside & (held > offered * (1 + 1e-12)))
            if len(over):
                found.append((int(np.count_nonzero(inside[: over[0] + 1])), int(over[0]), end))
        if not found:
            return None
        _, last, end = min(found, key=lambda members: members[0])
        inside = np.flatnonzero(due[: last + 1] <= end)
        heaviest = inside[np.argsort(-areas[inside], kind="stable")]
        offered = float(self.instance.memory) * (end - int(begin[last]))
        needed = int(np.argmax(np.cumsum(areas[heaviest]) > offered)) + 1
        return np.sort(order[heaviest[:needed]])

    def program(self, requests: IntArray) -> HindsightProgram:
        """Return the hindsight program of some requests that can each complete alone."""
        part = self.instance.take(requests).replace(deadlines=self.due[requests])
        return HindsightProgram(
            part,
            horizon=int(self.due[requests].max()),
            now=int(self.earliest[requests].min()),
        )

    def describe(
        self,
        requests: Sequence[int],
        steps: IntArray,
        *,
        irreducible: bool = True,
        tight: bool = True,
    ) -> Conflict:
        """Put a conflict into words."""
        instance, members = self.instance, np.sort(np.asarray(requests, dtype=np.int64))
        first, new = int(members[0]), members[members >= self.running]
        begin, end = int(self.earliest[members].min()), int(self.due[members].max())
        span = _steps(range(begin + 1, end + 1))
        held = sum(instance.areas[members].tolist())
        offered = instance.memory * (end - begin)
        # Conflicts of one and of two are found first, whatever the others do.
        smallest = len(members) <= _FEW
        proof: Proof = "pair" if len(members) == 2 else "search"
        if len(members) == 1:
            proof = "window"
            limit = "its deadline" if end != self.horizon else "the horizon"
            verb = "cannot start before" if 0 < begin == self.now else "arrives at"
            reason = (
                f"it {verb} step {begin} and makes {instance.outputs[first]} tokens, so it "
                f"completes at step {begin + instance.outputs[first]} at the earliest, but "
                f"{limit} is step {end}"
            )
        elif held > offered:
            proof = "memory-time"
            reason = (
                f"they hold {held:,} token-steps, all of them within {span}, "
                f"where the memory of {instance.memory:,} tokens offers {offered:,}"
            )
        else:
            starts = "its start" if len(new) == 1 else "their starts"
            reason = (
                f"whatever {starts}, they hold more than the memory of {instance.memory:,} tokens "
                f"at {'' if len(steps) == 1 else 'one of the '}{_steps(*_ranges(steps))}"
            )
        return Conflict(
            requests=tuple(instance.label(request) for request in new.tolist()),
            indices=tuple((new - self.running).tolist()),
            running=tuple(members[members < self.running].tolist()),
            steps=_ranges(steps),
            proof=proof,
            irreducible=irreducible or smallest,
            smallest=smallest,
            tight=tight,
            reason=reason,
        )


def _ranges(steps: IntArray) -> tuple[range, ...]:
    """Join consecutive steps."""
    if not len(steps):
        return ()
    runs = np.split(steps, np.flatnonzero(np.diff(steps) > 1) + 1)
    return tuple(range(int(run[0]), int(run[-1]) + 1) for run in runs)


def _steps(*ranges: range) -> str:
    parts = [
        str(part.start) if len(part) == 1 else f"{part.start}..{part.stop - 1}" for part in ranges
    ]
    return f"step{'' if sum(map(len, ranges)) == 1 else 's'} {', '.join(parts)}"


def _listed(labels: Sequence[str], noun: str = "request") -> str:
    words, count = list(labels[:_LISTED]), len(labels)
    if count > _LISTED:
        words.append(f"{count - _LISTED:,} more")
    if len(words) > 1:
        words = [f"{', '.join(words[:-1])} and {words[-1]}"]
    return f"{noun}{'' if count == 1 else 's'} {words[0]}"
