"""Sorted-F Theorems 1, 2, EC.1 and EC.2: what the wrong order costs, and how hard the best is."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pandas as pd

from optsched.models.hindsight import HindsightProgram
from optsched.optimum.solving import solve
from optsched.policies import PriorityPolicy
from optsched.problem.instance import Instance
from optsched.report.style import BLUE, LIMIT, TEXT_SIZE, VERMILLION, count_axis, legend_above
from optsched.simulate import run
from optsched.workloads import family
from optsched_papers.claims import at_most, beside, number, power, shape
from optsched_papers.sorted_f.reductions import partition, three_partition
from optsched_papers.target import Outcome, Panels, Study

# Theorems 1 and EC.1: serving the wrong type first

PRINTED, BALANCED, LONG = "", "-balanced", "-long"
REQUESTS = {PRINTED: "printed numbers", BALANCED: "worst numbers", LONG: "long requests"}
RATE = "printed rate"
#: What fails, the key that serves the second type first, and the printed ratio over sqrt(M).
THEOREMS = {"1": ("mc-sf", -1, 2 / 13), "ec-1": ("mc-sf-total", 1, 2 / 3)}


def ratios(
    theorem: str, requests: str, memory: int, policies: list[str], batches: int = 3
) -> dict[str, float]:
    """Divide the total latency of policies by that of serving the second type first."""
    options = {"batches": batches} if requests else {}
    instance = family(f"sorted-f-theorem-{theorem}{requests}", memory=memory, **options)
    sign = THEOREMS[theorem][1]
    second = PriorityPolicy("second", "", lambda given: sign * given.outputs)
    reference = run(instance, second).total_latency
    return {name: run(instance, name).total_latency / reference for name in policies}


def _rate(study: Study, theorem: str) -> Outcome:
    failing, _, factor = THEOREMS[theorem]
    decades = study.choose(range(2, 7), np.arange(2, 6.01, 0.25))
    memories = [round(10 ** (decade / 2)) ** 2 for decade in decades]
    plan = {
        # M + M^1.5 requests: a million at M = 10,000.
        PRINTED: ([failing], [m for m in memories if m <= study.choose(10_000, 20_000)], 3),
        LONG: ([failing], memories, 3),
        BALANCED: ([failing, "sorted-f", "area"], memories, 3),
    }
    exact = (["sorted-f-dp"], [100, 256, 576, 1024], 2)  # n k M bits per batch
    calls = [
        {"theorem": theorem, "requests": kind, "memory": m, "policies": names, "batches": batches}
        for kind, (names, sizes, batches) in [*plan.items(), (BALANCED, exact)]
        for m in sizes
    ]
    rows = [
        (call["memory"], REQUESTS[call["requests"]], policy, ratio)
        for call, found in zip(calls, study.map(ratios, calls), strict=True)
        for policy, ratio in found.items()
    ]
    rows += [(m, RATE, failing, factor * math.sqrt(m)) for m in memories]
    table = pd.DataFrame(rows, columns=["memory", "requests", "policy", "ratio"])

    def curve(kind: str, policy: str = failing) -> pd.Series[float]:
        chosen = (table.requests == REQUESTS[kind]) & (table.policy == policy)
        return table[chosen].set_index("memory").ratio

    balanced, long, printed = curve(BALANCED), curve(LONG), curve(PRINTED)
    growth = float((balanced.to_numpy()[1:] / balanced.to_numpy()[:-1]).min())
    least = float((long / (factor * np.sqrt(long.index.to_numpy()))).min())
    claims = [
        shape("long requests: exponent of M", power(long.index, long), at_least=0.47, at_most=0.53),
        shape("long requests: least ratio over the printed rate", least, at_least=1),
        shape("worst numbers: least growth to the next M", growth, at_least=1),
    ]
    # The ratio of worst numbers is 1 more than a multiple of M^(1/4), which lowers the fit by 0.02.
    fourth = {"at_least": 0.22, "at_most": 0.28}
    others = [
        number("printed numbers: exponent of M", 0.5, power(printed.index, printed), "slope"),
        shape("worst numbers: exponent of M", power(balanced.index, balanced), **fourth),
    ]
    # The constant of Theorem 3 for Sorted-F, which chooses its batches exactly, is 48.
    for policy in ("sorted-f-dp", *["sorted-f"] * (theorem == "1")):
        ours = curve(BALANCED, policy).max()
        others.append(at_most(f"{policy}: largest ratio", ours, 48))
    claims += beside(others)
    settings = {"memories": memories, "batches": 3, "batches of sorted-f-dp": 2}
    return Outcome(table, claims, settings)


# Theorems 2 and EC.2: integer programs answer 3-Partition and Partition

Question = Literal["3-partition", "partition"]
ASK = {"3-partition": three_partition, "partition": partition}
SOLVERS = ("highs", "cp-sat")
DRAWN = 3  # questions per size whose answer is not known beforehand
TOTAL = 60  # of a triple that is drawn; with it both answers occur


def optima(question: Question, numbers: list[int], printed: bool) -> dict[str, Any]:
    """Solve the integer program of a question about numbers with each solver."""
    asked = ASK[question](numbers)
    instance = asked.instance
    if printed:
        # The memory is the sum of a triple, or of a half.
        memory = instance.memory - 3 * (question == "3-partition")
        instance = Instance(numbers, instance.outputs, memory)
    program = HindsightProgram(instance, objective=asked.objective)
    found = {
        name: solve(program, time_limit=None, method=name).require(optimal=True).objective
        for name in SOLVERS
    }
    return {"yes": asked.decide(), "least": asked.least, **found}


def _questions(question: Question, size: int, seed: int) -> list[list[int]]:
    """Return one question answered yes by its making, one answered no, and some drawn blindly."""
    made = [
        family(question, n=size, seed=seed, memory=101),
        family(f"{question}-no", n=size, seed=seed, memory=101),
    ]
    rng = np.random.default_rng([seed, size])
    drawn = [_drawn(question, rng, size) for _ in range(DRAWN)]
    return [instance.peaks.tolist() for instance in made] + drawn


def _drawn(question: Question, rng: np.random.Generator, size: int) -> list[int]:
    """Draw numbers until the question can be asked of them."""
    triples = question == "3-partition"
    # Numbers to be halved are few and large, so that often no subset has half of the sum.
    least, beyond = (TOTAL // 4 + 1, (TOTAL + 1) // 2) if triples else (1000, 4000)
    while True:
        numbers = rng.integers(least, beyond, size)
        total = int(numbers.sum())
        halves = total % 2 == 0 and 2 * numbers.max() <= total
        if 3 * total == TOTAL * size if triples else halves:
            return [int(x) for x in numbers]


def _decide(study: Study, question: Question) -> Outcome:
    triples = question == "3-partition"
    sizes = study.choose(
        (9, 12, 15) if triples else (6, 10, 14),
        (9, 12, 15, 18, 21, 24) if triples else (6, 8, 10, 12, 14, 18, 24, 30),
    )
    questions = [
        (size, numbers, False)
        for size in sizes
        for numbers in _questions(question, size, study.seed)
    ]
    questions.append((*questions[0][:2], True))  # the first one is answered yes
    calls = [
        {"question": question, "numbers": numbers, "printed": printed}
        for _, numbers, printed in questions
    ]
    table = pd.DataFrame(study.map(optima, calls)).assign(
        size=[size for size, _, _ in questions], printed=[printed for _, _, printed in questions]
    )
    asked, first = table[~table.printed], table[table.printed].iloc[0]
    claims = [
        number(f"{size} numbers, yes: largest optimum", rows.least.max(), rows.highs.max(), "exact")
        for size, rows in asked[asked.yes].groupby("size")
    ]
    claims += [
        shape(f"{size} numbers, no: least optimum", rows.highs.min(), at_least=rows.least.max() + 1)
        for size, rows in asked[~asked.yes].groupby("size")
    ]
    agree = float((asked.highs == asked["cp-sat"]).mean())
    what = f"s = x and M as printed, {first['size']} numbers, yes: optimum"
    claims += beside(
        shape("HiGHS and CP-SAT agree (share)", agree, at_least=1),
        number(what, first.least, first.highs, "exact"),
    )
    settings = {"sizes": list(sizes), "solvers": SOLVERS, "answers yes": int(asked.yes.sum())}
    return Outcome(table, claims, {**settings, "answers no": int((~asked.yes).sum())})


def _draw(table: pd.DataFrame, axes: Panels, what: str) -> None:
    ax = axes[0]
    kinds = (
        ("answer yes", table.yes & ~table.printed, BLUE, "o"),
        ("answer no", ~table.yes & ~table.printed, VERMILLION, "x"),
        ("answer yes, as printed", table.printed, LIMIT, "^"),
    )
    for name, chosen, colour, marker in kinds:
        above = (table.highs - table.least)[chosen]
        at = np.flatnonzero(chosen)
        ax.plot(at, above, color=colour, marker=marker, linestyle="none", label=name)
    asked = table[~table.printed]
    places = pd.Series(asked.index, asked["size"])
    ax.set_xticks(places.groupby(level=0).mean(), asked["size"].unique())
    for last in places.groupby(level=0).last():
        ax.axvline(last + 0.5, color="#E3E3E3", linewidth=0.6)
    ax.grid(visible=False, axis="x")
    ax.set_xlabel("questions, by how many numbers they have", fontsize=TEXT_SIZE)
    ax.set_ylabel(what, fontsize=TEXT_SIZE)
    ax.set_ylim(-0.3, None)
    count_axis(ax.yaxis)
    legend_above(ax)
