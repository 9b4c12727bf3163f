"""optsched beside models that a good user of CP-SAT, HiGHS or PyJobShop would write, in equal time.

`peers.py [seconds] [seeds] [requests,...] [workers] [objective,...]`. One thread each; all begin
from the schedule of `area` and know a horizon. "intervals" has an interval for each token, or for a
few with the demand of the last, and one `cumulative` for each worker; "PyJobShop" states the same
as tasks; "events" checks the memory at completions, pair by pair; "time-indexed" has a column for
each request and start. Requests are due three times their output after they arrive, at 20 for each
step that they are late ("per-step") or 500 for each late one ("per-request"); hard deadlines are
ones that the first schedule meets. Seeds begin at 31, which nothing was tuned on. Prints a row for
each cell, with what each found, the best in bold, and what optsched proves.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pyjobshop
from ortools.sat.python import cp_model
from pyjobshop.Solution import ScheduledTask

from optsched import HindsightProgram, OptschedError, SolveParams, family, run, solve
from optsched.models import EventProgram
from optsched.models.hindsight import schedule_cost
from optsched.problem.schedule import Schedule

FIRST_SEED = 31
MOST_INTERVALS, MOST_EVENTS, MOST_NONZEROS = 20_000, 100, 5_000_000
#: What `solve` is asked for: the objective, and the lateness with its penalty.
OBJECTIVES = {
    "total-latency": ("total-latency",),
    "weighted-latency": ("weighted-latency",),
    "makespan": ("makespan",),
    "deadlines": ("total-latency",),
    "per-step": ("total-latency", "per-step", 20.0),
    "per-request": ("total-latency", "per-request", 500.0),
    "late-requests": ("late-requests",),
}
PEERS = ("intervals", "PyJobShop", "events", "time-indexed")


def drawn(n, seed, load, objective, workers):
    """Draw requests, and a schedule from which all begin: it keeps the deadlines."""
    instance = family("uniform", n=n, seed=seed, load=load and load * workers)
    rng = np.random.default_rng(seed)
    start = run(instance, "area").schedule
    if workers > 1:
        start = solve(instance, workers=workers, method="search", params=SolveParams(work=0.1))
        start = start.schedule
    if objective == "weighted-latency":
        instance = instance.replace(weights=rng.integers(1, 10, n).astype(float))
    if objective == "deadlines":
        instance = instance.replace(deadlines=start.completions + rng.integers(0, 60, n))
    elif objective in ("per-step", "per-request", "late-requests"):
        instance = instance.replace(deadlines=instance.arrivals + 3 * instance.outputs)
    return instance, Schedule(instance, start.starts, workers=workers, placement=start.placement)


def pieces_of(instance):
    """Cut requests into pieces: first step, steps and tokens of each, in order, by request."""
    tokens = int(instance.outputs.sum())
    steps = -(-tokens // MOST_INTERVALS)
    for prompt, output in zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True):
        firsts = range(0, output, steps)
        yield [(at, min(steps, output - at), prompt + min(at + steps, output)) for at in firsts]


def by_intervals(instance, objective, start, workers, seconds):
    """Let CP-SAT place intervals."""
    model = cp_model.CpModel()
    horizon = int(start.makespan if objective == "makespan" else 2 * start.makespan)
    due = [horizon] * len(instance)
    if objective == "deadlines":
        due = instance.deadlines
    ends, begins, places = [], [], []
    held = [([], []) for _ in range(workers)]
    for i, pieces in enumerate(pieces_of(instance)):
        output = int(instance.outputs[i])
        last = min(int(due[i]), horizon) - output
        begin = model.new_int_var(int(instance.arrivals[i]), last, "")
        model.add_hint(begin, int(start.starts[i]))
        here = [model.new_bool_var("") for _ in range(workers)]
        model.add_exactly_one(here)
        for worker, (intervals, demands) in enumerate(held):
            model.add_hint(here[worker], int(start.placement[i] == worker))
            for at, steps, tokens in pieces:
                piece = model.new_optional_fixed_size_interval_var(
                    begin + at, steps, here[worker], ""
                )
                intervals.append(piece)
                demands.append(tokens)
        ends.append(begin + output)
        begins.append(begin)
        places.append(here)
    for intervals, demands in held:
        model.add_cumulative(intervals, demands, instance.memory)
    if objective == "makespan":
        last = model.new_int_var(0, horizon, "")
        model.add_max_equality(last, ends)
        model.minimize(last)
    else:
        weights = np.ones(len(instance)) if instance.weights is None else instance.weights
        cost = sum(int(w) * end for w, end in zip(weights, ends, strict=True))
        if objective == "per-step":
            late = [model.new_int_var(0, horizon, "") for _ in ends]
            for steps, end, day in zip(late, ends, instance.deadlines.tolist(), strict=True):
                model.add(steps >= end - day)
            cost += 20 * sum(late)
        elif objective in ("per-request", "late-requests"):
            late = [model.new_bool_var("") for _ in ends]
            for missed, end, day in zip(late, ends, instance.deadlines.tolist(), strict=True):
                model.add(end <= day).only_enforce_if(~missed)
            cost = sum(late) if objective == "late-requests" else cost + 500 * sum(late)
        model.minimize(cost)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, seconds
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    placement = [[solver.value(each) for each in here].index(1) for here in places]
    starts = [solver.value(begin) for begin in begins]
    return Schedule(instance, starts, workers=workers, placement=placement)


def by_tasks(instance, objective, start, workers, seconds):
    """Let PyJobShop place a task for each piece, on the same worker and without a pause."""
    model = pyjobshop.Model()
    memories = [model.add_renewable(instance.memory) for _ in range(workers)]
    weights = {
        "makespan": {"weight_makespan": 1},
        "per-step": {"weight_total_flow_time": 1, "weight_total_tardiness": 20},
        "per-request": {"weight_total_flow_time": 1, "weight_tardy_jobs": 500},
        "late-requests": {"weight_tardy_jobs": 1},
    }
    model.set_objective(**weights.get(objective, {"weight_total_flow_time": 1}))
    first, known = [], []
    for i, pieces in enumerate(pieces_of(instance)):
        limit = "deadline" if objective == "deadlines" else "due_date"
        limits = {} if instance.deadlines is None else {limit: int(instance.deadlines[i])}
        weight = 1 if instance.weights is None else int(instance.weights[i])
        arrival = int(instance.arrivals[i])
        job = model.add_job(weight=weight, release_date=arrival, **limits)
        tasks = [model.add_task(job) for _ in pieces]
        first.append(len(known))
        for task, (at, steps, tokens) in zip(tasks, pieces, strict=True):
            place, begin = int(start.placement[i]), int(start.starts[i]) + at
            for memory in memories:
                model.add_mode(task, memory, steps, tokens)
            known.append((len(known) * workers + place, [place], begin, begin + steps))
        for before, after in itertools.pairwise(tasks):
            model.add_end_at_start(before, after)
            if workers > 1:
                model.add_identical_resources(before, after)
    scheduled = [ScheduledTask(*each) for each in known]
    found = model.solve(
        time_limit=seconds,
        display=False,
        num_workers=1,
        initial_solution=pyjobshop.Solution(model.data(), scheduled),
    )
    tasks = found.best.tasks
    if not tasks:
        return None
    starts = [tasks[task].start for task in first]
    placement = [tasks[task].resources[0] for task in first]
    return Schedule(instance, starts, workers=workers, placement=placement)


def by_program(program, method, start, seconds):
    """Solve one of optsched's own models as it stands."""
    params = SolveParams(start=start, in_child=True)
    return solve(program, method=method, time_limit=seconds, params=params).answer


