"""HiGHS: linear and mixed-integer programs, handed over as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.errors import SolverError
from optsched.models.solution import Stopped
from optsched.solvers.backends.base import Answer, Capabilities, Options, Reporter, by_name

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.models.linear.model import LinearModel

PIN = "highspy>=1.12,<1.15,!=1.14.0"

CAPABILITIES = Capabilities("highs", "HiGHS", install=f'pip install "{PIN}"')

#: Every status of HiGHS 1.14. `kUnknown` covers an interrupted LP without a verdict.
STATUS = by_name(
    {
        Stopped.OPTIMAL: "kModelEmpty kOptimal",
        Stopped.GAP_LIMIT: "kObjectiveBound kObjectiveTarget",
        Stopped.TIME_LIMIT: "kTimeLimit",
        Stopped.ITERATION_LIMIT: "kIterationLimit kSolutionLimit",
        Stopped.MEMORY_LIMIT: "kMemoryLimit",
        Stopped.UNBOUNDED: "kUnbounded",
        Stopped.INFEASIBLE: "kInfeasible",
        Stopped.INFEASIBLE_OR_UNBOUNDED: "kUnboundedOrInfeasible",
        Stopped.INTERRUPTED: "kInterrupt kHighsInterrupt",
        Stopped.ERROR: "kLoadError kModelError kPresolveError kSolveError kPostsolveError",
        Stopped.UNKNOWN: "kNotset kUnknown",
    }
)

# Presolve of 1.14.0 calls wrong answers optimal where a row has integer and continuous columns
# (ERGO-Code/HiGHS issues 2957, 3043, 3094; 1.13 and 1.15 are right): "min 2x - y, y <= x".
_WRONG_ON_MIXED = "1.14.0"

_FEASIBLE_POINT = 2  # SolutionStatus.kSolutionStatusFeasible


def load() -> Any:
    """Import highspy, or say what to install."""
    try:
        import highspy
    except ImportError as error:
        raise SolverError(
            f"HiGHS cannot be used: importing highspy failed ({error}); install a version that "
            f"goes together with ortools: {CAPABILITIES.install}"
        ) from None
    return highspy


def new(model: LinearModel) -> Any:
    """Hand a model over to a new, silent HiGHS."""
    highspy = load()
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("small_matrix_value", 1e-12)
    matrix = model.matrix
    rows, columns = matrix.shape
    status = highs.passModel(
        columns,
        rows,
        matrix.nnz,
        int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize if model.sense == "min" else highspy.ObjSense.kMaximize),
        model.offset,
        model.cost,
        model.col_lower,
        model.col_upper,
        model.row_lower,
        model.row_upper,
        matrix.indptr.astype(np.int32, copy=False),
        matrix.indices.astype(np.int32, copy=False),
        matrix.data,
        model.integer.astype(np.int32),
    )
    if status == highspy.HighsStatus.kError:
        raise SolverError(
            f"{model.name}: HiGHS does not take the model; look for coefficients beyond 1e15"
        )
    return highs


def solve(
    model: LinearModel, options: Options, start: FloatArray | None, reporter: Reporter
) -> Answer:
    """Solve a model in this thread."""
    highspy = load()
    highs = new(model)
    name = f"HiGHS {highs.version()}"
    integers = bool(model.integer.any())
    settings: dict[str, Any] = {
        "threads": options.threads,
        "random_seed": options.seed,
        "mip_rel_gap": options.gap_limit,
        "mip_abs_gap": 0.0 if options.gap_limit else 1e-6,
    }
    if integers and not model.integer.all() and highs.version() == _WRONG_ON_MIXED:
        settings["presolve"] = "off"
    if (remaining := reporter.remaining(options.time_limit)) is not None:
        settings["time_limit"] = remaining
    for key, value in settings.items():
        highs.setOptionValue(key, value)
    if start is not None and integers:
        known = highspy.HighsSolution()
        known.col_value = list(start)
        highs.setSolution(known)
    _listen(highs, reporter, integers)
    # The number of threads is fixed by the first solve of a thread unless it is reset.
    highspy.Highs.resetGlobalScheduler(True)
    highs.run()
    return _read(highs, model, integers, name)


def _listen(highs: Any, reporter: Reporter, integers: bool) -> None:
    def look(event: Any) -> None:
        if reporter.stopping:
            event.interrupt()
        elif integers:
            output = event.data_out
            reporter.report(output.mip_primal_bound, output.mip_dual_bound)

    def improve(event: Any) -> None:
        output = event.data_out
        values = np.array(output.mip_solution, dtype=np.float64)
        reporter.report(output.objective_function_value, output.mip_dual_bound, values)

    if integers:
        highs.cbMipInterrupt.subscribe(look)
        highs.cbMipImprovingSolution.subscribe(improve)
    highs.cbSimplexInterrupt.subscribe(look)
    highs.cbIpmInterrupt.subscribe(look)


def _read(highs: Any, model: LinearModel, integers: bool, name: str) -> Answer:
    status = highs.getModelStatus()
    info, solution = highs.getInfo(), highs.getSolution()
    raw_status = highs.modelStatusToString(status)
    stopped = STATUS.get(status.name, Stopped.UNKNOWN)
    if status.name == "kModelEmpty":  # without columns
        return Answer(stopped, name, raw_status, np.zeros(len(model.cost)), model.offset)
    values = duals = bound = None
    if solution.value_valid and info.primal_solution_status == _FEASIBLE_POINT:
        values = np.array(solution.col_value, dtype=np.float64)
    if integers:
        bound = info.mip_dual_bound
    elif solution.dual_valid and stopped is not Stopped.INFEASIBLE:
        duals = np.array(solution.row_dual, dtype=np.float64)
        bound = dual_bound(model, duals)
    return Answer(stopped, name, raw_status, values, bound, duals)


def dual_bound(model: LinearModel, duals: FloatArray) -> float:
    """Evaluate the bound that prices of rows prove, wherever they come from."""
    # For prices y no point costs less than the sum over rows of the least y a, over columns of the
    # least (c - A' y) x, each within its bounds, and the constant.
    sign = 1.0 if model.sense == "min" else -1.0
    prices = sign * np.asarray(duals, dtype=np.float64)
    prices = np.where(
        np.isfinite(np.where(prices > 0, model.row_lower, model.row_upper)), prices, 0
    )
    reduced = sign * model.cost - model.matrix.T @ prices
    total = sum(
        _least(slopes, lower, upper)
        for slopes, lower, upper in (
            (prices, model.row_lower, model.row_upper),
            (reduced, model.col_lower, model.col_upper),
        )
    )
    return sign * total + model.offset


def _least(slopes: FloatArray, lower: FloatArray, upper: FloatArray) -> float:
    """Sum the least values of slope times x over intervals."""
    ends = np.where(slopes > 0, lower, upper)
    noise = ~np.isfinite(ends) & (np.abs(slopes) <= 1e-7)
    slopes, ends = np.where(noise, 0.0, slopes), np.where(noise | (slopes == 0), 0.0, ends)
    return float(slopes @ ends)
