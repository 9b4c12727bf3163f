"""BF-IO's step program: decision times, distance to the optimum, both forms in both solvers.

    python benchmarks/balance.py [decisions] [gap] [forms]

States are those of `cluster_states`, with 72 slots per worker.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from cluster_states import arrays, simulated_states
from timing import fastest

from optsched import BalanceProgram, SolveParams, solve
from optsched.solvers.balance.kernels import assign_by_greedy, assign_by_swap, search_deficit


def measure_decisions():
    """Time of one decision, and how many steps the deficit search certifies."""
    print("decision times in microseconds, best of 3 per state, 1,000 states")
    for workers, reveal in ((16, 128), (64, 256), (128, 128), (128, 1024)):
        for lookahead in (0, 20):
            states = simulated_states(workers, lookahead, reveal)
            names = ("greedy", "swap") if lookahead else ("greedy", "swap", "deficit")
            taken = {name: [] for name in names}
            certified = 0
            for state in (next(states) for _ in range(1_000)):
                given = arrays(state)
                calls = {
                    "greedy": lambda given=given: assign_by_greedy(*given),
                    "swap": lambda given=given: assign_by_swap(*given, 1_000),
                    "deficit": lambda given=given: search_deficit(*given[:3]),
                }
                for name, times in taken.items():
                    times.append(1e6 * fastest(calls[name], clock=time.perf_counter))
                if not lookahead:
                    _, value, bound = search_deficit(*given[:3])
                    certified += value == bound
            for name, times in taken.items():
                middle, most, worst = np.percentile(times, [50, 99, 100])
                share = f", certified {certified / 10:.1f} %" if name == "deficit" else ""
                print(
                    f"  G={workers:<4} R={reveal:<5} H={lookahead:<3} {name:<8} median "
                    f"{middle:6.1f}  p99 {most:6.1f}  most {worst:6.1f}{share}",
                    flush=True,
                )


def measure_gap(proven=250):
    """Distance of greedy and swap to optima proven by CP-SAT, without lookahead by certificate."""
    print("gap to the proven optimum")
    for workers, lookahead in ((16, 20), (16, 5), (16, 0)):
        states = simulated_states(workers, lookahead, every=3)
        gaps = {"greedy": [], "swap": [], "relaxation": []}
        tried = 0
        while len(gaps["swap"]) < proven:
            state, tried = next(states), tried + 1
            program = BalanceProgram(state)
            swap = assign_by_swap(*arrays(state), 1_000)
            start = program.write_point(swap)
            if lookahead:
                solution = solve(
                    program.to_linear(),
                    method="cp-sat",
                    time_limit=20,
                    params=SolveParams(start=start),
                )
                best, certain = solution.objective, solution.proven_optimal
            else:
                _, best, bound = search_deficit(*arrays(state)[:3])
                certain = best == bound
            if not certain:
                continue
            relaxed = solve(program.to_linear().relax()).objective
            values = {
                "greedy": program.cost(assign_by_greedy(*arrays(state))),
                "swap": program.cost(swap),
                "relaxation": 2 * best - relaxed,
            }
            for name, value in values.items():
                gaps[name].append((value - best) / best if best else float(value > best))
        for name, shares in gaps.items():
            shares = 100 * np.array(shares)
            print(
                f"  G={workers:<3} H={lookahead:<3} {name:<11} mean {shares.mean():.3f} %  p99 "
                f"{np.percentile(shares, 99):.2f} %  most {shares.max():.2f} %  optimal "
                f"{(shares < 1e-9).mean():.0%}  ({proven} proven of {tried})",
                flush=True,
            )


def measure_forms(states=5, limit=3.0):
    """Literal form without a start against reduced form with one, in both solvers."""
    print(f"median milliseconds over {states} states, 1 thread, {limit:g} s limit; proven of them")
    for workers, lookahead in ((16, 0), (128, 0), (16, 20), (16, 40), (64, 20)):
        found = simulated_states(workers, lookahead, every=7)
        steps = [next(found) for _ in range(states)]
        for solver in ("highs", "cp-sat"):
            cells = []
            for form, with_start in (("literal", False), ("reduced", False), ("reduced", True)):
                times, proven = [], 0
                for state in steps:
                    program = BalanceProgram(state, form=form)
                    began = time.perf_counter()
                    start = None
                    if with_start:
                        start = program.write_point(assign_by_swap(*arrays(state), 1_000))
                    model = program.to_linear()
                    solution = solve(
                        model, method=solver, time_limit=limit, params=SolveParams(start=start)
                    )
                    times.append(1e3 * (time.perf_counter() - began))
                    proven += solution.proven_optimal
                cells.append(f"{form}{' + start' * with_start} {np.median(times):6.0f} ({proven})")
            print(f"  G={workers:<4} H={lookahead:<3} {solver:<7}", "  ".join(cells), flush=True)


if __name__ == "__main__":
    known = {"decisions": measure_decisions, "gap": measure_gap, "forms": measure_forms}
    for name in sys.argv[1:] or known:
        known[name]()
