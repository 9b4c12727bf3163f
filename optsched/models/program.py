"""What every model is: a decision problem that becomes arrays and reads an answer back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray
    from optsched.models.linear.model import LinearModel


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
        """Write the program as a Pyomo model with the names of `to_linear`.

        Returns
        -------
        pyomo.environ.ConcreteModel
            With one indexed component per family of columns or rows, and `objective`.

        Examples
        --------
        >>> from optsched import HindsightProgram, Instance
        >>> m = HindsightProgram(Instance([63, 1, 1], [1, 2, 2], memory=64), horizon=4).to_pyomo()
        >>> print(m.memory[1].expr)
        64.0*start[0,0] + 2.0*start[1,0]  <=  64.0
        """
        return self.to_linear().to_pyomo()
