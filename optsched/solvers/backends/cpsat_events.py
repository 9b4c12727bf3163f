r"""Event programs on CP-SAT: the memory is checked at completions only.

For each pair of requests one literal says which completes first (of two at the same step the one
that stands first). While :math:`i` completes first, :math:`j` holds :math:`s_j + c_i - p_j` tokens
at :math:`c_i` beside the :math:`s_i + o_i` of :math:`i`, or starts later, so in either case

.. math:: p_j - p_i \ge \max\{\, o_i - o_j,\; o_i - (M - s_i - o_i - s_j)^+ \,\},

which puts all that two requests alone forbid each other into one difference. The memory row of
:math:`c_i` then sums variables :math:`u_{ij}` that are at least the tokens of :math:`j` where it is
there. On several workers a literal for each request and worker says whether it runs there, and one
per pair whether they share a worker.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from operator import mul
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.numbers import exact_dot
from optsched.errors import SolverError
from optsched.models.program import by_use, largest_first
from optsched.solvers.backends import cpsat
from optsched.solvers.backends.base import Answer, EventModel, Options, Reporter, whole_multiple

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.models.events import EventProgram

load = cpsat.load


def new(model: EventModel) -> Any:
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


def _add_workers(native: Any, program: EventProgram) -> list[dict[int, Any]]:
    """Add the worker of each request, a literal for each that it may be, and their order by use."""
    allowed, domain = by_use(program.instance, program.workers), load().Domain
    places = [
        native.new_int_var_from_domain(
            domain.from_values(np.flatnonzero(row).tolist()), f"worker[{i}]"
        )
        for i, row in enumerate(allowed)
    ]
    on: list[dict[int, Any]] = []
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
    native: Any, program: EventProgram, starts: list[Any], on: list[dict[int, Any]] | None
) -> None:
    """Limit what is held at each completion; `on` has the literals of several workers."""
    prompts = program.instance.prompts.tolist() + program.running.tokens.tolist()
    outputs = program.instance.outputs.tolist() + program.running.remaining.tolist()
    memories = program.workers.memories
    others: list[list[Any]] = [[] for _ in starts]  # tokens of others at each completion
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


def _costs(program: EventProgram) -> cpsat.Costs:
    """Return what the starts cost; the makespan is a column of its own."""
    makespan = program.objective == "makespan"
    weights = np.ones(1) if makespan else program.weights
    total = 1.0 if makespan else float(weights @ program.latest)
    if (scaled := whole_multiple(weights, total)) is None:
        raise SolverError(
            f"the weights, up to {weights.max():g}, have too many digits for CP-SAT, which sums up "
            "in 64 bits; divide them by one number and round, or solve the Instance by the method "
            "auto"
        )
    if makespan:
        return cpsat.Costs(scaled, weights, 0)
    offset = exact_dot(weights, program.instance.outputs - program.instance.arrivals)
    return cpsat.Costs(scaled, weights, int(program.latest.sum()), offset)


def _add_objective(native: Any, model: EventModel, starts: list[Any], last: int) -> None:
    """Minimise what the program asks for; everything is complete by the last step."""
    program, costs = model.program, _costs(model.program)
    if program.objective == "makespan":
        end = native.new_int_var(0, last, "makespan")
        for start, output in zip(starts, program.instance.outputs.tolist(), strict=True):
            native.add(end >= start + output)
        starts = [end]
    if model.bound is not None:
        least = (Fraction(model.bound) - costs.offset - costs.slack) / costs.scaled.unit
        native.add(sum(map(mul, costs.scaled.multiples.tolist(), starts)) >= math.ceil(least))
    cpsat.minimise(native, [start.index for start in starts[: len(costs.exact)]], costs)


def solve(
    model: EventModel, options: Options, start: FloatArray | None, reporter: Reporter
) -> Answer:
    """Solve an event program in this thread."""
    native, program = new(model), model.program
    count = len(program.instance)
    if start is not None:
        point = program.write_point(program.read(start))
        point[:count] = np.clip(point[:count], program.earliest, program.latest)
        hint = native.proto.solution_hint
        hint.vars.extend(range(len(point)))
        hint.values.extend(point.tolist())
    answered = count if len(program.workers) == 1 else 2 * count
    return cpsat.run(native, range(answered), _costs(program), options, reporter)
