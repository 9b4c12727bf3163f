"""HiGHS: linear and mixed-integer programs, handed over as arrays."""

from __future__ import annotations

import ctypes
import functools
import math
import os
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.aside import untimed
from optsched._internal.numbers import exact_dot, in_units, round_down
from optsched.errors import SolverError
from optsched.models.program import Stopped
from optsched.solvers.backends import words
from optsched.solvers.backends.base import Answer, Capabilities, Options, Reporter

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.models.in_pyomo import Native
    from optsched.models.linear import LinearModel


PIN = "highspy>=1.12,!=1.14.0,!=1.15.*"

CAPABILITIES = Capabilities("highs", "HiGHS", install=f'pip install "{PIN}"')

# Presolve of 1.14.0 calls wrong answers optimal where a row has integer and continuous columns
# (ERGO-Code/HiGHS issues 2957, 3043, 3094; 1.13 and 1.15 are right): "min 2x - y, y <= x".
_WRONG_ON_MIXED = "1.14.0"

_LARGEST = 50  # bits of costs up to which HiGHS takes them as they are
_ROUNDING = 1e-9  # of a sum, relative to its terms
_CLOSE = 1e-6  # up to which a point has the objective that is reported
_NOISE = 1e-7  # reduced costs that count as zero where a column has no bound
_EXACT = 100_000  # nonzeros up to which a bound of a linear program is evaluated without rounding
_FEASIBLE_POINT = 2  # SolutionStatus.kSolutionStatusFeasible


def load() -> Native:
    """Import highspy, or say what to install."""
    try:
        with untimed():
            import highspy
    except ImportError as error:
        raise SolverError(
            f"HiGHS cannot be used: importing highspy failed ({error}); install a version that "
            f"goes together with ortools: {CAPABILITIES.install}"
        ) from None
    _make_first(highspy)
    return highspy


@functools.cache
def _make_first(highspy: Native) -> None:
    """Make a first HiGHS, which since 1.16 prints its name, where no answer is printed."""
    try:
        shown = os.dup(1)
    except OSError:  # it is closed, and nothing can be printed
        return
    flush = ctypes.CDLL(None).fflush
    flush(None)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        highspy.Highs()
        flush(None)
    finally:
        os.dup2(shown, 1)
        os.close(shown)
        os.close(nowhere)


def of_one_thread() -> Native:
    """Return a new, silent HiGHS without a model, which computes in this thread alone."""
    highspy = load()
    _let_threads_be_chosen(highspy)
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    return highs


def _let_threads_be_chosen(highspy: Native) -> None:
    """Forget the number of threads, which the first run in a thread fixes for all after it.

    With another number these would solve nothing, and say so by their status alone.
    """
    highspy.Highs.resetGlobalScheduler(True)


def new(model: LinearModel) -> Native:
    """Hand a model over to a new, silent HiGHS."""
    highspy = load()
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("small_matrix_value", 1e-12)
    matrix, scale = model.matrix, scale_of(model)
    rows, columns = matrix.shape
    status = highs.passModel(
        columns,
        rows,
        matrix.nnz,
        int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize if model.sense == "min" else highspy.ObjSense.kMaximize),
        model.offset * scale,
        model.cost * scale,
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


def scale_of(model: LinearModel) -> float:
    """Return a power of two that brings costs to a size that the tolerances of HiGHS suit."""
    largest = np.abs(model.cost).max(initial=0.0)
    exponent = math.frexp(largest)[1] if largest else 0
    return math.ldexp(1.0, -min(exponent, 0) - max(exponent - _LARGEST, 0))


def solve(
    model: LinearModel, options: Options, start: FloatArray | None, reporter: Reporter
) -> Answer:
    """Solve a model in this thread."""
    highspy = load()
    highs = new(model)
    name = f"HiGHS {highs.version()}"
    integers = bool(model.integer.any())
    settings: dict[str, float | str | None] = {
        "threads": options.threads,
        "random_seed": options.seed,
        "mip_rel_gap": options.gap_limit,
        "mip_abs_gap": 0.0,
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
    _listen(highs, model, reporter)
    _let_threads_be_chosen(highspy)
    highs.run()
    if start is not None and integers and not _is_reported(highs, model):
        return solve(model, options, None, reporter)
    return _read(highs, model, integers, name)


def _is_reported(highs: Native, model: LinearModel) -> bool:
    """Whether the point of HiGHS has its objective: 1.16.0 may return the start in its place."""
    point = np.array(highs.getSolution().col_value, dtype=np.float64)
    reported = highs.getInfo().objective_function_value / scale_of(model)
    return len(point) == 0 or _close(model.objective(point), reported)


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)


