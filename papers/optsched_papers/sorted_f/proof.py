r"""Sorted-F Theorems 3 to 8, Lemmas 1 and 2: each inequality on small lists of requests.

**Exact Sorted-F stays below 40 times the optimum**, whether batches fit by their peaks :math:`P_i =
s_i + o_i` or step by step. Sorted-F is no worse than its batches one after another (Theorem 4; also
step by step, since running requests never hold more than they would together at the end of the
shortest of them). When the :math:`k`-th batch starts, :math:`R_k` requests are left, the batch
takes :math:`n_k` of them, and it lasts for its longest output :math:`\ell_k`, so the total latency
is at most :math:`\sum_k \ell_k R_k`.

Let :math:`t_j` be the step by which an optimum has completed all but :math:`j` requests, and
:math:`t = t_j` for :math:`j = \lfloor R_k / 2 \rfloor`. At least :math:`R_k / 2` of the requests
left at batch :math:`k`, a set :math:`T`, have completed by :math:`t` in the optimum. They have held
:math:`\sum_T (s_i o_i + o_i (o_i + 1)/2) \le M t` tokens, so :math:`\sum_T o_i P_i < 2 M t`, and
their outputs are at most :math:`t`. Sort :math:`T` by decreasing output and cut it into shelves of
as many requests as fit by their peaks. A shelf and the first request of the next one have peaks of
more than :math:`M` tokens together, and no output among them is shorter than that request's, the
longest of its shelf. No request is counted more than twice, so the sum of the longest outputs is at
most :math:`2 \sum_T o_i P_i / M + \max_T o_i < 5 t`. Hence some shelf of :math:`n` requests has a
longest output below :math:`5 t n / |T| \le 10 t n / R_k`, and :math:`F` below :math:`10 t / R_k`.
Batch :math:`k` has the least :math:`F`, so it is below that too, and its longest output is less
than twice the mean (Lemma 1):

.. math:: \ell_k < 20 \, n_k \, t_{\lfloor R_k / 2 \rfloor} / R_k .

Count requests from the last batch to the first, :math:`r = 1, \dots, n`. Those of batch :math:`k`
have :math:`r \le R_k`, so the total latency is less than :math:`20 \sum_k n_k t_{\lfloor R_k / 2
\rfloor} \le 20 \sum_r t_{\lfloor r/2 \rfloor} \le 40 \sum_{j \ge 0} t_j`, and :math:`\sum_j t_j` is
the total latency of the optimum.

**Theorems 7 and 8** together limit Sorted-F_align by the optimum, with 6; 20 is proven. Batch
:math:`k` has the mean :math:`n_k F`, less than :math:`10 n_k t_{\lfloor R_k / 2 \rfloor} / R_k`. A
group waits for the means of the last batches before it, which delay no more than :math:`R_k - n_k`
requests, so that with all outputs the total is at most the sum of means times :math:`R_k`, less
than 20 times the optimum as above.

**Theorem 5** holds with 3 in place of 4: within a group means at least double and longest outputs
are below twice the means, so they add up to less than three times the last one, and waits to less
than twice the outputs.
"""

# Lists are drawn, and some are then changed at random for as long as that brings the inequality
# closer to its limit. Batches are exact, optima are proven by enumeration, totals are fractions.

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from optsched.bounds.bound import bound
from optsched.policies import PriorityPolicy
from optsched.problem.instance import Instance
from optsched.report.style import REFERENCE, plot_series
from optsched.simulate import run
from optsched.workloads import family
from optsched_papers.claims import FALSE, PROOF, Claim, at_most, beside, readings, refutable, shape
from optsched_papers.sorted_f.families_of_proof import (
    least_align,
    long_first,
    short_beside_long,
    trap,
)
from optsched_papers.sorted_f.transformed import (
    READINGS,
    Batches,
    Fit,
    groups_of,
    in_order,
    optimal_align,
    optimum,
    sorted_f_batches,
    totals,
)
from optsched_papers.target import Outcome, Panels, Study, grid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.random import Generator
    from numpy.typing import ArrayLike

# Lists of requests, by what their outputs are like

