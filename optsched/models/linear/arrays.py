"""The arrays of a linear model and the names of its columns and rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from optsched.models.linear.families import Family, member_name

if TYPE_CHECKING:
    import numpy as np
    from scipy import sparse

    from optsched._internal.arrays import BoolArray, FloatArray

Sense = Literal["min", "max"]


@dataclass(frozen=True, eq=False, repr=False)
class LinearArrays:
    """What checks, texts and other modelling languages read of a `LinearModel`."""

    cost: FloatArray
    matrix: sparse.csr_array[np.float64]
    row_lower: FloatArray
    row_upper: FloatArray
    col_lower: FloatArray
    col_upper: FloatArray
    integer: BoolArray
    offset: float = 0.0
    sense: Sense = "min"
    variables: tuple[Family, ...] = ()
    rows: tuple[Family, ...] = ()
    name: str = "model"

    def column_name(self, column: int) -> str:
        """Return the name of one column, such as ``start[3,17]``."""
        return member_name(self.variables, column)

    def row_name(self, row: int) -> str:
        """Return the name of one row, such as ``memory[17]``."""
        return member_name(self.rows, row)

    def column_names(self, brackets: str = "[]") -> list[str]:
        """Return the names of all columns; LP files need the brackets "()"."""
        return [name for family in self.variables for name in family.names(brackets)]

    def row_names(self, brackets: str = "[]") -> list[str]:
        """Return the names of all rows; LP files need the brackets "()"."""
        return [name for family in self.rows for name in family.names(brackets)]
