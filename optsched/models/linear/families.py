"""Families: named columns or rows of a linear model, identified by integer indices."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray

_FAMILY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMBER_NAME = re.compile(r"(?P<family>[A-Za-z_]\w*)(?:[\[(](?P<keys>-?\d+(?:,-?\d+)*)[\])])?")


@dataclass(frozen=True, eq=False, repr=False)
class Family:
    """Columns or rows of one kind, identified by integer indices.

    Parameters
    ----------
    name
        Letters, digits and underscores.
    index_names
        What the indices count; empty for a single column or row.
    keys
        The indices of each member, shape (count, len(index_names)).

    Examples
    --------
    >>> start = Family.of("start", request=[0, 0, 1], step=[0, 1, 0])
    >>> start
    start[request,step]
    >>> len(start), start.label(1), start.names("()")
    (3, 'start[0,1]', ['start(0,0)', 'start(0,1)', 'start(1,0)'])
    """

    name: str
    index_names: tuple[str, ...]
    keys: IntArray

    def __post_init__(self) -> None:
        if not _FAMILY_NAME.fullmatch(self.name):
            raise ModelError(
                f"a family is called {self.name!r}, but only letters, digits and underscores "
                "survive in every file format"
            )
        keys = np.asarray(self.keys)
        if keys.dtype.kind != "i" and (np.abs(keys.astype(np.float64)) >= 2**63).any():
            raise ModelError(f"family {self.name}: an index is beyond 64-bit integers")
        keys = keys.astype(np.int64)
        if keys.ndim != 2 or keys.shape[1] != len(self.index_names):
            raise ModelError(
                f"family {self.name}: the keys have shape {keys.shape}, but there are "
                f"{len(self.index_names)} index names; pass one column per index"
            )
        object.__setattr__(self, "index_names", tuple(self.index_names))
        object.__setattr__(self, "keys", read_only(keys))

    @classmethod
    def of(cls, name: str, **indices: npt.ArrayLike) -> Family:
        """Make a family from one array per index; without any, a family of one."""
        columns = [np.asarray(values, dtype=np.int64) for values in indices.values()]
        keys = np.stack(columns, axis=1) if columns else np.empty((1, 0), dtype=np.int64)
        return cls(name, tuple(indices), keys)

    @classmethod
    def parse(cls, names: Sequence[str]) -> tuple[Family, ...]:
        """Find the families in a list of member names, as read back from a file."""
        runs: list[tuple[str, list[tuple[int, ...]]]] = []
        for name in names:
            match = _MEMBER_NAME.fullmatch(name)
            if match is None:
                raise ModelError(f"{name!r} is not a name such as 'start[3,17]'")
            key = tuple(map(int, match["keys"].split(","))) if match["keys"] else ()
            same = runs and runs[-1][0] == match["family"] and len(runs[-1][1][0]) == len(key)
            if not same:
                runs.append((match["family"], []))
            runs[-1][1].append(key)
        return tuple(
            cls(family, tuple("ijklmn"[: len(keys[0])]), np.array(keys).reshape(len(keys), -1))
            for family, keys in runs
        )

    def __len__(self) -> int:
        return len(self.keys)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Family):
            return NotImplemented
        return (
            self.name == other.name
            and self.index_names == other.index_names
            and np.array_equal(self.keys, other.keys)
        )

    def __hash__(self) -> int:
        return hash((self.name, self.index_names, len(self)))

    def __repr__(self) -> str:
        return self.name + (f"[{','.join(self.index_names)}]" if self.index_names else "")

    def names(self, brackets: str = "[]") -> list[str]:
        """Return the names of all members."""
        if not self.index_names:
            return [self.name] * len(self)
        indices = ",".join(["%d"] * len(self.index_names))
        pattern = f"{self.name}{brackets[0]}{indices}{brackets[1]}"
        return [pattern % tuple(key) for key in self.keys.tolist()]

    def label(self, position: int) -> str:
        """Return the name of one member."""
        return dataclasses.replace(self, keys=self.keys[position : position + 1]).names()[0]

    def positions(self, **indices: int) -> IntArray:
        """Find the members with given values of some indices."""
        if unknown := sorted(set(indices) - set(self.index_names)):
            raise ModelError(f"{self!r} has no index {unknown[0]!r}")
        wanted = [indices.get(name) for name in self.index_names]
        found = np.ones(len(self), dtype=bool)
        for axis, value in enumerate(wanted):
            if value is not None:
                found &= self.keys[:, axis] == value
        return np.flatnonzero(found)


@dataclass(frozen=True, eq=False)
class Variables:
    """A family of columns for `LinearModel.build`; numbers hold for every member."""

    family: Family
    cost: npt.ArrayLike = 0.0
    lower: npt.ArrayLike = 0.0
    upper: npt.ArrayLike = np.inf
    integer: npt.ArrayLike = False  # whether they take whole values only


@dataclass(frozen=True, eq=False)
class Rows:
    """A family of rows for `LinearModel.build`; numbers hold for every member."""

    family: Family
    blocks: Mapping[str, Any]  # by variable family, each of shape (rows, columns of that family)
    lower: npt.ArrayLike = -np.inf
    upper: npt.ArrayLike = np.inf


def member_name(families: tuple[Family, ...], position: int) -> str:
    """Name the member at a position of families laid out one after another."""
    for family in families:
        if position < len(family):
            return family.label(position)
        position -= len(family)
    raise IndexError(position)


def member_positions(families: tuple[Family, ...], name: str, indices: dict[str, int]) -> IntArray:
    """Find members among families laid out one after another (`Family.positions`)."""
    begin = 0
    for family in families:
        if family.name == name:
            return begin + family.positions(**indices)
        begin += len(family)
    known = ", ".join(family.name for family in families)
    raise ModelError(f"there is no family {name!r}; known: {known}")


def spread(values: Sequence[npt.ArrayLike], families: Sequence[Family]) -> FloatArray:
    """Lay numbers per family out over its members."""
    parts = []
    for value, family in zip(values, families, strict=True):
        numbers = np.asarray(value, dtype=np.float64)
        if numbers.shape not in ((), (len(family),)):
            raise ModelError(
                f"family {family!r}: {numbers.size} numbers of shape {numbers.shape} were given "
                f"for its {len(family)} members"
            )
        parts.append(np.broadcast_to(numbers, (len(family),)))
    return np.concatenate(parts) if parts else np.zeros(0)


def as_point(values: Any, columns: int) -> FloatArray:
    """Return the values of a program's columns, of a solution, too; others come after them."""
    values = getattr(values, "values", values)
    if values is None:
        raise ModelError(
            "there is no point to read, because no answer was found; the status and raw_status of "
            "the solution say why"
        )
    point = np.asarray(values, dtype=np.float64)
    if point.ndim != 1 or len(point) < columns:
        raise ModelError(
            f"the point has shape {point.shape}, but the program has {columns} columns"
        )
    return point[:columns]


def whole_numbers(values: npt.ArrayLike, family: Family, tolerance: float = 1e-5) -> IntArray:
    """Round the values of a family of columns to whole numbers."""
    point = as_point(values, len(family))
    nearby = np.rint(point)
    off = ~(np.abs(point - nearby) <= tolerance)  # true for NaN
    if off.any():
        column = int(np.argmax(off))
        raise ModelError(
            f"the point is fractional: {family.label(column)} is {point[column]:g}; an answer can "
            "be read from whole numbers only"
        )
    return nearby.astype(np.int64)


def read_only(array: Any) -> Any:
    """Return a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view
