"""optsched beside models that a good user of CP-SAT or HiGHS would write, in the same seconds.

`peers.py [seconds] [seeds] [requests,...]`. One thread each; all begin from the schedule of `area`
and are told a horizon. "tokens" is an interval for each token and one `cumulative`, "events" checks
the memory at completions, pair by pair, "time-indexed" has a column for each request and start.
Seeds begin at 31, which nothing was tuned on. Prints one table row for each cell, with what each
found, the best in bold, and what optsched proves.
"""

from __future__ import annotations

import sys

import numpy as np
from ortools.sat.python import cp_model

from optsched import HindsightProgram, OptschedError, SolveParams, family, run, solve
from optsched.models import EventProgram
from optsched.models.hindsight import schedule_cost
from optsched.problem.schedule import Schedule

FIRST_SEED = 31
MOST_TOKENS, MOST_EVENTS, MOST_NONZEROS = 20_000, 100, 5_000_000
OBJECTIVES = ("total-latency", "weighted-latency", "makespan", "deadlines")


def drawn(n, seed, load, objective):
    """Draw requests; deadlines are those that `area` keeps, and up to 60 steps more."""
    instance = family("uniform", n=n, seed=seed, load=load)
    rng = np.random.default_rng(seed)
    if objective == "weighted-latency":
        return instance.replace(weights=rng.integers(1, 10, n).astype(float))
    if objective == "deadlines":
        starts = run(instance, "area").schedule.starts
        return instance.replace(deadlines=starts + instance.outputs + rng.integers(0, 60, n))
    return instance


def by_tokens(instance, objective, start, seconds):
    """Let CP-SAT place an interval for each token."""
    model = cp_model.CpModel()
    horizon = int(start.makespan if objective == "makespan" else 2 * start.makespan)
    due = instance.deadlines if instance.deadlines is not None else [horizon] * len(instance)
    ends, intervals, demands, begins = [], [], [], []
    for i in range(len(instance)):
        prompt, output = int(instance.prompts[i]), int(instance.outputs[i])
        last = min(int(due[i]), horizon) - output
        begin = model.new_int_var(int(instance.arrivals[i]), last, "")
        for token in range(1, output + 1):
            intervals.append(model.new_fixed_size_interval_var(begin + token - 1, 1, ""))
            demands.append(prompt + token)
        ends.append(begin + output)
        begins.append(begin)
        model.add_hint(begin, int(start.starts[i]))
    model.add_cumulative(intervals, demands, instance.memory)
    if objective == "makespan":
        last = model.new_int_var(0, horizon, "")
        model.add_max_equality(last, ends)
        model.minimize(last)
    else:
        weights = np.ones(len(instance)) if instance.weights is None else instance.weights
        model.minimize(sum(int(w) * end for w, end in zip(weights, ends, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, seconds
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return Schedule(instance, [solver.value(begin) for begin in begins])


def by_program(program, method, start, seconds):
    """Solve one of optsched's own models as it stands."""
    params = SolveParams(start=start, in_child=True)
    return solve(program, method=method, time_limit=seconds, params=params).answer


def cell(n, seed, load, objective, seconds):
    """Return what optsched proves, and what each finds."""
    instance = drawn(n, seed, load, objective)
    asked = "total-latency" if objective == "deadlines" else objective
    start = run(instance, "area").schedule
    ours = solve(instance, objective=asked, time_limit=seconds)
    found = {"optsched": ours.objective}
    events, indexed = EventProgram(instance, asked), HindsightProgram(instance, objective=asked)
    tried = {
        "tokens": (
            int(instance.outputs.sum()) <= MOST_TOKENS,
            lambda: by_tokens(instance, objective, start, seconds),
        ),
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
            assert schedule.check() == []
            found[name] = float(schedule_cost(schedule, asked))
    return ours.bound, found


def main():
    given = dict(enumerate(sys.argv[1:]))
    seconds, seeds = float(given.get(0, 10)), int(given.get(1, 1))
    sizes = [int(n) for n in given.get(2, "20,50,100,200").split(",")]
    names = ("optsched", "tokens", "events", "time-indexed")
    print("| objective | requests | load | seed | proven | " + " | ".join(names) + " |")
    print("|---|--:|--:|--:|--:" + "|--:" * len(names) + "|")
    for objective in OBJECTIVES:
        for n in sizes:
            for load in (None, 1.1):
                for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                    bound, found = cell(n, seed, load, objective, seconds)
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
