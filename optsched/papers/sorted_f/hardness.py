"""Theorems 2 and EC.2: integer programs answer 3-Partition and Partition."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from optsched.instance import Instance
from optsched.models.hindsight import HindsightProgram
from optsched.optimum.solving import solve
from optsched.papers.claims import number, shape
from optsched.papers.sorted_f.orders import SOURCE
from optsched.papers.sorted_f.reductions import partition, three_partition
from optsched.papers.target import Outcome, Target
from optsched.report.style import BLUE, LIMIT, TEXT_SIZE, VERMILLION, count_axis, legend_above
from optsched.workloads import family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from optsched.papers.study import Study

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
        instance = Instance(numbers, instance.outputs, instance.memory)
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
    draw = _triples if question == "3-partition" else _numbers
    return [instance.peaks.tolist() for instance in made] + [draw(rng, size) for _ in range(DRAWN)]


def _triples(rng: np.random.Generator, size: int) -> list[int]:
    while True:
        numbers = rng.integers(TOTAL // 4 + 1, (TOTAL + 1) // 2, size)
        if numbers.sum() * 3 == TOTAL * size:
            return [int(x) for x in numbers]


def _numbers(rng: np.random.Generator, size: int) -> list[int]:
    """Draw numbers of 1,000 and more: few enough that often no subset has half of the sum."""
    while True:
        numbers = rng.integers(1000, 4000, size)
        if numbers.sum() % 2 == 0 and 2 * numbers.max() <= numbers.sum():
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
        size=[size for size, _, _ in questions],
        printed=[printed for _, _, printed in questions],
    )
    asked, first = table[~table.printed], table[table.printed].iloc[0]
    claims = [
        number(
            f"{size} numbers, yes: largest optimum", rows.least.max(), rows.highs.max(), within=0
        )
        for size, rows in asked[asked.yes].groupby("size")
    ]
    claims += [
        shape(f"{size} numbers, no: least optimum", rows.highs.min(), at_least=rows.least.max() + 1)
        for size, rows in asked[~asked.yes].groupby("size")
    ]
    agree = float((asked.highs == asked["cp-sat"]).mean())
    claims.append(shape("HiGHS and CP-SAT agree (share)", agree, at_least=1))
    what = f"prompts s = x as printed, {first['size']} numbers, yes: optimum"
    claims.append(number(what, first.least, first.highs, within=0))
    settings = {"sizes": list(sizes), "solvers": SOLVERS, "answers yes": int(asked.yes.sum())}
    return Outcome(table, claims, {**settings, "answers no": int((~asked.yes).sum())})


def _draw(table: pd.DataFrame, axes: Sequence[Axes], what: str) -> None:
    ax = axes[0]
    kinds = (
        ("answer yes", table.yes & ~table.printed, BLUE, "o"),
        ("answer no", ~table.yes & ~table.printed, VERMILLION, "x"),
        ("answer yes, prompts as printed", table.printed, LIMIT, "^"),
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


TARGETS = (
    Target(
        "sorted-f-theorem-2",
        "the least total latency decides 3-Partition",
        f"{SOURCE}, Theorem 2",
        partial(_decide, question="3-partition"),
        partial(_draw, what="optimum - 3 m (m + 1) / 2 (steps)"),
        remark="By Eq. 6 a request of s tokens holds s + 1 in its only step, so that a number x "
        "needs the prompt s = x - 1; with the printed s = x three numbers of sum T never fit.",
    ),
    Target(
        "sorted-f-theorem-ec-2",
        "the least makespan decides Partition",
        f"{SOURCE}, Theorem EC.2",
        partial(_decide, question="partition"),
        partial(_draw, what="optimum - 2 (steps)"),
        remark="Prompts s = x - 1, as in Theorem 2; with the printed s = x two batches never hold "
        "all requests.",
    ),
)
