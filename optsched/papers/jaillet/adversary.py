"""No online algorithm is competitive: the instances of Theorems 6.2 and 6.4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.papers.claims import number, shape
from optsched.papers.panels import lines
from optsched.papers.target import Outcome, Target
from optsched.schedule import Schedule
from optsched.simulate import run
from optsched.workloads import family

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.instance import Instance
    from optsched.papers.study import Study

_POLICIES = ("fcfs", "mc-sf", "sorted-f", "area")
_PRINTED, _WIDER = "arrivals from (1 - 2 epsilon) M, as printed", "arrivals from epsilon M on"
_DELAY = 2  # c of Theorem 6.4: an algorithm of ratio c starts the long request by step c M


def _at_once(instance: Instance) -> Schedule:
    """Serve the short requests when they come, and the long one once they are on their way."""
    together = instance.replace(arrivals=np.full(len(instance), instance.arrivals[-1]))
    return Schedule(instance, run(together, "mc-sf").schedule.starts)


def _competitive(inverse: int, memory: int) -> dict[str, Any]:
    """Serve by all policies and as if it were known what comes; 1 / epsilon is given."""
    instance = family("jaillet-theorem-6-2", n=memory // inverse + 1, memory=memory)
    offline = _at_once(instance)
    if offline.check():
        raise AssertionError("the offline schedule does not fit")
    online = {name: run(instance, name).total_latency for name in _POLICIES}
    ratio = min(online.values()) / offline.total_latency
    return {"inverse": inverse, "memory": memory, "ratio": ratio, **online}


def _theorem_6_2(study: Study) -> Outcome:
    inverses = (4, 8, 16, 32)
    scales = study.choose([1, 4, 16, 64], [1, 2, 4, 8, 16, 32, 64, 128, 256])
    # "When M is large enough": epsilon^3 M is to be well above 1.
    cells = [
        {"inverse": inverse, "memory": scale * inverse**3}
        for inverse in inverses
        for scale in scales
    ]
    # Every policy starts the long request at once, so that all fall for the same arrivals.
    found = study.map(_competitive, cells)
    last = {row["inverse"]: row["ratio"] for row in found}  # of the largest memory
    claims = [
        shape(
            f"epsilon = 1/{inverse}: least ratio of all policies",
            last[inverse],
            at_least=inverse,
            paper=inverse,
        )
        for inverse in inverses
    ]
    table = pd.DataFrame(found)
    table["epsilon"] = [f"epsilon = 1/{inverse}" for inverse in table["inverse"]]
    return Outcome(table, claims, {"policies": list(_POLICIES), "epsilon^3 M": scales})


def _expected(inverse: int, memory: int) -> dict[str, Any]:
    r"""Bound the least ratio of expected latencies over all steps at which to start."""
    count = memory // inverse
    alone, meet = _latencies(inverse, memory)
    apart = alone + memory - count  # the long request ends before the short ones come, or waits
    comes = np.arange((_DELAY + 1) * inverse - 1)  # k in units of epsilon
    start = np.arange(_DELAY * inverse + 1)[:, None]  # k'
    gap = comes - start
    meeting = np.where(gap >= inverse - 1, apart, meet[np.clip(gap, 0, inverse - 1)])
    short_first = meet[0] + comes * count
    online = np.where(gap <= 0, short_first, meeting + start * count)
    known = np.minimum(short_first, online[0])  # a schedule that knows k
    found: dict[str, Any] = {"inverse": inverse, "memory": memory}
    for name, first in ((_PRINTED, inverse - 2), (_WIDER, 1)):
        expected = online[:, first:].mean(axis=1)
        found[name] = {
            "least": float(expected.min() / known[first:].mean()),
            "most": float(expected.min() / apart),
        }
    return found


def _latencies(inverse: int, memory: int) -> tuple[int, FloatArray]:
    """Total latency of the short ones alone, and of all where these come during the long one."""
    count = memory // inverse
    printed = family("jaillet-theorem-6-2", n=count + 1, memory=memory)
    alone = run(printed.take(range(1, count + 1)).replace(arrivals=None), "mc-sf").total_latency
    meet = [
        run(printed.replace(arrivals=[0] + [gap * count] * count), "mc-sf").total_latency
        for gap in range(inverse)
    ]
    return alone, np.array(meet, dtype=np.float64)


def _theorem_6_4(study: Study) -> Outcome:
    inverses = study.choose([4, 8, 16, 32], [4, 8, 16, 32, 64])
    # The long request itself is to matter little: epsilon^3 M well above 1.
    cells = [{"inverse": inverse, "memory": 16 * inverse**3} for inverse in inverses]
    found = study.map(_expected, cells)
    rows = []
    for inverse, each in zip(inverses, found, strict=True):
        harmonic = (1 / np.arange(2, inverse)).sum()
        rows.append([inverse, "the proof's bound", (1 - 1 / _DELAY) + harmonic / _DELAY])
        rows.append([inverse, _PRINTED, each[_PRINTED]["most"]])
        rows.append([inverse, _WIDER, each[_WIDER]["least"]])
    table = pd.DataFrame(rows, columns=["inverse", "arrivals", "ratio"])
    curves = table.pivot_table("ratio", "inverse", "arrivals")
    last, growth = curves.iloc[-1], curves.diff().iloc[-1] / curves.diff().iloc[-2]
    bound = "the proof's bound"
    probabilities = (_DELAY * inverses[-1] + 1) / (_DELAY * inverses[-1])
    name = f"c = {_DELAY}, epsilon = 1/{inverses[-1]}"
    # Halving epsilon adds as much as before to a logarithm of 1 / epsilon, and half as much to what
    # converges like epsilon. 0.75 lies between.
    claims = [
        shape(
            f"{name}: ratio of the best start, as printed",
            last[_PRINTED],
            at_least=float(last[bound]),
            paper=float(last[bound]),
        ),
        *(
            shape(
                f"{arrivals}: growth by the last halving over that by the one before",
                growth[arrivals],
                at_least=0.75,
                paper=float(growth[bound]),
            )
            for arrivals in (_PRINTED, _WIDER)
        ),
        number(f"{name}: sum of the printed probabilities", 1, probabilities, within=1e-9),
    ]
    return Outcome(table, claims, {"c": _DELAY, "memory": "16 / epsilon^3"})


TARGETS = (
    Target(
        "jaillet-theorem-6-2",
        "one long request, and short ones that come before its end: no constant ratio",
        "Jaillet et al., Theorem 6.2",
        _theorem_6_2,
        lines(
            x="memory",
            y="ratio",
            by="epsilon",
            xlabel="memory M (tokens)",
            ylabel="least ratio of all policies\nto a schedule that knows what comes",
            xscale="log",
            yscale="log",
        ),
        remark="The optimum costs at most what the schedule that knows what comes does, so these "
        "ratios are proven. They tend to 2 / epsilon - 1: a short request holds s + 1 tokens, so "
        "1 / epsilon - 1 run at a time where the paper counts 1 / epsilon, and none fits beside an "
        "interrupted long one. Policies of optsched interrupt no request, which is choice (i).",
    ),
    Target(
        "jaillet-theorem-6-4",
        "short requests that come at a random step: no constant ratio of randomised algorithms",
        "Jaillet et al., Theorem 6.4",
        _theorem_6_4,
        lines(
            x="inverse",
            y="ratio",
            by="arrivals",
            xlabel="1 / epsilon",
            ylabel="expected latency of the best start\nover the expected optimum",
            xscale="log",
        ),
        remark="An algorithm that starts the long request at once meets, of the printed arrivals, "
        "only those at (1 - 2 epsilon) M, with probability epsilon / c, and loses a factor of some "
        "2 / epsilon on them: 1 + 2 / c in all, however small epsilon. The probabilities also sum "
        "to 1 + epsilon / c. With arrivals from epsilon M on the ratio grows as the proof wants.",
    ),
)
