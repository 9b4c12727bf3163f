r"""Event programs of several workers on CP-SAT: those of `cpsat_events`, with worker literals.

For each request and worker where it may run a literal says whether it does. Two requests forbid
each other something only where they share a worker, which one literal per pair says: it is true
wherever both are on some worker, and false at no cost elsewhere. Workers that can be exchanged are
numbered by use: a request is on one of them only if a larger one is on the one before.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from optsched.models.joint import by_use, largest_first
from optsched.solvers.backends import cpsat
from optsched.solvers.backends.cpsat_events import add_objective

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.models.joint import JointEvents
    from optsched.solvers.backends.base import Answer, EventModel, Options, Reporter

load = cpsat.load


def solve(
    model: EventModel, options: Options, start: FloatArray | None, reporter: Reporter
) -> Answer:
    """Solve an event program of several workers in this thread."""
    program = cast("JointEvents", model.program)
    native = load().CpModel()
    kept = program.kept
    domain = load().Domain
    starts = [
        native.new_int_var_from_domain(domain.from_values(steps.tolist()), f"start[{i}]")
        for i, steps in enumerate(kept)
    ]
    allowed = by_use(program.instance, program.workers)
    places = [
        native.new_int_var_from_domain(
            domain.from_values(np.flatnonzero(row).tolist()), f"worker[{i}]"
        )
        for i, row in enumerate(allowed)
    ]
    on = _add_workers(native, program, places, allowed)
    _add_memory(native, program, starts, on)
    for group in program.equals:
        for before, after in zip(group[:-1].tolist(), group[1:].tolist(), strict=True):
            native.add(starts[before] <= starts[after])
    outputs = program.instance.outputs.tolist()
    last = max(int(steps[-1]) + output for steps, output in zip(kept, outputs, strict=True))
    add_objective(native, model, starts, last)
    count = len(starts)
    if start is not None:
        hint = native.proto.solution_hint
        point = program.write_point(program.read(start))
        hint.vars.extend(range(2 * count))
        hint.values.extend(point.astype(np.int64).tolist())
    return cpsat.run(native, range(2 * count), options, reporter)


def _add_workers(
    native: Any, program: JointEvents, places: list[Any], allowed: Any
) -> list[dict[int, Any]]:
    """Add a literal for each request and worker, and the order of workers by use."""
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
    native: Any, program: JointEvents, starts: list[Any], on: list[dict[int, Any]]
) -> None:
    prompts, outputs = program.instance.prompts.tolist(), program.instance.outputs.tolist()
    memories = program.workers.memories
    others: list[list[Any]] = [[] for _ in starts]  # tokens of others at each completion
    for i in range(len(starts)):
        for j in range(i + 1, len(starts)):
            shared = sorted(set(on[i]) & set(on[j]))
            if not shared:
                continue
            together = native.new_bool_var("")
            for worker in shared:
                native.add_bool_or([~on[i][worker], ~on[j][worker], together])
            i_first = native.new_bool_var("")
            memory = max(memories[worker] for worker in shared)
            for x, y, x_first, strictly in ((i, j, i_first, 0), (j, i, ~i_first, 1)):
                end = starts[x] + outputs[x]
                spare = memory - prompts[x] - outputs[x] - prompts[y]
                apart = max(outputs[x] - outputs[y] + strictly, outputs[x] - max(spare, 0))
                native.add(starts[y] - starts[x] >= apart).only_enforce_if([x_first, together])
                if spare < 1:
                    continue  # y cannot be there
                there = native.new_bool_var("")
                native.add_implication(there, x_first)
                native.add_implication(there, together)
                native.add(starts[y] < end).only_enforce_if(there)
                native.add(starts[y] >= end).only_enforce_if([x_first, together, ~there])
                held = native.new_int_var(0, prompts[y] + min(outputs[y], spare), "")
                native.add(held >= prompts[y] + end - starts[y]).only_enforce_if(there)
                native.add(held >= (prompts[y] + 1) * there)
                others[x].append(held)
    for x, held_by in enumerate(others):
        if held_by:
            room = sum(memories[worker] * literal for worker, literal in on[x].items())
            native.add(sum(held_by) <= room - prompts[x] - outputs[x])
