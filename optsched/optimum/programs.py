"""How `solve` goes about each kind of problem that is no instance."""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from optsched._internal.exact import round_down
from optsched._internal.loading import stopwatch
from optsched.bounds.bound import bound
from optsched.errors import ModelError, OptschedError, SolverError
from optsched.models.batch import BatchSelection
from optsched.models.cluster.balance import BalanceProgram
from optsched.models.events import EventProgram
from optsched.models.fluid.wait import WaitThresholds
from optsched.models.fluid.whole import WholeThresholds
from optsched.models.hindsight import HindsightProgram
from optsched.models.linear.model import LinearModel
from optsched.models.relaxation import LatencyRelaxation
from optsched.models.solution import Solution, Stopped
from optsched.optimum.params import SolveParams
from optsched.optimum.stages.plan import first_of
from optsched.optimum.state import TOO_LARGE
from optsched.problem.instance import Instance
from optsched.solvers.backends.driver import solve_events, solve_linear
from optsched.solvers.backends.pyomo import compile_pyomo
from optsched.solvers.balance.balance import assign_balanced
from optsched.solvers.selection.batch import Batch, select_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray
    from optsched.models.program import Program

WATCHED = ("on_progress", "stop")
_BACK_END = ("threads", "seed", "memory_limit", "gap_limit", "start", "in_child", *WATCHED)

_LEAST = 1e-3  # seconds that a solver is left with


class Kind(NamedTuple):
    """A kind of problem: what to call it, which parameters it uses, and what solves it."""

    title: str
    used: tuple[str, ...]
    solve: Callable[[Any, str, float | None, SolveParams], Solution]


def kind_of(problem: object) -> Kind:
    """Return the kind of a problem, by what it is or by the methods that it has."""
    for known, kind in _KINDS.items():
        if isinstance(problem, known):
            return kind
    if all(hasattr(problem, method) for method in ("to_linear", "read", "write_point")):
        return _PROGRAM
    if "pyomo" in sys.modules and hasattr(problem, "component_data_objects"):
        return _PYOMO
    raise OptschedError(
        f"cannot solve a {type(problem).__name__}; give an Instance, a program of optsched.models, "
        "a LinearModel or a Pyomo model"
    )


def as_linear(problem: Any) -> LinearModel:
    """Return the rows and columns of a problem."""
    kind = kind_of(problem)
    if isinstance(problem, LinearModel):
        return problem
    if kind is _PYOMO:
        return compile_pyomo(problem)[0]
    if not hasattr(problem, "to_linear"):
        raise OptschedError(f"{kind.title} has no rows; give a program with to_linear")
    model: LinearModel = problem.to_linear()
    return model


def _watched(params: SolveParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in (*WATCHED, "in_child")}


