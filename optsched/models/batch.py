r"""Which waiting requests to start together: the batch of least F (Sorted-F, Alg. 1 line 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import FloatArray, IntArray, as_integers
from optsched.errors import InfeasibleError, ModelError, require_known
from optsched.models.linear import Family, LinearModel, Rows, Variables, whole_numbers
from optsched.models.program import Program, Solution, Stopped
from optsched.problem.instance import Instance

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


Fit = Literal["peak", "profile"]
FITS: tuple[Fit, ...] = ("peak", "profile")
_OVER = (Stopped.TIME_LIMIT, Stopped.INTERRUPTED, Stopped.MEMORY_LIMIT)


@checked(ModelError)
@dataclass(frozen=True, eq=False, repr=False)
class BatchSelection(Program):
    r"""The batch :math:`X` with the least :math:`F(X) = \sum_{i \in X} o_i / |X|^2` that fits.

    For a given size :math:`k` that is a linear program over binary :math:`x_i`,

    .. math::

        \min \quad & \sum_i o_i x_i && \text{(1)} \\
        \text{s.t.} \quad & \sum_i x_i = k && \text{(2), size} \\
        \text{peak:} \quad & \sum_i (s_i + o_i) \, x_i \le M && \text{(3), memory} \\
        \text{profile:} \quad & \sum_{j :\, o_j \ge u} (s_j + u) \, x_j \le M
            && \forall u \in \{o_i\} \quad \text{(4), memory}

    and the best batch is the best of those for all :math:`k`. "profile" is Alg. 1's own condition
    :math:`M(X, p_i + o_i) \le M` for all members; "peak" is the stricter one of Alg. 2-5.

    (4) stands for every output :math:`u` of any request, member or not, and still excludes no batch
    that fits: with :math:`u'` the least output of a member that is at least :math:`u`, the sum runs
    over the same members for both, and :math:`\sum (s_j + u) \le \sum (s_j + u') \le M`.

    Parameters
    ----------
    prompts, outputs
        Tokens :math:`s_i \ge 0` and :math:`o_i \ge 1`, shape (n,).
    memory
        Tokens :math:`M` that the batch may hold.
    fit
        "peak" or "profile".
    size
        Number :math:`k` of members; None for the best of all sizes, for which there is no one
        linear program.
    own
        Rows of one's own, which each of these programs gets; `with_rows` adds some.

    Raises
    ------
    InstanceError, ModelError
        If a number is out of range, a request does not fit alone, or the fit is unknown.

    Examples
    --------
    >>> from optsched.models import BatchSelection
    >>> selection = BatchSelection([1, 1, 5], [2, 4, 2], memory=8, fit="profile", size=2)
    >>> print(selection.to_linear())
    batch of 2: min over 3 columns (3 integer), 3 rows, 7 nonzeros
      column  take[request]              3  integer, 0..1
      row     size                       1  3 nonzeros
      row     memory[output]             2  4 nonzeros
    >>> selection.fits([0, 1]), selection.ratio([0, 1])
    (True, Fraction(3, 2))
    """

    prompts: IntArray
    outputs: IntArray
    memory: int
    fit: Fit = "peak"
    size: int | None = None
    own: tuple[Rows, ...] = ()

    def __post_init__(self) -> None:
        require_known("fit", self.fit, FITS)
        checked = Instance(self.prompts, self.outputs, self.memory)
        for field in ("prompts", "outputs", "memory"):
            object.__setattr__(self, field, getattr(checked, field))
        if self.size is not None and not 1 <= self.size <= len(self):
            raise ModelError(f"size is {self.size}, but must be from 1 to {len(self)} requests")

    def __len__(self) -> int:
        return len(self.prompts)

    def __repr__(self) -> str:
        return f"<BatchSelection of {len(self)} requests, memory {self.memory}, {self.fit} fit>"

    def to_linear(self) -> LinearModel:
        """Return the program of its size as arrays.

        Columns are ``take[request]``; rows ``size`` and ``memory``, for the profile
        ``memory[output]``.
        """
        size = self.size
        if size is None:
            raise ModelError(
                "the batch of least F is a linear program for one size only; "
                "set BatchSelection(..., size=k)"
            )
        take = Variables(
            Family.of("take", request=np.arange(len(self))), self.outputs, upper=1, integer=True
        )
        count = Rows(Family.of("size"), {"take": np.ones((1, len(self)))}, lower=size, upper=size)
        if self.fit == "peak":
            family, usage = Family.of("memory"), (self.prompts + self.outputs)[None, :]
        else:
            steps = np.unique(self.outputs)
            family = Family.of("memory", output=steps)
            running = self.outputs >= steps[:, None]
            usage = (self.prompts + steps[:, None]) * running
        memory = Rows(family, {"take": usage}, upper=self.memory)
        return LinearModel.build(f"batch of {size}", [take], [count, memory, *self.own])

    def with_rows(
        self,
        name: Family | str,
        coefficients: npt.ArrayLike,
        lower: npt.ArrayLike = -np.inf,
        upper: npt.ArrayLike = np.inf,
    ) -> BatchSelection:
        """Add rows over ``take``, to the programs of all sizes.

        Parameters
        ----------
        name
            Their name, or a `Family` that says what tells them apart.
        coefficients
            Shape (rows, n), or (n,) for one row.
        lower, upper
            Bounds; numbers hold for every row.

        Examples
        --------
        Of the requests 0 and 1, which are of one client, at most one:

        >>> from optsched import solve
        >>> from optsched.models import BatchSelection
        >>> selection = BatchSelection([1, 1, 5], [2, 4, 2], memory=9)
        >>> solve(selection).answer.requests
        array([0, 1])
        >>> solve(selection.with_rows("client", [1, 1, 0], upper=1)).answer.requests
        array([2])
        """
        table = np.atleast_2d(np.asarray(coefficients, dtype=np.float64))
        if table.shape[1:] != (len(self),):
            raise ModelError(
                f"rows {name!r}: the coefficients have shape {table.shape}, but should have a "
                f"column for each of the {len(self)} requests"
            )
        family = name if isinstance(name, Family) else Family.of(name)
        if not isinstance(name, Family) and len(table) > 1:
            family = Family.of(name, row=range(len(table)))
        return replace(self, own=(*self.own, Rows(family, {"take": table}, lower, upper)))

    def read(self, values: npt.ArrayLike, /) -> IntArray:
        """Turn a point of the linear model into a batch, by ascending output (Alg. 1 line 5)."""
        names = Family.of("take", request=np.arange(len(self)))
        members = np.flatnonzero(whole_numbers(values, names))
        return members[np.argsort(self.outputs[members], kind="stable")]

    def write_point(self, batch: npt.ArrayLike, /) -> FloatArray:
        """Turn a batch, given by indices, into a point of the linear model."""
        point = np.zeros(len(self))
        point[_members(batch)] = 1
        return point

    def fits(self, batch: npt.ArrayLike) -> bool:
        """Return whether a batch keeps (3), or (4) when each member completes, and own rows."""
        members = _members(batch)
        for rows in self.own:
            sums = rows.blocks["take"][:, members].sum(axis=1)
            if (sums < rows.lower).any() or (sums > rows.upper).any():
                return False
        prompts, outputs = self.prompts[members], self.outputs[members]
        if self.fit == "peak":
            return int((prompts + outputs).sum()) <= self.memory
        return all(
            int((prompts[outputs >= step] + step).sum()) <= self.memory for step in outputs.tolist()
        )

    def ratio(self, batch: npt.ArrayLike) -> Fraction:
        """Return F of a batch, exactly."""
        members = _members(batch)
        return Fraction(int(self.outputs[members].sum()), len(members) ** 2)

    def best(self, solve: Callable[[LinearModel], Solution]) -> tuple[IntArray, Fraction]:
        """Find the batch of least F, the largest among equals (Alg. 1 line 4), by ascending output.

        `solve` solves the linear model of one size. The second value is proven: no batch has a
        lower F. Where time or memory ran out, the batch is the best that was found, or is empty.

        Raises
        ------
        InfeasibleError
            If no batch keeps the rows of one's own.
        """
        # A batch of k holds at least this at its first completion.
        at_first = self.prompts + (self.outputs if self.fit == "peak" else int(self.outputs.min()))
        largest = int((np.cumsum(np.sort(at_first)) <= self.memory).sum())
        least = np.cumsum(np.sort(self.outputs))[:largest].tolist()
        bounds = sorted((Fraction(least[k - 1], k * k), -k) for k in range(1, largest + 1))
        best: tuple[Fraction, int] | None = None
        answer, proven = np.zeros(0, dtype=np.int64), None
        for floor, negative in bounds:
            if best is not None and (floor, negative) >= best:
                break
            if -negative > largest:
                continue
            found = solve(replace(self, size=-negative).to_linear())
            if found.status is Stopped.INFEASIBLE:
                if not self.own:  # which may ask for more members
                    largest = -negative - 1
                continue
            over = found.status in _OVER
            known = Fraction(0) if over or found.bound is None else Fraction(found.bound)
            least_here = max(floor, known / negative**2)
            proven = least_here if proven is None else min(proven, least_here)
            if found.values is not None:
                batch = self.read(found.values)
                if best is None or (self.ratio(batch), negative) < best:
                    best, answer = (self.ratio(batch), negative), batch
            if over:  # larger sizes have no lower floor
                break
        else:
            if best is None:
                raise InfeasibleError("no batch of any size keeps the rows of your own")
        return answer, min(each for each in (proven, best and best[0]) if each is not None)


def _members(batch: npt.ArrayLike) -> IntArray:
    return as_integers("batch", batch)