def _listen(highs: Native, model: LinearModel, reporter: Reporter) -> None:
    integers, scale = bool(model.integer.any()), scale_of(model)

    def look(event: Native) -> None:
        if reporter.stopping:
            event.interrupt()
        elif integers:
            output = event.data_out
            reporter.report(output.mip_primal_bound / scale, output.mip_dual_bound / scale)

    def improve(event: Native) -> None:
        output = event.data_out
        values = np.array(output.mip_solution, dtype=np.float64)
        found, bound = output.objective_function_value / scale, output.mip_dual_bound / scale
        if _close(model.objective(values), found):
            reporter.report(found, bound, values)

    if integers:
        highs.cbMipInterrupt.subscribe(look)
        highs.cbMipImprovingSolution.subscribe(improve)
    highs.cbSimplexInterrupt.subscribe(look)
    highs.cbIpmInterrupt.subscribe(look)


def _read(highs: Native, model: LinearModel, integers: bool, name: str) -> Answer:
    status = highs.getModelStatus()
    info, solution = highs.getInfo(), highs.getSolution()
    raw_status = highs.modelStatusToString(status)
    stopped = words.HIGHS.get(status.name, Stopped.UNKNOWN)
    values = duals = bound = None
    if solution.value_valid and info.primal_solution_status == _FEASIBLE_POINT:
        values = np.array(solution.col_value, dtype=np.float64)
    if integers:
        bound = info.mip_dual_bound / scale_of(model)
    elif solution.dual_valid and stopped is not Stopped.INFEASIBLE:
        duals = np.array(solution.row_dual, dtype=np.float64) / scale_of(model)
        bound = _dual_bound(model, duals)
    return Answer(stopped, name, raw_status, values, bound, duals)


def dual_bound(model: LinearModel, duals: FloatArray) -> float:
    """Evaluate the bound that prices of rows prove, wherever they come from."""
    bound, sign = _dual_bound(model, duals), 1 if model.sense == "min" else -1
    return sign * round_down(sign * bound) if isinstance(bound, Fraction) else bound


def _dual_bound(model: LinearModel, duals: FloatArray) -> Fraction | float:
    """Evaluate a bound by prices without rounding, where there are few enough nonzeros."""
    # For prices y no point costs less than the sum over rows of the least y a, over columns of the
    # least (c - A' y) x, each within its bounds, and the constant.
    sign = 1 if model.sense == "min" else -1
    prices = sign * np.asarray(duals, dtype=np.float64)
    ends = np.where(prices > 0, model.row_lower, model.row_upper)
    prices[~np.isfinite(ends)] = ends[~np.isfinite(ends)] = 0
    if model.matrix.nnz <= _EXACT and (reduced := _reduced(model, sign, prices)) is not None:
        return sign * (exact_dot(prices, ends) + reduced) + Fraction(model.offset)
    slopes = sign * model.cost - model.matrix.T @ prices
    sides = np.where(slopes > 0, model.col_lower, model.col_upper)
    noise = np.abs(slopes[unbounded := ~np.isfinite(sides)])
    if noise.max(initial=0) * scale_of(model) > _NOISE:
        return -sign * math.inf
    slopes[unbounded] = sides[unbounded] = 0
    terms = np.concatenate([prices * ends, slopes * sides])
    lowered = terms.sum() - _ROUNDING * np.abs(terms).sum() - noise.sum()
    return sign * Fraction(lowered) + Fraction(model.offset)


def _reduced(model: LinearModel, sign: int, prices: FloatArray) -> Fraction | None:
    """Sum the least that columns cost beyond what rows pay; None where it has no limit."""
    (unit, data), (price, paid) = in_units(model.matrix.data), in_units(prices)
    worth = [0] * len(model.cost)
    rows = np.repeat(np.arange(len(prices)), np.diff(model.matrix.indptr)).tolist()
    for value, row, column in zip(data, rows, model.matrix.indices.tolist(), strict=True):
        worth[column] += value * paid[row]
    total, by_column = Fraction(0), None
    columns = np.stack([model.cost, model.col_lower, model.col_upper], axis=1).tolist()
    for column, (worthy, (cost, lower, upper)) in enumerate(zip(worth, columns, strict=True)):
        if slope := sign * Fraction(cost) - unit * price * worthy:
            end: float | Fraction = lower if slope > 0 else upper
            if not math.isfinite(end):
                by_column = model.matrix.tocsc() if by_column is None else by_column
                part = slice(*by_column.indptr[column : column + 2])
                its = by_column.indices[part].tolist()
                if (found := _implied(model, its, column, above=slope < 0)) is None:
                    return None
                end = found
            total += slope * Fraction(end)
    return total


def _implied(model: LinearModel, rows: list[int], column: int, *, above: bool) -> Fraction | None:
    """Return a bound on a column by one of its rows whose other columns end on one side."""
    for row in rows:
        part = slice(*model.matrix.indptr[row : row + 2])
        inside, values = model.matrix.indices[part], model.matrix.data[part]
        others, mine = inside != column, float(values[inside == column][0])
        up = above == (mine > 0)  # whether the upper end of the row is what limits the column
        side = float((model.row_upper if up else model.row_lower)[row])
        low = (values > 0) == up  # others are at the end that leaves the column most room
        ends = np.where(low, model.col_lower[inside], model.col_upper[inside])[others]
        if math.isfinite(side) and np.isfinite(ends).all():
            return (Fraction(side) - exact_dot(values[others], ends)) / Fraction(mine)
    return None
