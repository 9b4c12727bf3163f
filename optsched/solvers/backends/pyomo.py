"""Pyomo: any solver it knows; its own models become arrays, which are faster to hand over."""

from __future__ import annotations

import functools
import logging
import math
from dataclasses import dataclass, replace
from importlib import import_module
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

import numpy as np
import scipy

from optsched._internal.aside import untimed
from optsched.errors import InfeasibleError, SolverError
from optsched.models.linear import LinearArrays, LinearModel
from optsched.models.program import Stopped
from optsched.solvers.backends import base, highs, words
from optsched.solvers.backends.files import with_names

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.models.in_pyomo import Native


#: How to install solvers that Pyomo runs, under each of the names that it has for one.
INSTALL = {
    "highs": highs.CAPABILITIES.install,
    "cbc": "apt install coinor-cbc, or conda install -c conda-forge coin-or-cbc",
    "cplex": "pip install cplex",
    "glpk": "apt install glpk-utils, or conda install -c conda-forge glpk",
    "gurobi": "pip install gurobipy",
    "scip": "conda install -c conda-forge scip, or pip install pyscipopt for scip_direct",
    "xpress": "pip install xpress",
}

#: What solvers call the options that Pyomo hands on as they are.
_OPTIONS = {
    "cbc": {"threads": "threads", "seed": "randomCbcSeed", "gap_limit": "ratioGap"},
    "glpk": {"seed": "seed", "gap_limit": "mipgap"},
}
_LARGEST = 1e15  # coefficient, as HiGHS has it
_MOST_SECONDS = 2**31 - 1  # of GLPK's limit, a whole number
_TRUSTED = 0.5  # share of the time limit up to which denials count: CBC then says infeasible
#: Modules that take their time, what they import first: Ctrl-C is heard between two of them.
_PARTS = (
    *("scipy.spatial", "scipy.optimize", "scipy.integrate", "scipy.ndimage", "scipy.stats"),
    *("pyomo.common", "pyomo.core", "pyomo.environ", "pyomo.repn.plugins.standard_form"),
)
_PRINTED = 1e-5  # by which a bound that was read from a log is off: it has six digits


@dataclass(frozen=True, eq=False)
class PyomoTask:
    """A linear model and the Pyomo solver that is to solve it."""

    model: LinearModel
    solver: str


def load() -> None:
    """Import Pyomo, whose parts come in when they are first used."""
    for part in _PARTS:
        with untimed():
            import_module(part)


@functools.cache
def _factory() -> Native:
    load()
    from pyomo.environ import SolverFactory

    return SolverFactory


def _quietly() -> Native:
    """Keep what Pyomo logs off the terminal: what matters of it is in an error or an answer."""
    from pyomo.common.log import LoggingIntercept

    return LoggingIntercept(module="pyomo", level=logging.ERROR)


def capabilities(solver: str) -> base.Capabilities | None:
    """Say what one of Pyomo's solvers can do through Pyomo."""
    if solver.startswith("_") or solver not in list(_factory()):
        return None
    plain = solver.removeprefix("appsi_").removesuffix("_direct")
    return base.Capabilities(
        name=solver,
        title=f"Pyomo's {solver}",
        starts=False,
        interrupts=False,
        install=INSTALL.get(plain, "see https://pyomo.readthedocs.io for how to install it"),
    )


def refuse(solver: str, options: base.Options) -> None:
    """Reject what does not reach a solver through Pyomo."""
    plain = base.Options()
    for name in ("threads", "seed", "gap_limit"):
        value = getattr(options, name)
        if value != getattr(plain, name) and name not in _OPTIONS.get(solver, ()):
            raise SolverError(
                f"{name} is {value}, but does not reach Pyomo's {solver}; leave it out or use "
                "method='highs'"
            )
    try:
        with _quietly(), untimed():  # it imports what it runs, or asks a program for its version
            available = bool(_factory()(solver).available(exception_flag=False))
    except Exception:  # plugins fail in many ways where their solver is missing
        available = False
    if not available and (able := capabilities(solver)) is not None:
        raise SolverError(f"{able.title} is not installed: {able.install}")