_MAX_MEMORY, _MAX_REQUESTS = 40, 6
_STARTS = 20  # lists drawn of which the best is climbed from


#: How to draw n outputs with a generator, for a memory.
KINDS: dict[str, Callable[[Generator, int, int], ArrayLike]] = {
    "outputs 1 to 12": lambda rng, n, memory: rng.integers(1, min(memory, 12) + 1, n),
    "one token each": lambda _rng, n, _memory: [1] * n,
    "far apart": lambda rng, n, memory: np.minimum(rng.choice([1, 2, 3, 5, 9, 14, 40], n), memory),
    "one long": lambda _rng, n, memory: [memory, *[1] * (n - 1)],
}


def draw(kind: str, rng: Generator) -> Instance:
    """Draw a list of requests whose outputs are of a kind."""
    memory = int(rng.integers(4, _MAX_MEMORY + 1))
    outputs = np.array(KINDS[kind](rng, int(rng.integers(2, _MAX_REQUESTS + 1)), memory))
    return Instance(rng.integers(0, memory - outputs + 1), outputs, memory)


def change(instance: Instance, rng: Generator) -> Instance:
    """Change a request, the number of requests or the memory; what no longer fits is cut."""
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    memory = instance.memory
    at, move = int(rng.integers(len(prompts))), int(rng.integers(6))
    by = int(rng.integers(1, 4)) * (1 - 2 * int(rng.integers(2)))
    if move == 0 and len(prompts) < _MAX_REQUESTS:
        prompts.append(prompts[at])
        outputs.append(outputs[at])
    elif move == 1 and len(prompts) > 1:
        del prompts[at], outputs[at]
    elif move == 2:
        memory = min(max(2, memory + by), _MAX_MEMORY)
    elif move == 3:
        outputs[at] += by
    else:
        prompts[at] += by
    kept = np.clip(outputs, 1, memory)
    return Instance(np.clip(prompts, 0, memory - kept), kept, memory)


# Inequalities: the left side over the right one without its constant


def _spread(instance: Instance, batches: Batches) -> Fraction:
    outputs = [instance.outputs[batch].tolist() for batch in batches]
    return max(Fraction(each[-1] * len(each), sum(each)) for each in outputs)


