r"""CP-SAT: linear models with whole data, and event programs.

For each pair of requests one literal says which completes first. While :math:`i` completes first,
:math:`j` holds :math:`s_j + c_i - p_j` tokens at :math:`c_i` beside the :math:`s_i + o_i` of
:math:`i`, or starts later, so in either case

.. math:: p_j - p_i \ge \max\{\, o_i - o_j,\; o_i - (M - s_i - o_i - s_j)^+ \,\}.
"""

from __future__ import annotations

import itertools
import math
import threading
from dataclasses import replace
from fractions import Fraction
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.aside import untimed
from optsched._internal.numbers import exact_dot, in_units
from optsched.errors import SolverError
from optsched.models.program import Stopped, by_use, largest_first
from optsched.solvers.backends import base, words

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.models.hindsight import EventProgram
    from optsched.models.in_pyomo import Native
    from optsched.models.linear import LinearModel


CAPABILITIES = base.Capabilities(
    name="cp-sat", title="CP-SAT", events=True, install='pip install "ortools>=9.15"'
)

_ENDLESS = np.iinfo(np.int64)
# Share of the time limit after which it may be what ended CP-SAT, which stops where its longest
# step so far would lead beyond: after half of the time at the earliest.
_GIVES_UP = 0.45
_NONE = np.zeros(0, dtype=np.int64)
_LARGEST = 2**62  # bounds of columns; sums beyond it are refused by CP-SAT itself


class Costs(NamedTuple):
    """What the columns of an objective cost: in whole units, and without rounding."""

    scaled: base.Whole
    exact: FloatArray
    reach: int  # the sum of all columns at most
    offset: Fraction = Fraction(0)
    sign: int = 1

    @property
    def slack(self) -> Fraction:
        """By how much an objective in units may be off."""
        return self.scaled.error * self.reach


def load() -> Native:
    """Import CP-SAT, or say what to install."""
    try:
        with untimed():
            from ortools.sat.python import cp_model
    except ImportError as error:
        raise SolverError(
            f"CP-SAT cannot be used: importing ortools failed ({error}); install a version that "
            f'goes together with highspy: {CAPABILITIES.install} "highspy>=1.12,!=1.14.0,!=1.15.*"'
        ) from None
    return cp_model


def minimise(native: Native, columns: list[int], costs: Costs) -> None:
    """Set the objective of a model."""
    objective, unit = native.proto.objective, costs.scaled.unit
    objective.vars.extend(columns)
    objective.coeffs.extend(costs.sign * costs.scaled.multiples)
    # CP-SAT prints scaling_factor * (costs @ x + offset).
    objective.scaling_factor = costs.sign * float(unit)
    objective.offset = costs.sign * float(costs.offset / unit)


def new(model: LinearModel) -> Native:
    """Hand a model over to CP-SAT."""
    refuse(model)
    costs = _costs(model)
    assert costs is not None  # otherwise refused
    native = load().CpModel()
    proto = native.proto
    # For many small messages parsing a text is faster than calls; for few long ones it is not.
    domains = zip(
        np.ceil(model.col_lower).astype(np.int64).tolist(),
        np.floor(model.col_upper).astype(np.int64).tolist(),
        strict=True,
    )
    proto.merge_text_format(
        "".join([f"variables{{domain:{low} domain:{high}}}" for low, high in domains])
    )
    proto.name = model.name
    matrix = model.matrix
    begins = matrix.indptr.tolist()
    indices, coefficients = matrix.indices.tolist(), matrix.data.astype(np.int64).tolist()
    bounds = np.stack(
        [
            _whole_bounds(np.ceil(model.row_lower), _ENDLESS.min),
            _whole_bounds(np.floor(model.row_upper), _ENDLESS.max),
        ],
        axis=1,
    )
    add_row = proto.constraints.add
    for begin, end, domain in zip(begins, begins[1:], bounds.tolist(), strict=False):
        row = add_row().linear
        row.vars.extend(indices[begin:end])
        row.coeffs.extend(coefficients[begin:end])
        row.domain.extend(domain)
    minimise(native, np.flatnonzero(model.cost).tolist(), costs)
    return native


def _costs(model: LinearModel) -> Costs | None:
    """Return what columns cost; None where sums would exceed 64 bits."""
    costs = model.cost[costly := model.cost != 0]
    most = np.maximum(np.abs(model.col_lower), np.abs(model.col_upper))[costly]
    scaled = base.whole_multiple(costs, float(np.abs(costs) @ most))
    sign, offset = (1 if model.sense == "min" else -1), Fraction(model.offset)
    return scaled and Costs(scaled, costs, math.ceil(most.sum()), offset, sign)