def solve(
    task: PyomoTask, options: base.Options, start: FloatArray | None, reporter: base.Reporter
) -> base.Answer:
    """Solve a linear model by one of Pyomo's solvers, in this thread."""
    model, solver, title = task.model, task.solver, f"Pyomo's {task.solver}"
    sign = 1 if model.sense == "min" else -1
    native = _minimised(model, sign)
    if np.abs(model.matrix.data).max(initial=0) >= _LARGEST:
        raise SolverError(f"{title} errs where coefficients are {_LARGEST:g} or more; scale them")
    plugin = _factory()(solver)
    keywords: dict[str, object] = {"load_solutions": False}
    if names := _OPTIONS.get(solver):
        keywords["options"] = {its: getattr(options, ours) for ours, its in names.items()}
    if (remaining := reporter.remaining(options.time_limit)) is not None:
        whole = min(math.ceil(remaining), _MOST_SECONDS)
        keywords["timelimit"] = whole if solver == "glpk" else remaining
    try:
        with _quietly():
            result = plugin.solve(native, **keywords)
            condition = result.solver.termination_condition.value
            if has_point := len(result.solution) and condition not in words.NO_POINT:
                native.solutions.load_from(result)
    except TimeoutExpired:
        return base.Answer(Stopped.TIME_LIMIT, title, "it did not stop at its limit, and was ended")
    except Exception as error:  # plugins and the solvers behind them fail in many ways
        *_, reason = str(getattr(plugin, "_log", "")).splitlines() or [_sentence(error)]
        raise SolverError(f"{title} failed: {reason.strip()}; use method='highs'") from error
    log = str(getattr(plugin, "_log", ""))
    stopped = words.PYOMO.get(condition, Stopped.UNKNOWN)
    logs = words.LOGS | (words.RELAXED_LOGS if stopped is Stopped.UNKNOWN else {})
    if said := next((said for said in logs if said in log), None):
        stopped = logs[said]
    ends = np.where(sign * model.cost > 0, model.col_lower, model.col_upper)[model.cost != 0]
    if (
        stopped is Stopped.INFEASIBLE and not np.isfinite(ends).all()
    ):  # presolve of CBC means either
        stopped = Stopped.INFEASIBLE_OR_UNBOUNDED
    if stopped is Stopped.UNBOUNDED and model.integer.any():  # CBC means the relaxation
        stopped = Stopped.INFEASIBLE_OR_UNBOUNDED
    if stopped is Stopped.OPTIMAL and model.integer.any() and not np.isfinite(ends).all():
        relaxed = highs.solve(model.relax(), base.Options(), None, reporter)
        if relaxed.status in (Stopped.UNBOUNDED, Stopped.INFEASIBLE_OR_UNBOUNDED):  # SCIP 10
            said = f"{condition}, but without whole numbers there is no bound"
            return base.Answer(Stopped.INFEASIBLE_OR_UNBOUNDED, title, said)
    values = _values(native, model) if has_point else None
    bound = result.problem.lower_bound
    bound = sign * float(bound) if isinstance(bound, int | float) else None
    if bound is not None:  # the tolerances of these solvers are absolute, whatever costs are
        printed = stopped is not Stopped.OPTIMAL or options.gap_limit
        bound -= (base.FEASIBILITY + _PRINTED * abs(bound) * bool(printed)) * sign
    raw_status = said.lower() if said else condition
    limit = options.time_limit
    over = reporter.stopping or (limit is not None and reporter.seconds >= _TRUSTED * limit)
    if stopped in words.DENIALS and over:
        stopped = Stopped.INTERRUPTED if reporter.stopping else Stopped.TIME_LIMIT
        return base.Answer(stopped, title, f"says {raw_status} as its time is over")
    if stopped is Stopped.OPTIMAL and bound is None and values is not None:
        raw_status = f"{condition}, by its own word: it gives no bound"
    return base.Answer(stopped, title, raw_status, values, bound)


def _minimised(model: LinearModel, sign: int) -> Native:
    """Return what solvers get: bounds of what is maximised have either sign in CBC."""
    kept = np.diff(model.matrix.indptr) > 0  # rows that mean nothing are nothing to SCIP
    kept &= np.isfinite(model.row_lower) | np.isfinite(model.row_upper)
    return replace(
        model.with_objective(sign * model.cost, sign * model.offset, "min"),
        matrix=model.matrix[kept],
        row_lower=model.row_lower[kept],
        row_upper=model.row_upper[kept],
        rows=(),
    ).to_pyomo()


def _values(native: Native, model: LinearModel) -> FloatArray:
    """Return the values of all columns; those in no row and without cost reach no solver."""
    families = (native.component(family.name) for family in model.variables)
    found = [member.value for family in families for member in family.values()]
    free = np.clip(0.0, model.col_lower, model.col_upper).tolist()
    return np.array(
        [rest if value is None else value for value, rest in zip(found, free, strict=True)]
    )


def from_pyomo(native: Native) -> LinearModel:
    """Turn a linear Pyomo model into arrays."""
    return compile_pyomo(native)[0]


def compile_pyomo(native: Native) -> tuple[LinearModel, list[Native]]:
    """Return a Pyomo model as arrays, and the variables behind their columns."""
    load()
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
        matrix=scipy.sparse.csr_array(form.A)[kept],
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


def _rows(form: Native) -> tuple[list[str], FloatArray, FloatArray, list[int]]:
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
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
