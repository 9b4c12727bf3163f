r"""Requests that cannot all complete in time: windows, and the conflicts that arithmetic finds.

Request :math:`i` has to run within its window: it starts from :math:`e_i = a_i` on and completes by
its due step :math:`f_i`, the earlier of its deadline and the horizon. Requests *conflict* if no
starts keep them all within their windows and the memory. Three facts about conflicts that are
irreducible, that is, vanish without any one of their requests:

- *One request* conflicts exactly if :math:`e_i + o_i > f_i`.
- *Two requests* that can each run alone conflict exactly if :math:`f_j - o_j - e_i < D_{ij}` and
  :math:`f_i - o_i - e_j < D_{ji}`, where
  :math:`D_{ij} = \min\{o_i, \max\{o_i - o_j,\, 2 o_i + s_i + s_j - M\}\}` is the least
  :math:`p_j - p_i` with which :math:`i` may complete first (Eq. 6 at :math:`c_i`).
- *Memory-time.* Requests whose windows lie within the steps :math:`b + 1, \dots, f` conflict if
  :math:`\sum A_i > M (f - b)`.

A running request is one whose window holds one start only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optsched.errors import ModelError
from optsched.models.running import NOTHING_RUNNING, Running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance

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
    """Requests, running ones first, that have to run between arrival and deadline."""

    instance: Instance
    horizon: int | None
    now: int
    running: int

    @classmethod
    def beside(
        cls, instance: Instance, horizon: int | None, now: int, running: Running = NOTHING_RUNNING
    ) -> Windows:
        """Return the windows of requests that are due by a horizon, beside running ones."""
        running.fit(instance.memory, now)
        if horizon is not None:
            if int(horizon) != horizon or horizon < 1:
                raise ModelError(f"horizon is {horizon}, but must be a whole number of at least 1")
            due = np.full(len(instance), horizon, dtype=np.int64)
            if instance.deadlines is not None:
                due = np.minimum(due, instance.deadlines)
            instance = instance.replace(deadlines=due)
        return cls(running.join(instance, now), horizon, now, len(running.tokens))

    @property
    def due(self) -> IntArray:
        """Step by which each request has to complete, shape (n,)."""
        return np.asarray(self.instance.deadlines)

    @property
    def latest(self) -> IntArray:
        """Last start of each request, shape (n,)."""
        return np.asarray(self.due - self.instance.outputs)

    def clashing_pair(self) -> list[int] | None:
        """Find two requests that cannot both complete in time, where each can alone."""
        instance, latest = self.instance, self.latest
        prompts, outputs, earliest = instance.prompts, instance.outputs, instance.arrivals

        def apart(first: Any, second: Any) -> Any:
            """Return the least distance of starts with which the first may complete first."""
            together = prompts[first] + prompts[second] - instance.memory
            overlap = np.maximum(outputs[first] - outputs[second], 2 * outputs[first] + together)
            return np.minimum(outputs[first], overlap)

        for one in range(len(instance) - 1):
            others = np.arange(one + 1, len(instance))
            clash = latest[others] - earliest[one] < apart(one, others)
            clash &= latest[one] - earliest[others] < apart(others, one)
            if clash.any():
                return [one, int(others[np.argmax(clash)])]
        return None

    def overload(self, requests: IntArray) -> IntArray | None:
        """Find requests that hold more memory-time than there is within their windows."""
        instance = self.instance
        order = requests[np.argsort(-instance.arrivals[requests], kind="stable")]
        for end in np.unique(self.due[order]):
            inside = order[self.due[order] <= end]
            offered = (1 + 1e-12) * instance.memory * (end - instance.arrivals[inside])
            over = np.cumsum(instance.areas[inside], dtype=np.float64) > offered
            if over.any():
                first = int(np.argmax(over))
                among = inside[: first + 1]
                heavy: IntArray = among[np.argsort(-instance.areas[among], kind="stable")]
                held = np.cumsum(instance.areas[heavy], dtype=np.float64)
                return heavy[: int(np.argmax(held > offered[first])) + 1]
        return None

    def describe(
        self, requests: Sequence[int], steps: tuple[range, ...], *, irreducible: bool, tight: bool
    ) -> Conflict:
        """Put a conflict into words."""
        instance, members = self.instance, np.sort(requests)
        first, new = int(members[0]), members[members >= self.running]
        begin, end = int(instance.arrivals[members].min()), int(self.due[members].max())
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
                f"they hold {held:,} token-steps, all of them within "
                f"{_steps([range(begin + 1, end + 1)])}, "
                f"where the memory of {instance.memory:,} tokens offers {offered:,}"
            )
        else:
            starts = "its start" if len(new) == 1 else "their starts"
            one_of = "" if sum(map(len, steps)) == 1 else "one of the "
            reason = (
                f"whatever {starts}, they hold more than the memory of {instance.memory:,} tokens "
                f"at {one_of}{_steps(steps)}"
            )
        return Conflict(
            requests=tuple(instance.label(request) for request in new.tolist()),
            indices=tuple((new - self.running).tolist()),
            running=tuple(members[members < self.running].tolist()),
            steps=steps,
            proof=proof,
            irreducible=irreducible or smallest,
            smallest=smallest,
            tight=tight,
            reason=reason,
        )


def _steps(ranges: Sequence[range]) -> str:
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