def refuse(model: LinearModel) -> None:
    """Reject a model that CP-SAT cannot represent, naming what stands in the way."""
    matrix = model.matrix
    fractional = (matrix.data != np.rint(matrix.data)) | (np.abs(matrix.data) >= _LARGEST)

    def first(mask: BoolArray) -> int:
        return int(np.argmax(mask))

    def refuse_column(mask: BoolArray, what: str) -> None:
        if mask.any():
            raise SolverError(
                f"{model.name}: column {model.column_name(first(mask))} {what}, which CP-SAT "
                "cannot represent; use method='highs'"
            )

    refuse_column(~model.integer, "may be fractional")
    wide = np.maximum(np.abs(model.col_lower), np.abs(model.col_upper)) >= _LARGEST
    refuse_column(wide, "has no finite bounds")
    if _costs(model) is None:
        rest = np.abs(model.cost * 1e6 - np.rint(model.cost * 1e6)) > 1e-6
        rest = rest if rest.any() else np.abs(model.cost) == np.abs(model.cost).max()
        refuse_column(
            rest, f"costs {float(model.cost[first(rest)])!r}, whose sums have more than 64 bits"
        )
    if fractional.any():
        place = first(fractional)
        row = int(np.searchsorted(matrix.indptr, place, side="right")) - 1
        column = int(matrix.indices[place])
        raise SolverError(
            f"{model.name}: row {model.row_name(row)} has the coefficient {matrix.data[place]:g} "
            f"at column {model.column_name(column)}, but CP-SAT takes whole numbers below "
            "2**62 only; multiply the row or use method='highs'"
        )


def solve(
    model: LinearModel | base.EventModel,
    options: base.Options,
    start: FloatArray | None,
    reporter: base.Reporter,
) -> base.Answer:
    """Solve a model in this thread."""
    if isinstance(model, base.EventModel):
        return _solve_events(model, options, start, reporter)
    native = new(model)
    if start is not None:
        hint = native.proto.solution_hint
        hint.vars.extend(range(len(start)))
        hint.values.extend(np.rint(start).astype(np.int64))
    costs = _costs(model)
    assert costs is not None  # otherwise refused
    return run(native, range(len(model.cost)), costs, options, reporter)


def run(
    native: Native, columns: range, costs: Costs, options: base.Options, reporter: base.Reporter
) -> base.Answer:
    """Run CP-SAT on a model of its own; bounds hold without rounding."""
    answer, bound = _run(native, columns, options, reporter)
    if bound is None:
        return answer
    unit, sign = costs.scaled.unit, costs.sign
    if answer.status is Stopped.OPTIMAL and 0 < 2 * costs.slack < unit:
        grain = _ask_for_rest(native, bound, costs)
        found, rest = _run(native, columns, options, reporter)
        if found.status is Stopped.OPTIMAL and rest is not None:
            return replace(found, bound=sign * (unit * bound + grain * rest) + costs.offset)
    return replace(answer, bound=sign * (unit * bound - costs.slack) + costs.offset)


def _run(
    native: Native, columns: range, options: base.Options, reporter: base.Reporter
) -> tuple[base.Answer, int | None]:
    """Return what was found, and a bound in units if it is exact."""
    cp_model, name = load(), _name()
    if problem := native.validate():
        return base.Answer(Stopped.ERROR, name, f"MODEL_INVALID: {problem.splitlines()[0]}"), None
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = options.threads
    parameters.random_seed = options.seed
    parameters.relative_gap_limit = options.gap_limit
    parameters.absolute_gap_limit = 0.0
    parameters.catch_sigint_signal = False
    if (remaining := reporter.remaining(options.time_limit)) is not None:
        parameters.max_time_in_seconds = remaining
    listener = _listener(cp_model, columns, reporter)
    solver.best_bound_callback = listener.improve_bound
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(solver, reporter, done), daemon=True)
    watcher.start()
    try:
        status = solver.status_name(solver.solve(native, listener))
    finally:
        done.set()
        watcher.join()
    stopped = words.CP_SAT.get(status, Stopped.UNKNOWN)
    if stopped is Stopped.UNKNOWN:  # it does not say which limit was hit; it has one for memory
        limit = math.inf if options.time_limit is None else options.time_limit
        if reporter.stopping and reporter.seconds < limit:
            stopped = Stopped.INTERRUPTED
        elif reporter.seconds >= _GIVES_UP * limit:
            stopped = Stopped.TIME_LIMIT
    response = solver.response_proto
    if status not in ("OPTIMAL", "FEASIBLE"):
        # best_objective_bound may say 0 when nothing is known yet
        known = listener.bound if status == "UNKNOWN" else None
        return base.Answer(stopped, name, status, None, known), None
    answer = base.Answer(stopped, name, status, _take(response.solution, columns))
    return answer, response.inner_objective_lower_bound