def _solve_model(
    model: LinearModel, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    solver = "highs" if method == "auto" else method
    options = params.options(time_limit)
    return solve_linear(model, solver, options, start=params.start, **_watched(params))


def _solve_program(
    program: Program, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    if params.start is not None:
        params = replace(params, start=program.write_point(params.start))
    found = _solve_model(program.to_linear(), method, time_limit, params)
    if isinstance(program, LatencyRelaxation):
        found = program.judged(found)
    return found.with_answer(program.read)


def _solve_hindsight(
    program: HindsightProgram, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    """Solve from the start that there is, or from what policies do: an answer in any case."""
    began = stopwatch()
    params.options(time_limit)
    try:
        model = program.to_linear()
    except (ModelError, MemoryError) as error:
        known = first_of(program) if method == "auto" else None
        if known is None:
            raise
        return Solution(
            TOO_LARGE,
            known.policy,
            stopwatch() - began,
            objective=program.cost(known),
            bound=bound(program.instance, "auto", program.objective, workers=program.workers).value,
            raw_status=str(error) or "out of memory",
            model=program.objective,
            answer=known,
        )
    start = program.start if params.start is None else params.start
    if start is None and method == "auto":
        start = first_of(program)
    params = replace(params, start=None if start is None else program.write_point(start))
    left = None if time_limit is None else max(time_limit - (stopwatch() - began), _LEAST)
    found = program.judged(_solve_model(model, method, left, params)).with_answer(program.read)
    if found.status is Stopped.OPTIMAL and not program.horizon_is_safe:
        return replace(found, status=f"optimal within horizon {program.horizon}")
    return found


def _solve_thresholds(
    program: WaitThresholds, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    """Solve a program of WAIT; for CP-SAT in whole numbers, whose slack counts units."""
    if method != "cp-sat":
        return _solve_program(program, method, time_limit, params)
    whole = WholeThresholds(program)
    found = _solve_program(whole, method, time_limit, params)
    if program.objective == "memory":
        return found
    values = None if found.values is None else program.write_point(found.answer)
    bound = None if found.bound is None else -round_down(-Fraction(found.bound) * whole.unit)
    distance = None if found.distance is None else found.distance * whole.unit
    objective = None if values is None else float(values[-1])
    return replace(
        found, values=values, objective=objective, bound=bound, distance=distance, step=None
    )


def _solve_pyomo(
    native: Any, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    """Solve a Pyomo model and put the answer into its variables."""
    model, variables = compile_pyomo(native)

    def write(values: FloatArray) -> Any:
        for variable, value in zip(variables, values.tolist(), strict=True):
            variable.set_value(value, skip_validation=True)
        return native

    return _solve_model(model, method, time_limit, params).with_answer(write)


def _solve_events(
    program: EventProgram, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    options, start = params.options(time_limit), params.start
    if start is None and method == "auto" and (first := first_of(program)) is not None:
        start = first if (first.starts <= program.latest).all() else None
    found = solve_events(
        program,
        "cp-sat" if method == "auto" else method,
        options,
        start=None if start is None else program.write_point(start),
        bound=params.bound,
        **_watched(params),
    )
    return found.with_answer(program.read)


def _solve_balance(
    program: BalanceProgram, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    watched = {name: getattr(params, name) for name in WATCHED}
    return assign_balanced(program, method, params.options(time_limit), **watched)


def _solve_batch(
    program: BatchSelection, method: Any, time_limit: float | None, params: SolveParams
) -> Solution:
    if method == "auto":
        method = "dp" if program.fit == "peak" and program.size is None else "mip"
    plain = SolveParams()
    for name, user in (("epsilon", "scaled-dp"), ("solver", "mip")):
        if method != user and (value := getattr(params, name)) != getattr(plain, name):
            raise SolverError(
                f"{name} is {value!r}, but is for the method {user!r}, not {method!r}; leave it out"
            )
    if program.size is not None:
        return _solve_batch_of_size(program, method, time_limit, params)
    began = stopwatch()
    batch = select_batch(
        Instance(program.prompts, program.outputs, program.memory),
        method,
        program.fit,
        epsilon=params.epsilon,
        seed=params.seed,
        solver=params.solver,
        time_limit=params.options(time_limit).time_limit,
    )
    floor = None if batch.factor is None else batch.ratio / Fraction(batch.factor)
    return Solution(
        Stopped.OPTIMAL if batch.factor == 1 else Stopped.UNKNOWN,
        batch.method,
        stopwatch() - began,
        objective=float(batch.ratio),
        bound=None if floor is None else round_down(floor),
        distance=None if floor is None else batch.ratio - floor,
        model="batch",
        answer=batch,
    )


def _solve_batch_of_size(
    program: BatchSelection, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    """Solve the linear program of one size, whose objective is the sum of outputs."""
    if method != "mip":
        raise SolverError(f"method {method!r} finds the best size itself; leave size out")
    found = _solve_model(program.to_linear(), params.solver, time_limit, params)

    def read(values: FloatArray) -> Batch:
        members = program.read(values)
        return Batch(members, program.ratio(members), "mip")

    return found.with_answer(read)


_PROGRAM = Kind("a program", _BACK_END, _solve_program)
_PYOMO = Kind("a Pyomo model", tuple(n for n in _BACK_END if n != "start"), _solve_pyomo)
_KINDS: dict[type, Kind] = {
    LatencyRelaxation: _PROGRAM,
    HindsightProgram: Kind("a program", _BACK_END, _solve_hindsight),
    WaitThresholds: Kind("a WaitThresholds", _BACK_END, _solve_thresholds),
    LinearModel: Kind("a LinearModel", _BACK_END, _solve_model),
    EventProgram: Kind("an EventProgram", (*_BACK_END, "bound"), _solve_events),
    BalanceProgram: Kind("a BalanceProgram", ("threads", "seed", *WATCHED), _solve_balance),
    BatchSelection: Kind("a BatchSelection", ("seed", "epsilon", "solver"), _solve_batch),
}