def _decline(instance: Instance, batches: Batches) -> Fraction:
    """Lemma 2, of batches that do not end their group; 0 where all do."""
    groups = groups_of([instance.outputs[batch].tolist() for batch in batches])
    found = [
        Fraction(batch[-1] * 2 ** ((len(group) - place) // 2), group[-1][-1])
        for group in groups
        for place, batch in enumerate(group[:-1], 1)
    ]
    return max(found, default=Fraction(0))


def _next(above: str, below: str, instance: Instance, batches: Batches) -> Fraction:
    found = totals(instance, batches)._asdict()
    return Fraction(found[above]) / Fraction(found[below])


def _over_optimum(instance: Instance, batches: Batches) -> Fraction:
    return Fraction(in_order(instance, batches), optimum(instance).total_latency)


def _optimum_aligned(instance: Instance, _: Batches) -> Fraction:
    """Theorem 7 in the reading in which Optimal_align is least."""
    return least_align(optimum(instance))


def _aligned(instance: Instance, batches: Batches) -> Fraction:
    """Theorem 8 in the reading in which Optimal_align is largest."""
    best = optimum(instance)
    return totals(instance, batches).align / max(optimal_align(best, each) for each in READINGS)


class Inequality(NamedTuple):
    """A ratio that a statement limits, and on how many lists it is looked at."""

    ratio: Callable[[Instance, Batches], Fraction]
    limit: int
    what: str
    lists: int = 1000  # of each kind
    climbs: int = 4  # from each kind, of so many steps
    steps: int = 250
    fits: tuple[Fit, ...] = ("peak", "profile")


SOLVED: dict[str, Any] = {"lists": 150, "climbs": 2, "steps": 120}  # where an optimum is proven
INEQUALITIES = {
    "lemma-1": Inequality(_spread, 2, "largest output of a batch over the mean"),
    "lemma-2": Inequality(_decline, 1, "longest output of a batch over its limit"),
    "theorem-3": Inequality(_over_optimum, 48, "Sorted-F over Optimal", **SOLVED),
    "theorem-4": Inequality(
        partial(_next, "sorted_f", "separate"), 1, "Sorted-F over Sorted-F_separate"
    ),
    "theorem-5": Inequality(
        partial(_next, "separate", "group"), 4, "Sorted-F_separate over Sorted-F_group"
    ),
    "theorem-6": Inequality(
        partial(_next, "group", "align"), 2, "Sorted-F_group over Sorted-F_align"
    ),
    "theorem-7": Inequality(
        _optimum_aligned, 6, "Optimal_align over Optimal", **SOLVED, fits=("peak",)
    ),
    "theorem-8": Inequality(_aligned, 1, "Sorted-F_align over Optimal_align", **SOLVED),
}


@cache
def _lists(kind: str, fit: Fit, lists: int, seed: int) -> list[tuple[Instance, Batches]]:
    """Draw lists with their batches; several statements are about the same ones."""
    rng = np.random.default_rng([seed, 1])
    drawn = [draw(kind, rng) for _ in range(lists)]
    return [(each, sorted_f_batches(each, fit)) for each in drawn]


def ratios(name: str, kind: str, fit: Fit, lists: int, seed: int) -> list[dict[str, float]]:
    """Return the ratios of lists that are drawn."""
    ratio = INEQUALITIES[name].ratio
    return [{"ratio": float(ratio(*each))} for each in _lists(kind, fit, lists, seed)]


def climb(name: str, kind: str, fit: Fit, steps: int, seed: int) -> dict[str, Any]:
    """Change a list at random, keep what does not lower the ratio, and return the last list."""
    rng, ratio = np.random.default_rng([seed, 2]), INEQUALITIES[name].ratio
    best, most = None, Fraction(0)
    for step in range(steps):
        tried = draw(kind, rng) if best is None or step < _STARTS else change(best, rng)
        found = ratio(tried, sorted_f_batches(tried, fit))
        if best is None or found >= most:
            best, most = tried, found
    assert best is not None
    requests = sorted(zip(best.prompts.tolist(), best.outputs.tolist(), strict=True))
    return {"ratio": float(most), "requests": requests, "memory": best.memory}


def _look(
    study: Study, name: str, more: Sequence[Claim] = (), rows: pd.DataFrame | None = None
) -> Outcome:
    """Compare the largest ratios of lists with the limit, after other claims and beside rows."""
    each = INEQUALITIES[name]
    lists, steps = study.choose(each.lists // 10, each.lists), study.choose(40, each.steps)
    seeds = study.seeds(1, each.climbs, apart=each.climbs)
    every: dict[str, Any] = {"name": [name], "kind": KINDS, "fit": each.fits}
    drawn = study.table(ratios, grid(**every, lists=[lists], seed=[study.seed]))
    tops = study.table(climb, grid(**every, steps=[steps], seed=seeds))
    claims = []
    for fit in each.fits:
        by = f", by {fit}s" if len(each.fits) > 1 else ""
        of = drawn[drawn.fit == fit].ratio
        ways = {
            f"largest of {len(of):,} lists": of,
            "largest climbed to": tops[tops.fit == fit].ratio,
        }
        for how, found in ways.items():
            label = f"{each.what}{by}: {how}"
            claims.append(at_most(label, found.max(), each.limit))
    worst = tops.to_dict("records")[int(tops.ratio.argmax())]
    settings: dict[str, Any] = {"requests": f"2 to {_MAX_REQUESTS}"}
    settings |= {"memory": f"4 to {_MAX_MEMORY}", "climbs": len(tops), "steps of a climb": steps}
    settings |= {
        "worst list climbed to": {name: worst[name] for name in ("requests", "memory", "fit")}
    }
    table = pd.concat([shares(drawn), rows], ignore_index=True)  # None is left out
    proves = PROOF if name in ("theorem-7", "theorem-8") else FALSE
    return Outcome(table, [*more, *refutable(claims, proves=proves)], settings)


def shares(drawn: pd.DataFrame) -> pd.DataFrame:
    """Return for each kind of lists the share of those with a ratio of x or more."""
    return pd.DataFrame(
        [
            {"lists": kind, "ratio": ratio, "share": float((rows.ratio >= ratio).mean())}
            for kind, rows in drawn.groupby("kind", sort=False)
            for ratio in sorted(set(rows.ratio))
        ]
    )


# Theorem 3 on families, with bounds in place of optima

FAMILIES: dict[str, dict[str, int]] = {
    "sorted-f-theorem-1-balanced": {"batches": 2},
    "sorted-f-theorem-1-long": {"batches": 2},
    "sorted-f-theorem-ec-1-balanced": {"batches": 2},
    "sorted-f-theorem-ec-1-long": {"batches": 2},
    "sorted-f-example-1": {},
    "jaillet-theorem-6-2": {},  # all at step 0, as the theorem has it
}
GIANT = "one that fills the memory"


def over_bound(workload: str, memory: int) -> dict[str, float]:
    """Divide the total latency of Sorted-F with exact batches by a proven bound."""
    if workload == GIANT:
        instance = long_first(memory - 1, round(math.sqrt(2 * memory))).instance
    else:
        drawn = family(workload, memory=memory, **FAMILIES[workload])
        instance = Instance(drawn.prompts, drawn.outputs, memory)
    return {"ratio": run(instance, "sorted-f-dp").total_latency / bound(instance).value}


def trapped(policy: str, memory: int) -> dict[str, float]:
    """Divide the total latency of a policy on the trap by that of short outputs first."""
    instance = trap(memory)
    short = PriorityPolicy("short", "", lambda given: given.outputs)
    return {"ratio": run(instance, policy).total_latency / run(instance, short).total_latency}


def _theorem_3(study: Study) -> Outcome:
    memories = study.choose([100, 256], [100, 256, 576, 1024])
    served = study.table(over_bound, grid(workload=[*FAMILIES, GIANT], memory=memories))
    sizes = study.choose([1024, 40_000], [1024, 4096, 10_000, 40_000, 102_400])
    traps = study.table(trapped, grid(policy=["sorted-f", "sorted-f-dp"], memory=sizes))
    more = [
        at_most(f"{name} over a proven bound: largest", rows.ratio.max(), 48)
        for name, rows in served.groupby("workload", sort=False)
    ]
    label = "{} on requests that local swap cannot exchange: largest"
    more += beside(
        at_most(label.format(policy), rows.ratio.max(), 48)
        for policy, rows in traps.groupby("policy", sort=False)
    )
    worst = served.groupby("memory", as_index=False).ratio.max()
    worst["family"] = "sorted-f-dp, worst of 7 families"
    traps["family"] = traps.policy.replace("sorted-f-dp", "sorted-f-dp, trap of sorted-f")
    rows = pd.concat([worst, traps])
    rows = rows.rename(columns={"memory": "size", "ratio": "of_family"})
    return _look(study, "theorem-3", more, rows)


def _theorem_5(study: Study) -> Outcome:
    lists = study.choose(100, 1000)
    calls = grid(kind=KINDS, fit=["peak", "profile"], lists=[lists], seed=[study.seed])
    found = study.table(saturation, calls)
    label = "peaks at the end of a group, and that of the next request, over the memory: least"
    nearly = [
        shape(f"{label}, the last group aside", found.others.min(), at_least=1),
        shape(f"{label}, the last group too", found["last"].min(), at_least=1),
    ]
    looked = _look(study, "theorem-5")
    # Lemma 1 and the rule for groups give 3: see the module.
    own = max(claim.ours for claim in looked.claims)
    more = readings("the last batch of a group nearly saturates", refutable(nearly))
    more += beside(shape("our constant in place of 4", own, at_most=3))
    return replace(looked, claims=[*more, *looked.claims])


def saturation(kind: str, fit: Fit, lists: int, seed: int) -> dict[str, float]:
    """Return how full the last batches of groups are at least, with one more request."""
    rng = np.random.default_rng([seed, 3])
    least = {"others": math.inf, "last": math.inf}
    for _ in range(lists):
        instance = draw(kind, rng)
        batches = sorted_f_batches(instance, fit)
        outputs = [instance.outputs[batch].tolist() for batch in batches]
        ends = np.cumsum([len(group) for group in groups_of(outputs)]) - 1
        for end in ends.tolist():
            following = batches[end + 1][:1] if end + 1 < len(batches) else []
            held = int(instance.peaks[batches[end] + following].sum()) / instance.memory
            key = "others" if following else "last"
            least[key] = min(least[key], held)
    return least


# Theorems 7 and 8 on lists whose optima are known


def _peaks(copies: int) -> str:
    return f"requests of up to {f'1/{copies} of' if copies > 1 else 'all'} the memory"


def against_theorem_7(long: int, copies: int) -> dict[str, float]:
    """Return Optimal_align over Optimal, in the reading in which it is least."""
    steps = round(math.sqrt(2 * long))
    best = long_first(long, steps, copies)
    return {"of_family": float(least_align(best)), "requests": len(best.instance)}


def _theorem_7(study: Study) -> Outcome:
    longs = study.choose([200, 800], [50, 100, 200, 400, 800, 1600])
    # Short requests need more than a share of 1 / (copies + 1) of the memory.
    calls = [
        {"long": long, "copies": copies}
        for copies in (1, 4, 16)
        for long in longs
        if (copies + 1) * (math.sqrt(2 * long) + 2) < long
    ]
    table = study.table(against_theorem_7, calls)
    least = float(least_align(long_first(232, 23)))
    return _exceeded(study, "theorem-7", table, {"one of 232 tokens, 23 of one": least})


def _exceeded(study: Study, name: str, table: pd.DataFrame, small: dict[str, float]) -> Outcome:
    """Return the outcome of an inequality that families and a small list of requests refute."""
    each = INEQUALITIES[name]
    table["family"] = table.copies.map(_peaks)
    families = table.groupby("family", sort=False).of_family.max()
    found = {f"{peaks}, worst": ratio for peaks, ratio in families.items()} | small
    more = [at_most(f"{each.what}: {of}", ratio, each.limit) for of, ratio in found.items()]
    rows = table.rename(columns={"long": "size"}).drop(columns="copies")
    # The statement is that some schedule does: what is tried is the one that its proof constructs.
    return _look(study, name, refutable(more, proves=PROOF), rows)


def against_theorem_8(long: int, copies: int) -> dict[str, float]:
    """Return Sorted-F_align over Optimal_align, in the reading in which that is largest."""
    best = short_beside_long(long, round(math.sqrt(long)), copies)
    largest = max(optimal_align(best, each) for each in READINGS)
    batches = sorted_f_batches(best.instance)
    return {"of_family": float(totals(best.instance, batches).align / largest)}


def _theorem_8(study: Study) -> Outcome:
    longs = study.choose([4, 16], [4, 9, 16, 25, 49, 100])
    table = study.table(
        against_theorem_8, grid(long=longs, copies=study.choose([1, 4], [1, 2, 4, 8]))
    )
    least = short_beside_long(4, 1).instance
    four = float(_aligned(least, sorted_f_batches(least)))
    return _exceeded(study, "theorem-8", table, {"outputs of 1, 4, 4 and 8 tokens": four})


def draw_shares(table: pd.DataFrame, axes: Panels, what: str, limit: float, size: str = "") -> None:
    """Draw how often lists have a ratio of x or more, and ratios of families by their size."""
    drawn = table[table.share.notna()]
    look: dict[str, Any] = {"xlabel": what, "ylabel": "share of lists with this or more"}
    look["xscale"] = "log" if limit > 2 * drawn.ratio.max() else "linear"
    plot_series(drawn, x="ratio", y="share", by="lists", yscale="log", ax=axes[0], **look)
    axes[0].axvline(limit, **REFERENCE)
    if size:
        rows = table[table.share.isna()]
        scale = "log" if rows.of_family.max() > 3 * rows.of_family.min() else "linear"
        look = {"xlabel": size, "ylabel": what, "xscale": "log", "yscale": scale}
        plot_series(rows, x="size", y="of_family", by="family", ax=axes[1], **look)
        axes[1].axhline(limit, **REFERENCE)


def _draw(table: pd.DataFrame, axes: Panels, name: str, size: str = "") -> None:
    each = INEQUALITIES[name]
    draw_shares(table, axes, each.what, each.limit, size)