def _ask_for_rest(native: Native, best: int, costs: Costs) -> Fraction:
    """Ask for the best answer without rounding among those that are best as decimal fractions."""
    objective, row = native.proto.objective, native.proto.constraints.add().linear
    row.vars.extend(objective.vars)
    row.coeffs.extend(objective.coeffs)
    row.domain.extend([_ENDLESS.min, best])
    pairs = zip(costs.exact.tolist(), costs.scaled.multiples.tolist(), strict=True)
    rests = [costs.sign * (Fraction(cost) - costs.scaled.unit * whole) for cost, whole in pairs]
    grain, whole = in_units(np.array(rests))
    objective.coeffs.clear()
    objective.coeffs.extend(whole)
    objective.scaling_factor, objective.offset = 1.0, 0.0
    return grain


def _listener(cp_model: Native, columns: range, reporter: base.Reporter) -> Native:
    class Listener(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        objective: float | None = None
        bound: float | None = None

        def on_solution_callback(self) -> None:
            self.objective = self.objective_value
            values = _take(self.response_proto.solution, columns)
            reporter.report(self.objective, self.best_objective_bound, values)

        def improve_bound(self, bound: float) -> None:
            self.bound = bound
            reporter.report(self.objective, bound)

    return Listener()


def _name() -> str:
    load()
    import ortools

    return f"CP-SAT {ortools.__version__}"


def _watch(solver: Native, reporter: base.Reporter, done: threading.Event) -> None:
    while not done.wait(0.02):
        if reporter.stopping:
            solver.stop_search()


def _take(solution: Native, columns: range) -> FloatArray:
    return np.array(list(solution)[columns.start : columns.stop], dtype=np.float64)


def _whole_bounds(bounds: FloatArray, endless: int) -> npt.NDArray[np.int64]:
    far = np.abs(bounds) >= _LARGEST
    return np.where(far, endless, np.where(far, 0, bounds).astype(np.int64))


def new_events(model: base.EventModel) -> Native:
    """Write an event program for CP-SAT."""
    program = model.program
    native, domain = load().CpModel(), load().Domain
    domains = [domain(*pair) for pair in zip(program.earliest, program.latest, strict=True)]
    if program.kept is not None:
        domains = [domain.from_values(starts.tolist()) for starts in program.kept]
    starts = [native.new_int_var_from_domain(each, f"start[{i}]") for i, each in enumerate(domains)]
    on = _add_workers(native, program) if len(program.workers) > 1 else None
    fixed = [native.new_int_var(program.now, program.now, "") for _ in program.running.tokens]
    _add_memory(native, program, starts + fixed, on)
    for group in program.equals:
        for before, after in itertools.pairwise(group.tolist()):
            native.add(starts[before] <= starts[after])
    last = int((program.latest + program.instance.outputs).max())
    _add_objective(native, model, starts, last)
    return native


def _add_workers(native: Native, program: EventProgram) -> list[dict[int, Native]]:
    """Add the worker of each request, a literal for each that it may be, and their order by use."""
    allowed, domain = by_use(program.instance, program.workers), load().Domain
    places = [
        native.new_int_var_from_domain(
            domain.from_values(np.flatnonzero(row).tolist()), f"worker[{i}]"
        )
        for i, row in enumerate(allowed)
    ]
    on: list[dict[int, Native]] = []
    for place, row in zip(places, allowed, strict=True):
        literals = {worker: native.new_bool_var("") for worker in np.flatnonzero(row).tolist()}
        native.add_exactly_one(literals.values())
        native.add(sum(worker * literal for worker, literal in literals.items()) == place)
        on.append(literals)
    classes = program.workers.classes
    order = largest_first(program.instance).tolist()
    for number in range(int(classes.max()) + 1):
        members = np.flatnonzero(classes == number).tolist()
        for first, second in itertools.pairwise(members):
            for rank, request in enumerate(order):
                if second in on[request]:
                    larger = [on[other][first] for other in order[:rank] if first in on[other]]
                    native.add_bool_or([*larger, ~on[request][second]])
    return on


def _add_memory(
    native: Native, program: EventProgram, starts: list[Native], on: list[dict[int, Native]] | None
) -> None:
    """Limit what is held at each completion; `on` has the literals of several workers."""
    prompts = program.instance.prompts.tolist() + program.running.tokens.tolist()
    outputs = program.instance.outputs.tolist() + program.running.remaining.tolist()
    memories = program.workers.memories
    others: list[list[Native]] = [[] for _ in starts]  # tokens of others at each completion
    for i in range(len(starts)):
        for j in range(i + 1, len(starts)):
            memory, together = memories[0], []  # a literal that says that they share a worker
            if on is not None:
                shared = sorted(set(on[i]) & set(on[j]))
                if not shared:
                    continue
                together.append(native.new_bool_var(""))
                for worker in shared:
                    native.add_bool_or([~on[i][worker], ~on[j][worker], *together])
                memory = max(memories[worker] for worker in shared)
            i_first = native.new_bool_var("")
            for x, y, x_first, strictly in ((i, j, i_first, 0), (j, i, ~i_first, 1)):
                end, first = starts[x] + outputs[x], [x_first, *together]
                spare = memory - prompts[x] - outputs[x] - prompts[y]
                apart = max(outputs[x] - outputs[y] + strictly, outputs[x] - max(spare, 0))
                native.add(starts[y] - starts[x] >= apart).only_enforce_if(first)
                if spare < 1:
                    continue  # y cannot be there
                there = native.new_bool_var("")
                for literal in first:
                    native.add_implication(there, literal)
                native.add(starts[y] < end).only_enforce_if(there)
                native.add(starts[y] >= end).only_enforce_if([*first, ~there])
                held = native.new_int_var(0, prompts[y] + min(outputs[y], spare), "")
                native.add(held >= prompts[y] + end - starts[y]).only_enforce_if(there)
                native.add(held >= (prompts[y] + 1) * there)
                others[x].append(held)
    for x, held_by in enumerate(others):
        if on is not None and held_by:
            limit = sum(memories[worker] * literal for worker, literal in on[x].items())
            native.add(sum(held_by) <= limit - prompts[x] - outputs[x])
        elif len(held_by) > 1:  # one alone fits
            native.add(sum(held_by) <= memories[0] - prompts[x] - outputs[x])


def _event_costs(program: EventProgram) -> Costs:
    """Return what starts cost, then lateness; the makespan is a column of its own."""
    makespan, costs = program.objective == "makespan", program.costs
    weights, most = np.ones(1), np.ones(1, dtype=np.int64)
    if not makespan:
        weights, most = costs.weights, program.latest
    late = _can_be_late(program)
    over = np.where(costs.jumps > 0, 1, program.latest - costs.due)[late]
    weights = np.concatenate([weights, (costs.jumps + costs.slopes)[late]])
    total = float(weights @ np.concatenate([most, over]))
    if (scaled := base.whole_multiple(weights, total)) is None:
        raise SolverError(
            f"the weights, up to {weights.max():g}, have too many digits for CP-SAT, which sums up "
            "in 64 bits; divide them by one number and round, or solve the Instance by the method "
            "auto"
        )
    if makespan:
        return Costs(scaled, weights, int(over.sum()))
    offset = exact_dot(costs.weights, program.instance.outputs - program.instance.arrivals)
    return Costs(scaled, weights, int(most.sum() + over.sum()), offset)


def _can_be_late(program: EventProgram) -> IntArray:
    """Return the requests that can be late at a price."""
    return np.flatnonzero(program.latest > program.costs.due) if program.costs.soft else _NONE


def _add_lateness(native: Native, program: EventProgram, starts: list[Native]) -> list[Native]:
    """Return how late requests are, or whether, where that has a price."""
    columns, costs = [], program.costs
    for request in _can_be_late(program).tolist():
        start, due = starts[request], int(costs.due[request])
        if costs.jumps[request] > 0:
            column = native.new_bool_var("")
            native.add(start <= due).only_enforce_if(~column)
        else:
            column = native.new_int_var(0, int(program.latest[request]) - due, "")
            native.add(column >= start - due)
        columns.append(column)
    return columns


def _add_objective(native: Native, model: base.EventModel, starts: list[Native], last: int) -> None:
    """Minimise what the program asks for; everything is complete by the last step."""
    program, costs = model.program, _event_costs(model.program)
    late = _add_lateness(native, program, starts)
    starts = starts[: len(program.instance)]
    if program.objective == "makespan":
        end = native.new_int_var(0, last, "makespan")
        for start, output in zip(starts, program.instance.outputs.tolist(), strict=True):
            native.add(end >= start + output)
        starts = [end]
    columns = starts + late
    if model.bound is not None:
        least = (Fraction(model.bound) - costs.offset - costs.slack) / costs.scaled.unit
        native.add(sum(map(mul, costs.scaled.multiples.tolist(), columns)) >= math.ceil(least))
    minimise(native, [column.index for column in columns], costs)


def _solve_events(
    model: base.EventModel, options: base.Options, start: FloatArray | None, reporter: base.Reporter
) -> base.Answer:
    native, program = new_events(model), model.program
    count = len(program.instance)
    if start is not None:
        point = program.write_point(program.read(start))
        point[:count] = np.clip(point[:count], program.earliest, program.latest)
        hint = native.proto.solution_hint
        hint.vars.extend(range(len(point)))
        hint.values.extend(point.tolist())
    answered = count if len(program.workers) == 1 else 2 * count
    return run(native, range(answered), _event_costs(program), options, reporter)
