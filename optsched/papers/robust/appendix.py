"""Robust Corollary 4.10, and the steps to the bound of A_max: Theorem 8.6, Lemma and Example 8."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.instance import Instance
from optsched.optimum.solving import solve
from optsched.papers.claims import Claim, beside, number, refutable, shape
from optsched.papers.robust.closed_ratios import a_min_two_point
from optsched.papers.robust.competitive_ratio import CompetitiveRatio
from optsched.papers.robust.figures import ratios
from optsched.papers.robust.theorems import requests_of, worst_of_two
from optsched.papers.target import Computations, Outcome, Study, bars, grid, lines
from optsched.schedule import Schedule
from optsched.simulate import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Theorem 8.6

_LONG = 20
_UPPERS = (5, 10, 20, 50)  # of outputs from 1 on


def _a_random_bound(alpha: float) -> float:
    return (1 + 1 / alpha) / 2


def _theorem_8_6(study: Study) -> Outcome:
    """Take A_min for the first part, which is on every policy, and A_random for the second."""
    settings = {
        "long": _LONG,
        "memory": study.choose(400, 2000),
        "batches": 20,
        "seeds": study.seeds(2, 3),
    }
    shorts = study.choose([2, 4, 5, 10, 15], [1, 2, 4, 5, 6, 8, 10, 12, 15, 18])
    calls = [call | settings for call in grid(policy=["a-random"], short=shorts)]
    found = study.table(worst_of_two, calls)
    found["alpha"] = found["short"] / _LONG
    rows = [["a-random", *row] for row in found[["alpha", "ratio"]].to_numpy().tolist()]
    rows += [["bound", short / _LONG, _a_random_bound(short / _LONG)] for short in shorts]
    mixes = {u: float(CompetitiveRatio(u).lower_bound) for u in _UPPERS}
    claims = refutable(
        shape(
            f"A_min, outputs 1 to {u}: worst mix over worst mix of the two ends, by Lemma 4.6",
            ratio / a_min_two_point(1 / u),
            at_most=1,
            paper=1,
        )
        for u, ratio in mixes.items()
    )
    # The O(1 / M) is taken to be one long request's share of the memory.
    claims += [
        shape(
            f"alpha={alpha:g}: a-random, largest ratio",
            ratio,
            at_most=_a_random_bound(alpha) + _LONG / settings["memory"],
            paper=_a_random_bound(alpha),
        )
        for alpha, ratio in found[["alpha", "ratio"]].to_numpy().tolist()
    ]
    return Outcome(pd.DataFrame(rows, columns=["curve", "alpha", "ratio"]), claims, settings)


# Lemma 8.8

#: Least and largest output, memory, and outputs of small instances. All outputs are equal but for
#: one at most, so that an order is a place of that one, and expectations are exact.
_SMALL = ((2, 4, 14, (2, 2, 2, 2, 2, 2, 2)), (2, 4, 14, (2, 2, 2, 2, 3, 2, 2)))


def orders(outputs: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the orders of outputs that are equal but for one, each as likely as the others."""
    rare = min(set(outputs), key=list(outputs).count)
    others = list(outputs)
    others.remove(rare)
    for place in range(len(outputs)):
        yield (*others[:place], rare, *others[place:])


