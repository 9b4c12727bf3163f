"""Blocks: how families of columns and rows, with their numbers, are put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from optsched.errors import ModelError
from optsched.models.linear.families import Family, read_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class Variables:
    """A family of columns for `LinearModel.build`; numbers hold for every member.

    Parameters
    ----------
    family
        Their names.
    cost
        Objective coefficients.
    lower, upper
        Bounds.
    integer
        Whether they take whole values only.
    """

    family: Family
    cost: npt.ArrayLike = 0.0
    lower: npt.ArrayLike = 0.0
    upper: npt.ArrayLike = np.inf
    integer: npt.ArrayLike = False


@dataclass(frozen=True, eq=False)
class Rows:
    """A family of rows for `LinearModel.build`; numbers hold for every member.

    Parameters
    ----------
    family
        Their names.
    blocks
        Coefficients by name of a variable family, each of shape (rows, columns of that family).
        Families that are left out have none.
    lower, upper
        Bounds.
    """

    family: Family
    blocks: Mapping[str, Any]
    lower: npt.ArrayLike = -np.inf
    upper: npt.ArrayLike = np.inf


def canonical(matrix: Any) -> sparse.csr_array[np.float64]:
    """Sort, merge and thin out the entries; the input stays as it is."""
    result = sparse.csr_array(matrix, dtype=np.float64)
    if not result.has_canonical_format or not result.data.all():
        result = result.copy()
        result.sum_duplicates()
        result.eliminate_zeros()
    index = np.int32 if max(result.nnz, *result.shape) < 2**31 else np.int64
    return sparse.csr_array(
        (
            read_only(result.data),
            read_only(result.indices.astype(index, copy=False)),
            read_only(result.indptr.astype(index, copy=False)),
        ),
        shape=result.shape,
    )


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


def join_blocks(group: Rows, families: tuple[Family, ...]) -> sparse.csr_array[np.float64]:
    """Put the blocks of one family of rows side by side."""
    known = [family.name for family in families]
    begins = dict(zip(known, np.cumsum([0, *map(len, families)]).tolist(), strict=False))
    width = sum(map(len, families))
    joined = sparse.csr_array((len(group.family), width))
    for name, block in group.blocks.items():
        if name not in begins:
            raise ModelError(
                f"rows {group.family!r}: there are no variables {name!r}, only {', '.join(known)}"
            )
        part = as_block(group.family.name, block)
        expected = (len(group.family), len(families[known.index(name)]))
        if part.shape != expected:
            raise ModelError(
                f"rows {group.family!r}: the block of {name} has shape {part.shape}, "
                f"but should have {expected}"
            )
        indices = part.indices + begins[name]
        shifted = sparse.csr_array(
            (part.data, indices, part.indptr), shape=(len(group.family), width)
        )
        joined = shifted if joined.nnz == 0 else joined + shifted
    return joined


def as_block(name: str, coefficients: Any) -> sparse.csr_array[np.float64]:
    """Return coefficients, dense or sparse, as a matrix; one row may be written as a list."""
    try:
        rows: Any = coefficients if sparse.issparse(coefficients) else np.atleast_2d(coefficients)
        return sparse.csr_array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise ModelError(
            f"rows {name!r}: the coefficients are no table of numbers with one row per row and "
            "one column per column of the model"
        ) from None


def named_rows(
    name: Family | str, coefficients: Any, variables: tuple[Family, ...]
) -> tuple[Family, sparse.csr_array[np.float64]]:
    """Return a family of rows and its coefficients, given as a matrix or by family of columns."""
    if not isinstance(name, Family | str):
        raise ModelError(f"rows are called {name!r}, but need a name or a Family")
    label = name if isinstance(name, str) else name.name
    by_family = isinstance(coefficients, Mapping)
    blocks = coefficients.values() if by_family else [coefficients]
    parts = [as_block(label, block) for block in blocks]
    count = parts[0].shape[0] if parts else 0
    family = name
    if isinstance(family, str):
        family = Family.of(label) if count == 1 else Family.of(label, row=range(count))
    if by_family:
        return family, join_blocks(Rows(family, coefficients), variables)
    width = sum(map(len, variables))
    if parts[0].shape != (len(family), width):
        raise ModelError(
            f"rows {family!r}: the matrix has shape {parts[0].shape}, but there are "
            f"{len(family)} rows and {width} columns"
        )
    return family, parts[0]


def stack(parts: Sequence[Any], width: int) -> sparse.csr_array[np.float64]:
    """Put blocks of rows on top of each other; without any there are no rows."""
    if not parts:
        return sparse.csr_array((0, width))
    return sparse.csr_array(sparse.vstack(parts, format="csr"))
