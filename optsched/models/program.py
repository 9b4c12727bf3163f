"""What every model is: a decision problem that becomes arrays and reads an answer back."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from bisect import bisect
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from optsched._internal.room import NONZERO, has_room, room_for
from optsched._internal.views import lines_as_html
from optsched.errors import ModelError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray
    from optsched.models.linear.model import LinearModel


class Size(NamedTuple):
    """How large a linear model is, known before it is written."""

    columns: int
    nonzeros: int
    rows: int

    def __str__(self) -> str:
        return f"{self.columns:,} columns, {self.nonzeros:,} nonzeros"


def require_size(size_at: Callable[[int], Size], least: int, horizon: int) -> None:
    """Refuse a program of too many steps, and say up to which horizon there is room."""
    count = sum(size_at(horizon)[1:])
    if count >= 2**31 or not has_room(count, NONZERO):
        most = min(room_for(NONZERO), 2**31 - 1)  # indices have 32 bits
        steps = range(least, horizon)
        fits = least + bisect(steps, most, key=lambda last: sum(size_at(last)[1:])) - 1
        advice = f"a horizon of up to {fits:,} fits" if fits >= least else "take fewer requests"
        raise ModelError(
            f"the program would have {count:,} rows and nonzeros over {horizon:,} steps, but there "
            f"is room for {most:,}; {advice}, or solve the instance by the method search"
        )


class Program(ABC):
    """A decision problem with linear rows; `optsched.solve` solves whatever has these methods."""

    @abstractmethod
    def to_linear(self) -> LinearModel:
        """Write the program as arrays."""

    @abstractmethod
    def read(self, values: npt.ArrayLike, /) -> Any:
        """Turn a point of the linear model into an answer in the terms of the problem."""

    @abstractmethod
    def write_point(self, answer: Any, /) -> FloatArray:
        """Turn an answer into a point of the linear model, for instance as a start."""

    def to_pyomo(self) -> Any:
        """Return the program as a Pyomo model with the names of `to_linear`."""
        return self.to_linear().to_pyomo()

    def _repr_html_(self) -> str:
        """Show what it is, and its data that differ from their defaults."""
        lines, this = [repr(self)], cast("Any", self)
        fields: Any = dataclasses.fields(this) if dataclasses.is_dataclass(self) else ()
        for each in fields:
            if (value := getattr(self, each.name)) is not each.default and value is not None:
                lines.append(f"{each.name}  {shown(value)}")
        return lines_as_html("\n".join(lines))
