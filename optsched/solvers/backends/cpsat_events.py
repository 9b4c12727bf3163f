r"""Event programs on CP-SAT: the memory is checked at completions only.

For each pair of requests one literal says which completes first (of two at the same step the one
that stands first). While :math:`i` completes first, :math:`j` is there at :math:`c_i` or starts at
:math:`c_i` or later. If it is there it holds :math:`s_j + c_i - p_j` tokens beside the
:math:`s_i + o_i` of :math:`i`, so in either case

.. math:: p_j - p_i \ge \max\{\, o_i - o_j,\; o_i - (M - s_i - o_i - s_j)^+ \,\},

which puts all that two requests alone forbid each other into one difference. The memory row of
:math:`c_i` then sums variables :math:`u_{ij}` that are at least the tokens of :math:`j` where it is
there. With equal completions all requests are counted at the one that stands first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from optsched.errors import SolverError
from optsched.solvers.backends import cpsat
from optsched.solvers.backends.base import Answer, EventModel, Options, Reporter, whole_multiple

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.models.events import EventProgram

load = cpsat.load


def new(model: EventModel) -> Any:
    """Write an event program for CP-SAT."""
    program = cast("EventProgram", model.program)
    native = load().CpModel()
    bounds = zip(program.earliest.tolist(), program.latest.tolist(), strict=True)
    starts = [native.new_int_var(*pair, f"start[{i}]") for i, pair in enumerate(bounds)]
    fixed = [native.new_int_var(program.now, program.now, "") for _ in program.running.tokens]
    _add_memory(native, program, starts + fixed)
    for group in program.equals:
        for before, after in zip(group[:-1].tolist(), group[1:].tolist(), strict=True):
            native.add(starts[before] <= starts[after])
    last = int((program.latest + program.instance.outputs).max())
    add_objective(native, model, starts, last)
    return native


def _add_memory(native: Any, program: EventProgram, starts: list[Any]) -> None:
    prompts = program.instance.prompts.tolist() + program.running.tokens.tolist()
    outputs = program.instance.outputs.tolist() + program.running.remaining.tolist()
    memory = program.instance.memory
    others: list[list[Any]] = [[] for _ in starts]  # tokens of others at each completion
    for i in range(len(starts)):
        for j in range(i + 1, len(starts)):
            i_first = native.new_bool_var("")
            for x, y, x_first, strictly in ((i, j, i_first, 0), (j, i, ~i_first, 1)):
                end = starts[x] + outputs[x]
                spare = memory - prompts[x] - outputs[x] - prompts[y]
                apart = max(outputs[x] - outputs[y] + strictly, outputs[x] - max(spare, 0))
                native.add(starts[y] - starts[x] >= apart).only_enforce_if(x_first)
                if spare < 1:
                    continue  # y cannot be there
                there = native.new_bool_var("")
                native.add_implication(there, x_first)
                native.add(starts[y] < end).only_enforce_if(there)
                native.add(starts[y] >= end).only_enforce_if([x_first, ~there])
                held = native.new_int_var(0, prompts[y] + min(outputs[y], spare), "")
                native.add(held >= prompts[y] + end - starts[y]).only_enforce_if(there)
                native.add(held >= (prompts[y] + 1) * there)
                others[x].append(held)
    for x, held_by in enumerate(others):
        if len(held_by) > 1:  # one alone fits
            native.add(sum(held_by) <= memory - prompts[x] - outputs[x])


def add_objective(native: Any, model: EventModel, starts: list[Any], last: int) -> None:
    """Minimise what the program asks for; everything is complete by the last step."""
    program: Any = model.program
    outputs = program.instance.outputs.tolist()
    scale = 1
    if program.objective == "makespan":
        total = native.new_int_var(0, last, "makespan")
        for start, output in zip(starts, outputs, strict=True):
            native.add(total >= start + output)
    else:
        scaled = whole_multiple(program.weights)
        if scaled is None:
            raise SolverError(
                f"the weights, up to {program.weights.max():g}, are no numbers below 2**53 with "
                "six decimals at most, as CP-SAT needs; divide them by one number and round, or "
                "solve the Instance by the method auto"
            )
        weights, scale = scaled[0].tolist(), scaled[1]
        waits = zip(weights, starts, outputs, program.instance.arrivals.tolist(), strict=True)
        total = sum(weight * (start + output - arrival) for weight, start, output, arrival in waits)
    if model.bound is not None:
        native.add(total >= math.ceil(model.bound * scale - 1e-6))
    native.minimize(total)
    native.proto.objective.scaling_factor = 1 / scale


def solve(
    model: EventModel, options: Options, start: FloatArray | None, reporter: Reporter
) -> Answer:
    """Solve an event program in this thread."""
    native = new(model)
    if start is not None:
        program = cast("EventProgram", model.program)
        ordered = program.write_point(program.read(start))
        hint = native.proto.solution_hint
        hint.vars.extend(range(len(ordered)))
        hint.values.extend(np.clip(ordered, program.earliest, program.latest).tolist())
    return cpsat.run(native, range(len(model.program.instance)), options, reporter)
