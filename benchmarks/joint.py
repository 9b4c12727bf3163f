"""Several workers: gap and time of `solve(instance, workers=...)`, by set; one thread.

`joint.py [set ...]`, a set being how a row's name begins, such as `R-16000`; without sets all. The
time limit is wall time, so that figures need a quiet machine; CPU seconds of the process and its
children stand beside.
"""

from __future__ import annotations

import resource
import sys

from optsched import Instance, bound, family, solve

MEMORY = 16_492


def real(count: int, workers: int, load: float | None = None) -> Instance:
    """Return requests of chat and summaries, at a load of all workers."""
    if load is None:
        return family("chat-and-summaries", n=count, seed=1, memory=MEMORY)
    pool = family("chat-and-summaries", n=count, seed=1, memory=workers * MEMORY, load=load)
    return pool.replace(memory=MEMORY)


#: Family, requests, workers, load (None: offline), seconds.
SETS: tuple[tuple[str, int, int, float | None, float], ...] = (
    ("uniform", 12, 3, None, 30.0),
    ("uniform", 16, 4, None, 30.0),
    ("normal", 14, 4, None, 30.0),
    ("normal", 20, 8, None, 30.0),
    ("uniform", 10, 2, None, 60.0),
    ("uniform", 12, 2, None, 60.0),
    ("R", 16_000, 8, None, 5.0),
    ("R", 16_000, 64, None, 10.0),
    ("R", 100_000, 8, None, 30.0),
    ("R", 100_000, 64, None, 15.0),
    ("R", 4_000, 8, 1.1, 20.0),
    ("R", 4_000, 8, 0.9, 20.0),
)


def cpu() -> float:
    """Return the CPU seconds of this process and of those it has waited for."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(each) for each in who]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(name: str, count: int, workers: int, load: float | None, limit: float) -> str:
    """Solve one set and return a row."""
    instance = real(count, workers, load) if name == "R" else family(name, n=count, seed=0)
    began = cpu()
    found = solve(instance, workers=workers, time_limit=limit)
    used = cpu() - began
    assert not found.schedule.check()
    closed = "proven" if found.proven_optimal else f"{100 * found.gap:.2f} %"
    where = "offline" if load is None else f"load {load}"
    return (
        f"{name} n={count:,} G={workers} {where}: {closed} in {found.seconds:.1f} s of {limit:g} s "
        f"({used:.1f} CPU seconds, kernels included)"
    )


def main() -> None:
    """Print a row for each set, and the gain of nested pools."""
    wanted = sys.argv[1:]
    for each in SETS:
        name = f"{each[0]}-{each[1]}-{each[2]}-{each[3]}"
        if not wanted or any(name.startswith(part) for part in wanted):
            print(measure(*each), flush=True)
    if not wanted or "nested" in wanted:
        instance = family("uniform", n=300, seed=1)
        memories = [100] + 4 * [50]
        best = solve(instance, workers=memories, time_limit=10).objective
        pool = 1 - bound(instance.replace(memory=sum(memories))).value / best
        nested = 1 - bound(instance, workers=memories).value / best
        print(f"U n=300 on 100 + 4 x 50: pool {pool:.1%}, nested pools {nested:.1%}")


if __name__ == "__main__":
    main()
