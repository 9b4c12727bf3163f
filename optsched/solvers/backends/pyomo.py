"""Pyomo: any solver it knows; its own models become arrays, which are faster to hand over."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from optsched.errors import InfeasibleError, SolverError
from optsched.models.linear.arrays import LinearArrays
from optsched.models.solution import Stopped
from optsched.solvers.backends import highs
from optsched.solvers.backends.base import Answer, Capabilities, Options, Reporter, by_name
from optsched.solvers.backends.files import with_names

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.models.linear.model import LinearModel

#: How to install solvers that Pyomo runs, under each of the names that it has for one.
INSTALL = {
    "highs": highs.CAPABILITIES.install,
    "cbc": "conda install -c conda-forge coin-or-cbc",
    "cplex": "pip install cplex",
    "glpk": "conda install -c conda-forge glpk",
    "gurobi": "pip install gurobipy",
    "scip": "conda install -c conda-forge scip",
    "xpress": "pip install xpress",
}

#: Every termination condition of Pyomo.
STATUS = by_name(
    {
        Stopped.OPTIMAL: "globallyOptimal locallyOptimal optimal",
        Stopped.GAP_LIMIT: "minFunctionValue",
        Stopped.TIME_LIMIT: "maxTimeLimit",
        Stopped.ITERATION_LIMIT: "maxIterations maxEvaluations",
        Stopped.UNBOUNDED: "unbounded",
        Stopped.INFEASIBLE: "infeasible",
        Stopped.INFEASIBLE_OR_UNBOUNDED: "infeasibleOrUnbounded",
        Stopped.INTERRUPTED: "userInterrupt resourceInterrupt",
        Stopped.ERROR: "invalidProblem solverFailure internalSolverError error licensingProblems",
        Stopped.UNKNOWN: "unknown minStepLength feasible other intermediateNonInteger noSolution",
    }
)


@dataclass(frozen=True, eq=False)
class PyomoTask:
    """A linear model and the Pyomo solver that is to solve it."""

    model: LinearModel
    solver: str


def load() -> None:
    """Import Pyomo."""
    import pyomo.environ  # noqa: F401


@functools.cache
def _factory() -> Any:
    import pyomo.environ as pyo

    return pyo.SolverFactory


def capabilities(solver: str) -> Capabilities | None:
    """Say what one of Pyomo's solvers can do through Pyomo."""
    if solver.startswith("_") or solver not in list(_factory()):
        return None
    plain = solver.removeprefix("appsi_").removesuffix("_direct")
    return Capabilities(
        name=solver,
        title=f"Pyomo's {solver}",
        starts=False,
        interrupts=False,
        install=INSTALL.get(plain, "see https://pyomo.readthedocs.io for how to install it"),
    )


def refuse(solver: str, options: Options) -> None:
    """Reject what does not reach a solver through Pyomo."""
    plain = Options()
    for name in ("threads", "seed", "gap_limit"):
        if (value := getattr(options, name)) != getattr(plain, name):
            raise SolverError(
                f"{name} is {value}, but does not reach Pyomo's {solver}; leave it out or use "
                "method='highs'"
            )
    try:
        available = bool(_factory()(solver).available(exception_flag=False))
    except Exception:  # plugins fail in many ways where their solver is missing
        available = False
    if not available and (able := capabilities(solver)) is not None:
        raise SolverError(f"{able.title} is not installed: {able.install}")


def solve(
    task: PyomoTask, options: Options, start: FloatArray | None, reporter: Reporter
) -> Answer:
    """Solve a linear model by one of Pyomo's solvers, in this thread."""
    native = task.model.to_pyomo()
    keywords: dict[str, Any] = {"load_solutions": False}
    if (remaining := reporter.remaining(options.time_limit)) is not None:
        keywords["timelimit"] = remaining
    result = _factory()(task.solver).solve(native, **keywords)
    condition = result.solver.termination_condition.value
    values = None
    if len(result.solution):
        native.solutions.load_from(result)
        families = (native.component(family.name) for family in task.model.variables)
        found = [member.value for family in families for member in family.values()]
        # Columns that stand in no row and cost nothing never reach the solver.
        free = np.clip(0.0, task.model.col_lower, task.model.col_upper).tolist()
        values = np.array(
            [rest if value is None else value for value, rest in zip(found, free, strict=True)]
        )
    problem = result.problem
    bound = problem.lower_bound if task.model.sense == "min" else problem.upper_bound
    bound = float(bound) if isinstance(bound, int | float) else None
    stopped = STATUS.get(condition, Stopped.UNKNOWN)
    raw_status = condition
    if stopped is Stopped.OPTIMAL and bound is None and values is not None:
        raw_status = f"{condition}, by its own word: it gives no bound"
    return Answer(stopped, f"Pyomo's {task.solver}", raw_status, values, bound)


def from_pyomo(native: Any) -> LinearModel:
    """Turn a linear Pyomo model into arrays."""
    return compile_pyomo(native)[0]


def compile_pyomo(native: Any) -> tuple[LinearModel, list[Any]]:
    """Return a Pyomo model as arrays, and the variables behind their columns."""
    from pyomo.common.errors import InfeasibleConstraintException
    from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

    try:
        form = LinearStandardFormCompiler().write(native, mixed_form=True, set_sense=None)
    except InfeasibleConstraintException as error:
        raise InfeasibleError(f"{native.name}: {_sentence(error)}") from None
    except Exception as error:
        if "linear" not in str(error):
            raise
        raise SolverError(
            f"{native.name}: {_sentence(error)}; only linear models can be solved here, so "
            "linearise it or call a nonlinear solver through Pyomo itself"
        ) from None
    if len(form.objectives) != 1:
        raise SolverError(
            f"{native.name}: there are {len(form.objectives)} active objectives, but must be one"
        )
    variables = form.columns
    rows, lower, upper, kept = _rows(form)
    bounds = [variable.bounds for variable in variables]
    arrays = LinearArrays(
        cost=form.c.toarray().reshape(-1)[: len(variables)],
        matrix=sparse.csr_array(form.A)[kept],
        row_lower=lower,
        row_upper=upper,
        col_lower=np.array([-np.inf if low is None else low for low, _ in bounds]),
        col_upper=np.array([np.inf if high is None else high for _, high in bounds]),
        integer=np.array([not variable.is_continuous() for variable in variables], dtype=bool),
        offset=float(form.c_offset[0]),
        sense="min" if form.objectives[0].sense == 1 else "max",
        name=native.name,
    )
    model, order = with_names(arrays, rows, [variable.name for variable in variables])
    return model, [variables[at] for at in order.tolist()]


def _rows(form: Any) -> tuple[list[str], FloatArray, FloatArray, list[int]]:
    """Join the two rows of a constraint with two bounds, which come one after the other."""
    names: list[str] = []
    lower: list[float] = []
    upper: list[float] = []
    kept: list[int] = []
    last = None
    for at, ((constraint, kind), side) in enumerate(zip(form.rows, form.rhs, strict=True)):
        if constraint is last:  # its upper bound came first
            lower[-1] = side
            continue
        last = constraint
        names.append(constraint.name)
        lower.append(-np.inf if kind == 1 else side)
        upper.append(np.inf if kind == -1 else side)
        kept.append(at)
    return names, np.array(lower, dtype=np.float64), np.array(upper, dtype=np.float64), kept


def _sentence(error: Exception) -> str:
    return str(error).strip().rstrip(".").replace("\n", " ")