def cell(n, seed, load, objective, workers, seconds):
    """Return what optsched proves, and what each finds."""
    instance, start = drawn(n, seed, load, objective, workers)
    asked, *late = OBJECTIVES[objective]
    soft = dict(zip(("lateness", "penalty"), late, strict=False))
    ours = solve(
        instance,
        objective=asked,
        workers=workers,
        time_limit=seconds,
        params=SolveParams(threads=1, start=start, **soft),
    )
    found = {"optsched": ours.objective}
    given = instance, objective, start, workers, seconds
    events = EventProgram(instance, asked, workers=workers, **soft)
    indexed = HindsightProgram(instance, objective=asked, workers=workers, **soft)
    tried = {
        "intervals": (True, lambda: by_intervals(*given)),
        "PyJobShop": (True, lambda: by_tasks(*given)),
        "events": (n <= MOST_EVENTS, lambda: by_program(events, "cp-sat", start, seconds)),
        "time-indexed": (
            indexed.nonzeros <= MOST_NONZEROS,
            lambda: by_program(indexed, "highs", start, seconds),
        ),
    }
    for name, (small, find) in tried.items():
        try:
            schedule = find() if small else None
        except OptschedError:
            schedule = None
        if schedule is not None:
            wrong = {each.kind for each in schedule.check()}
            assert wrong <= (set() if objective == "deadlines" else {"deadline"})
            found[name] = float(schedule_cost(schedule, asked, *late))
    return ours.bound, found


def main():
    given = dict(enumerate(sys.argv[1:]))
    seconds, seeds = float(given.get(0, 10)), int(given.get(1, 1))
    sizes = [int(n) for n in given.get(2, "6,10,20,50,100,200,2000").split(",")]
    workers = int(given.get(3, 1))
    objectives = given.get(4, ",".join(OBJECTIVES)).split(",")
    names = ("optsched", *PEERS)
    print(f"| objective | requests | load | seed | proven | {' | '.join(names)} |")
    print("|---|--:|--:|--:|--:" + "|--:" * len(names) + "|")
    for objective, n, load in itertools.product(objectives, sizes, (None, 1.1)):
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            bound, found = cell(n, seed, load, objective, workers, seconds)
            best = min(found.values())
            shown = [
                "-"
                if name not in found
                else f"**{found[name]:,.0f}**"
                if found[name] == best
                else f"{found[name]:,.0f}"
                for name in names
            ]
            where = f"{objective} | {n} | {load or 'offline'} | {seed} | {bound:,.0f}"
            print(f"| {where} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
