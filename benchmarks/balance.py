"""BF-IO's step program: decision times, distance to the optimum, both forms in both solvers.

    python benchmarks/balance.py [decisions] [gap] [forms]

States are those of `cluster_states`, with 72 slots per worker.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import numpy as np
from cluster_states import arrays, simulated_states
from timing import fastest

from optsched import SolveParams, solve
from optsched.models import BalanceProgram
from optsched.solvers.balance_kernels import assign


def measure_decisions():
    """Time of one decision."""
    print("decision times in microseconds, best of 3 per state, 1,000 states")
    for workers, reveal in ((16, 128), (64, 256), (128, 128), (128, 1024)):
        for lookahead in (0, 20):
            states = simulated_states(workers, lookahead, reveal)
            rounds = {"greedy": 0, "swap": 1_000}
            taken = {name: [] for name in rounds}
            for state in (next(states) for _ in range(1_000)):
                given = arrays(state)
                for name, times in taken.items():
                    call = partial(assign, *given, rounds[name])
                    times.append(1e6 * fastest(call, clock=time.perf_counter))
            for name, times in taken.items():
                middle, most, worst = np.percentile(times, [50, 99, 100])
                print(
                    f"  G={workers:<4} R={reveal:<5} H={lookahead:<3} {name:<8} median "
                    f"{middle:6.1f}  p99 {most:6.1f}  most {worst:6.1f}",
                    flush=True,
                )


def measure_gap(proven=250):
    """Distance of greedy and swap to optima proven by CP-SAT, without lookahead by HiGHS."""
    print("gap to the proven optimum")
    for workers, lookahead in ((16, 20), (16, 5), (16, 0)):
        states = simulated_states(workers, lookahead, every=3)
        gaps = {"greedy": [], "swap": [], "relaxation": []}
        tried = 0
        while len(gaps["swap"]) < proven:
            state, tried = next(states), tried + 1
            program = BalanceProgram(state)
            swap = assign(*arrays(state), 1_000)
            solution = solve(program, time_limit=20)
            if not solution.proven_optimal:
                continue
            best = solution.objective
            relaxed = solve(program.to_linear().relax()).objective
            values = {
                "greedy": program.cost(assign(*arrays(state), 0)),
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
                        start = program.write_point(assign(*arrays(state), 1_000))
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