def totals_in_order(
    least: int, upper: int, memory: int, outputs: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return total latencies of A_max, and of A_random with alpha M, over all orders."""
    a_max, a_random = [], []
    for order in orders(outputs):
        instance = Instance(np.zeros(len(order)), order, memory)
        served = run(instance, "a-max", intervals=f"common:{least},{upper}")
        a_max.append(served.total_latency)
        smaller = instance.replace(memory=memory * least // upper)
        a_random.append(run(smaller, "fcfs").total_latency)  # whose order is given
    return a_max, a_random


def _lemma_8_8(_study: Study) -> Outcome:
    rows, claims = [], list[Claim]()
    for least, upper, memory, outputs in _SMALL:
        a_max, a_random = totals_in_order(least, upper, memory, outputs)
        words = " ".join(map(str, outputs))
        label = f"l = {least}, u = {upper}, M = {memory}, o = {words}: A_max over A_random(alpha M)"
        claims.append(shape(label, sum(a_max) / sum(a_random), at_most=1, paper=1))
        rows += [
            [words, name, float(np.mean(totals))]
            for name, totals in (("a-max", a_max), ("a-random, alpha M", a_random))
        ]
    table = pd.DataFrame(rows, columns=["outputs", "policy", "expected_total"])
    return Outcome(table, refutable(claims), {"orders": "all"})


# Corollary 4.10

_PARTS = (1, 2, 4, 8, 16)  # classes of equal width among the outputs 1 to u
_FOUR = 4  # of which the growth with u is claimed


def _by_class(
    upper: int, parts: int, memory: int, requests: int, seeds: list[int]
) -> dict[str, float]:
    """Run A_min by the class of each output, on the mix that is worst by Lemma 4.6."""
    outputs = requests_of(CompetitiveRatio(upper).shares, requests)
    instance = Instance(np.zeros_like(outputs), outputs, memory)
    known = f"classes:{upper // parts}"
    totals = [run(instance, "a-min", intervals=known, seed=seed).total_latency for seed in seeds]
    return {"ratio": float(np.mean(totals)) / run(instance, "h-sf").total_latency}


def _corollary_4_10(study: Study) -> Outcome:
    uppers, seeds = study.choose([16, 64], [16, 64, 256]), study.seeds(1, 3)
    calls = [
        {**call, "memory": 40 * call["upper"], "requests": 1600 * call["upper"], "seeds": seeds}
        for call in grid(upper=uppers, parts=_PARTS)
    ]
    table = study.table(_by_class, calls)[["upper", "parts", "ratio"]]
    ratio = table.set_index(["upper", "parts"])["ratio"]
    before, last = uppers[-2:]
    # As for Theorem 4.3: c log u grows by this much.
    most = math.log(last) / math.log(before)
    claims = [
        shape(
            f"u={upper}: A_min with {parts} classes over A_min with one",
            ratio[upper, parts] / ratio[upper, 1],
            at_most=1,
            paper=1,
        )
        for upper in uppers
        for parts in _PARTS[1:]
    ]
    growth = ratio[last, _FOUR] / ratio[before, _FOUR]
    label = f"{_FOUR} classes: growth from u={before} to {last}"
    claims.append(shape(label, growth, at_most=most, paper=most))
    table["outputs"] = [f"outputs 1 to {upper}" for upper in table["upper"]]
    settings = {"mix": "worst by Lemma 4.6 for one class", "memory": "40 u", "seeds": seeds}
    return Outcome(table, claims, settings)


# Example 8.2

_STARTS = {"I1": (0, 2, 0, 3), "I2": (1, 1, 0, 3), "I3": (0, 0, 0, 2)}


def _example_8_2(_study: Study) -> Outcome:
    instance = Instance([1] * 4, [1, 2, 3, 4], memory=7)
    schedules = {name: Schedule(instance, starts) for name, starts in _STARTS.items()}
    violations = sum(len(schedule.check()) for schedule in schedules.values())
    optimum = solve(instance).require(optimal=True).objective
    totals = {name: schedule.total_latency for name, schedule in schedules.items()}
    claims = [
        number("I3 over the optimum", 1, totals["I3"] / optimum, within=0),
        shape("places where a schedule does not fit", violations, at_most=0),
        shape("latest start of I3 after those of I1 and I2", _delay(), at_most=0),
        *beside([shape("I1 over the optimum", totals["I1"] / optimum, at_least=1)]),
    ]
    table = pd.DataFrame({"schedule": list(totals), "total_latency": list(totals.values())})
    return Outcome(table, claims, {"memory": 7, "outputs": [1, 2, 3, 4], "prompt": 1})


def _delay() -> int:
    third = np.array(_STARTS["I3"])
    return int(max((third - np.array(_STARTS[name])).max() for name in ("I1", "I2")))


_EXPECTED: dict[str, Any] = {
    "by": "policy",
    "xlabel": "outputs (tokens)",
    "ylabel": "expected total latency (steps)",
}
_TOTALS = {"xlabel": "schedule", "ylabel": "total latency (steps)"}

TARGETS: Computations = {
    "robust-corollary-4-10": (
        _corollary_4_10,
        lines(
            x="parts",
            y="ratio",
            by="outputs",
            xlabel="classes of equal width",
            ylabel="ratio to H-SF",
            xscale="log",
            yscale="log",
        ),
    ),
    "robust-theorem-8-6": (_theorem_8_6, ratios(by="curve")),
    "robust-lemma-8-8": (_lemma_8_8, bars(x="outputs", y="expected_total", **_EXPECTED)),
    "robust-example-8-2": (
        _example_8_2,
        bars(x="schedule", y="total_latency", **_TOTALS),
    ),
}
