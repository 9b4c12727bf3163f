"""What a linear model prints: its size, and its families with their bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optsched.models.linear.arrays import LinearArrays


def overview(model: LinearArrays) -> str:
    """Describe a model in a line for itself and one for each family."""
    row_count, column_count = model.matrix.shape
    lines = [
        f"{model.name}: {model.sense} over {_count(column_count, 'column')} "
        f"({int(model.integer.sum()):,} integer), {_count(row_count, 'row')}, "
        f"{_count(model.matrix.nnz, 'nonzero')}"
    ]
    begin = 0
    for family in model.variables:
        part = slice(begin, begin := begin + len(family))
        kind = {0: "continuous", len(family): "integer"}.get(
            int(model.integer[part].sum()), "mixed"
        )
        low, high = model.col_lower[part], model.col_upper[part]
        bounds = f", {low.min():g}..{high.max():g}" if len(family) else ""
        lines.append(f"  column  {family!r:<20}{len(family):>8,}  {kind}{bounds}")
    begin = 0
    for family in model.rows:
        nonzeros = model.matrix.indptr[begin + len(family)] - model.matrix.indptr[begin]
        begin += len(family)
        lines.append(
            f"  row     {family!r:<20}{len(family):>8,}  {_count(int(nonzeros), 'nonzero')}"
        )
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
