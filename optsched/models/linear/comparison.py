"""Whether two linear models are the same, to the last index or by the names they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched.models.linear.arrays import LinearArrays


def identical(one: LinearArrays, other: LinearArrays) -> bool:
    """Return whether two models agree in everything, the order of columns and rows included."""
    return (
        (one.name, one.sense, one.offset) == (other.name, other.sense, other.offset)
        and one.variables == other.variables
        and one.rows == other.rows
        and all(
            np.array_equal(mine, theirs)
            for mine, theirs in zip(_arrays(one), _arrays(other), strict=True)
        )
    )


def _arrays(model: LinearArrays) -> tuple[npt.NDArray[Any], ...]:
    bounds = (model.col_lower, model.col_upper, model.row_lower, model.row_upper)
    matrix = model.matrix
    return (model.cost, model.integer, *bounds, matrix.data, matrix.indices, matrix.indptr)


def same_by_name(one: LinearArrays, other: LinearArrays) -> bool:
    """Return whether equally named columns and rows carry equal numbers (`LinearModel.same_as`)."""
    if one.matrix.shape != other.matrix.shape:
        return False
    if (one.sense, one.offset) != (other.sense, other.offset):
        return False
    columns, other_columns = np.array(one.column_names()), np.array(other.column_names())
    rows, other_rows = np.array(one.row_names()), np.array(other.row_names())
    mine, theirs = np.argsort(columns), np.argsort(other_columns)
    my_rows, their_rows = np.argsort(rows), np.argsort(other_rows)
    difference: Any = one.matrix[my_rows][:, mine] != other.matrix[their_rows][:, theirs]
    return (
        np.array_equal(columns[mine], other_columns[theirs])
        and np.array_equal(rows[my_rows], other_rows[their_rows])
        and all(
            np.array_equal(getattr(one, field)[mine], getattr(other, field)[theirs])
            for field in ("cost", "col_lower", "col_upper", "integer")
        )
        and all(
            np.array_equal(getattr(one, field)[my_rows], getattr(other, field)[their_rows])
            for field in ("row_lower", "row_upper")
        )
        and difference.nnz == 0
    )
