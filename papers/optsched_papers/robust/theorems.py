"""Robust Theorems 3.3, 3.4, 4.3, 5.1 and 5.2 in simulation: no prompts unless said otherwise."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.problem.instance import Instance
from optsched.simulate import run
from optsched.workloads import family
from optsched_papers.claims import (
    BEYOND,
    Claim,
    at_least,
    at_most,
    beside,
    number,
    readings,
    refutable,
    shape,
)
from optsched_papers.robust.closed_ratios import (
    a_l_two_point,
    a_max_bound,
    a_max_printed_lower_bound,
    a_max_proven_bound,
    a_max_workers,
    a_max_worst_mix,
    a_min_two_point,
    with_prompts,
)
from optsched_papers.robust.competitive_ratio import CompetitiveRatio
from optsched_papers.robust.slots import MANY, PROMPTS, Slots, a_l_ratio, one_by_one
from optsched_papers.target import Outcome, Panels, Study, grid, lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched._internal.arrays import FloatArray, IntArray

RATIO = "ratio to H-SF"


def requests_of(shares: FloatArray, count: int, smallest: int = 1) -> IntArray:
    """Return that many outputs in these shares of the outputs from the smallest on, rounded."""
    ends = np.rint(np.cumsum(np.concatenate([[0.0], shares])) * count).astype(np.int64)
    return np.repeat(np.arange(smallest, smallest + len(shares)), np.diff(ends))


def ratio_to_hindsight(instance: Instance, policy: str, upper: int, seeds: Sequence[int]) -> float:
    """Return the mean total latency of a policy that knows [least output, upper], over H-SF's."""
    intervals = f"common:{instance.outputs.min()},{upper}"
    totals = [run(instance, policy, intervals=intervals, seed=seed).total_latency for seed in seeds]
    return float(np.mean(totals)) / run(instance, "h-sf").total_latency


_LONG, _PROMPT = 20, 1  # tokens
_ROOTS = (8, 16, 32)  # of the largest outputs with long prompts
_PROMPTS = "prompts of {slots} u, {slots} slots".format(**MANY)


# Two outputs: Theorems 3.3, 5.1, 5.2 and 8.6

_SHORTS = ([2, 4, 5, 6, 7, 8, 10, 15], [1, 2, 4, 5, 6, 7, 8, 10, 12, 15, 18])  # quick and full


def worst_of_two(
    policy: str, short: int, long: int, memory: int, batches: int, seeds: list[int]
) -> dict[str, float]:
    """Return the largest ratio over shares of short requests, among them those of the proofs."""
    alpha = short / long
    of_proofs = {1 / (1 + alpha), max(0.0, (1 - 2 * alpha) / (1 - alpha))}
    shares = {0.1, 0.2, 0.4, 0.6, 0.8, 0.9} | of_proofs
    count = batches * memory // short
    found = {}
    for share in sorted(shares):
        options: dict[str, Any] = {"short": short, "long": long, "share": share}
        instance = family("robust-two-point", n=count, memory=memory, **options)
        found[share] = ratio_to_hindsight(instance, policy, long, seeds)
    worst = max(found, key=lambda share: found[share])
    return {"share": worst, "ratio": found[worst]}


def two_outputs(
    study: Study,
    policies: list[str],
    bound: Callable[[float], float],
    batches: int,
    shorts: Sequence[Sequence[int]] = _SHORTS,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the largest ratios by alpha, with the bound, and the settings."""
    settings: dict[str, Any] = {"long": _LONG, "memory": study.choose(400, 2000)}
    settings |= {"batches": batches, "seeds": study.seeds(2, 3)}
    shorter = study.choose(*shorts)
    calls = grid(policy=policies, short=shorter)
    found = study.table(worst_of_two, [call | settings for call in calls])
    found["alpha"] = found["short"] / _LONG
    names = {"policy": "curve", "share": "share_of_short"}
    runs = found.rename(columns=names)[["curve", "alpha", "ratio", "share_of_short"]]
    return with_curve(runs, "bound", [short / _LONG for short in shorter], bound), settings


def with_curve(
    table: pd.DataFrame, name: str, alphas: Sequence[float], ratio: Callable[[float], float]
) -> pd.DataFrame:
    """Add a curve that is computed to the ratios of runs."""
    rows = [[name, alpha, ratio(alpha), math.nan] for alpha in alphas]
    return pd.concat([table, pd.DataFrame(rows, columns=table.columns)])


def bounded(
    table: pd.DataFrame, policy: str, bound: Callable[[float], float], memory: float = math.inf
) -> list[Claim]:
    """Claim the bound, with one long request's share of the memory of runs for its O(1 / M)."""
    rows = table[table["curve"] == policy]
    return [
        shape(
            f"alpha={alpha:g}: {policy}, largest ratio",
            ratio,
            at_most=bound(alpha) + _LONG / memory,
            paper=bound(alpha),
        )
        for alpha, ratio in rows[["alpha", "ratio"]].to_numpy().tolist()
    ]


_READINGS = ("a-min", "a-min-overcommit")  # of Algorithm 2


def _theorem_3_3(study: Study) -> Outcome:
    table, settings = two_outputs(study, ["a-max"], a_max_bound, 200)
    claims = bounded(table, "a-max", a_max_bound, settings["memory"])
    alphas = table.loc[table["curve"] == "bound", "alpha"].tolist()
    name = "proven, all outputs"
    table = with_curve(
        table, name, alphas, lambda alpha: a_max_proven_bound(round(alpha * _LONG), _LONG)
    )
    # Not of the paper, and smaller than its bound up to alpha = 1/4.
    claims += beside(bounded(table[table["alpha"] <= 1 / 4], name, a_max_bound))
    return Outcome(table, claims, settings)


def _theorem_5_1(study: Study) -> Outcome:
    table, settings = two_outputs(study, [*_READINGS], a_min_two_point, 20)
    alphas = table.loc[table["curve"] == "bound", "alpha"].tolist()
    lemmas = {"Lemma 4.6": 0, f"Lemma 4.6, prompts of {_PROMPT}": _PROMPT}
    for name, prompt in lemmas.items():
        table = with_curve(table, name, alphas, partial(_lemma_of_alpha, prompt))
    without, short_prompts = lemmas
    either = [bounded(table, name, a_min_two_point, settings["memory"]) for name in _READINGS]
    either.append(bounded(table, without, a_min_two_point))
    claims = [
        claim
        for each in zip(*either, strict=True)
        for claim in readings(f"{each[0].label.partition(':')[0]}, bound {each[0].paper:.3f}", each)
    ]
    # The proof sets prompts aside, the theorem does not.
    of = Slots(_ROOTS[1], **MANY)
    label = f"outputs {{:,}} or {{:,}}, s = {_PROMPT}: Lemma 4.6, largest ratio"
    few = [
        at_most(label.format(1, u), _lemma_of_two(_PROMPT, 1, u), a_min_two_point(1 / u))
        for u in (5, 10, 20)
    ]
    many = f"outputs 1 or {of.upper}, {_PROMPTS}: a-min over H-SF, proven least"
    claims += refutable(
        few, at_most(many, float(of.proven), a_min_two_point(1 / of.upper)), proves=BEYOND
    )
    for short in (1, 10, 100, 1000):
        long, name = 10 * short, f"{label.format(short, 10 * short)}, mended"
        mended = a_min_two_point(0.1, with_prompts(short, long, _PROMPT))
        claims += beside(number(name, mended, _lemma_of_two(_PROMPT, short, long), "fit"))
    claims += beside(bounded(table, short_prompts, a_min_two_point))
    claims += beside(_excess(study, settings))
    return Outcome(table, claims, settings)


def _excess(study: Study, settings: dict[str, Any]) -> list[Claim]:
    """Claim that what exceeds the bound vanishes like 1 / M, with four times the memory."""
    short, memory = 2, settings["memory"]
    calls = grid(policy=_READINGS, memory=[memory, 4 * memory], short=[short])
    found = study.map(worst_of_two, [settings | call for call in calls])
    beyond = [each["ratio"] - a_min_two_point(short / _LONG) for each in found]
    label = f"alpha={short / _LONG:g}: {{}}, excess with four times the memory over before"
    return [
        shape(label.format(policy), after / before, at_most=0.5, paper=0.25)
        for policy, before, after in zip(_READINGS, beyond[::2], beyond[1::2], strict=True)
    ]


def _lemma_of_alpha(prompt: int, alpha: float) -> float:
    return _lemma_of_two(prompt, round(alpha * _LONG), _LONG)


def _lemma_of_two(prompt: int, short: int, long: int) -> float:
    """Maximise Lemma 4.6 over the shares of two outputs."""
    quotient = CompetitiveRatio(long, short, prompt)
    middle = [0] * (long - short - 1)
    return max(float(quotient.quotient([few, *middle, 20])) for few in range(401))


def _theorem_5_2(study: Study) -> Outcome:
    table, settings = two_outputs(study, ["a-l"], a_l_two_point, 200)
    claims = bounded(table, "a-l", a_l_two_point, settings["memory"])
    # Nor does this theorem speak of prompts. The numbers of short ones are worst for A_l.
    prompt = MANY["slots"] * _LONG
    for short, shorts in ((2, 1162), (5, 0), (10, 0)):
        alpha = short / _LONG
        label = f"alpha={alpha:g}, {_PROMPTS}: A_l over H-SF, exact"
        ours = float(a_l_ratio(short, _LONG, shorts, 1000))
        claims += refutable(at_most(label, ours, a_l_two_point(alpha)), proves=BEYOND)
        mended = a_l_two_point(alpha, with_prompts(short, _LONG, prompt))
        claims += beside(number(f"{label}, mended", mended, ours, "digits"))
    return Outcome(table, claims, settings)


# Theorem 3.4

#: Outputs of a token, known to be at most 4, in a memory that is no multiple of it.
_INDIVISIBLE: dict[str, Any] = {"upper": 4, "memory": 7, "requests": 35}


def _instance_3_4(short: int, long: int, mix: float, batches: int, seed: int) -> dict[str, float]:
    """Run the proof's instance with its l workers, and with A_max as Algorithm 1 defines it."""
    options: dict[str, Any] = {"short": short, "mix": mix, "batches": batches}
    instance = family("robust-theorem-3-4", memory=short * long, **options)
    shuffled = np.random.default_rng(seed).permutation(instance.outputs).tolist()
    total = sum(one_by_one(shuffled, short))
    return {
        "workers": total / run(instance, "h-sf").total_latency,
        "a-max": ratio_to_hindsight(instance, "a-max", long, [seed]),
    }


def _theorem_3_4(study: Study) -> Outcome:
    batches, calls = study.choose(600, 2000), []
    outputs = [(4, 16), (3, 27), (2, 32), (2, 50), (1, 64)]
    for short, long in outputs:
        for name, mix in (
            ("printed mix", math.sqrt(short / long)),
            ("worst mix", a_max_worst_mix(short / long)),
        ):
            whole = round(mix * batches) / batches
            calls.append((name, {"short": short, "long": long, "mix": whole}))
    common = {"batches": batches, "seed": study.seed}
    runs = study.map(_instance_3_4, [call | common for _, call in calls])
    claims, of_proof, rows = list[Claim](), list[Claim](), []
    for short, long in [(1, 4), (1, 16), *outputs, (4, 512)]:
        printed, name = a_max_printed_lower_bound(short / long), f"outputs {short} to {long}"
        most = {
            "any memory": a_max_proven_bound(short, long, any_memory=True),
            "memory a multiple of u": a_max_proven_bound(short, long),
        }
        either = refutable(
            at_least(f"{name}, {where}: proven most of A_max over H-SF", bound, printed)
            for where, bound in most.items()
        )
        if long == _INDIVISIBLE["upper"]:
            label = "{}, M = {memory}, s = 0, {requests} requests of one token: a-max"
            either.append(at_least(label.format(name, **_INDIVISIBLE), _indivisible(), printed))
        claims += readings(f"{name}: the printed ratio is reached", either)
        rows += [
            [f"proven bound, {where}", short / long, each, each] for where, each in most.items()
        ]
    for (name, call), found in zip(calls, runs, strict=True):
        alpha = call["short"] / call["long"]
        printed = a_max_printed_lower_bound(alpha)
        formula = a_max_workers(alpha, call["mix"])
        for what, ratio in (("A_max as the proof runs it", formula), ("a-max", found["a-max"])):
            label = f"alpha=1/{1 / alpha:g}, {name}: {what}"
            of_proof.append(at_least(label, ratio, printed))
        rows += [
            ["printed lower bound", alpha, printed, printed],
            [f"the proof's workers, {name}", alpha, formula, found["workers"]],
            [f"a-max, {name}", alpha, found["a-max"], found["a-max"]],
        ]
    table = pd.DataFrame(rows, columns=["curve", "alpha", "ratio", "simulated"]).drop_duplicates()
    workers = table[table["curve"] == "the proof's workers, worst mix"]
    exponent = np.polyfit(-np.log(workers["alpha"]), np.log(workers["ratio"]), 1)[0]
    of_proof.append(shape("exponent of 1 / alpha, worst mix", exponent, at_least=1.4, paper=1.5))
    # 3 %: the formula is for many batches, the workers draw at random.
    distance = (table["simulated"] / table["ratio"] - 1).abs().max()
    label = "simulated workers over the formula, largest distance from 1"
    of_proof.append(shape(label, distance, at_most=0.03))
    settings = {"memory": "l u", "batches of long requests": batches}
    return Outcome(table, [*claims, *beside(of_proof)], settings)


def _indivisible() -> float:
    """Return what A_max costs over H-SF where a second request of the upper bound nearly fits."""
    upper, memory, count = _INDIVISIBLE.values()
    instance = Instance(np.zeros(count, np.int64), np.ones(count, np.int64), memory)
    return ratio_to_hindsight(instance, "a-max", upper, [0])


def _draw_3_4(table: pd.DataFrame, axes: Panels) -> None:
    log: dict[str, Any] = {"by": "curve", "xscale": "log", "yscale": "log"}
    log |= {"x": "inverse", "y": "ratio", "xlabel": "1 / alpha = u / l", "ylabel": RATIO}
    largest = table.groupby(["curve", "alpha"], sort=False)["ratio"].max().reset_index()
    rows = largest.assign(inverse=1 / largest["alpha"]).sort_values("inverse", kind="stable")
    lines(rows, axes, **log)


# Theorem 4.3


def _worst_mix(
    upper: int, prompt: int, memory: int, requests: int, seeds: list[int]
) -> dict[str, float]:
    """Run A_min on the mix of outputs that is worst by Lemma 4.6."""
    ratio = CompetitiveRatio(upper, prompt=prompt)
    outputs = requests_of(ratio.shares, requests)
    instance = Instance(np.full(len(outputs), prompt), outputs, memory)
    return {
        "Lemma 4.6": float(ratio.lower_bound),
        "a-min": ratio_to_hindsight(instance, "a-min", upper, seeds),
        "a-double": ratio_to_hindsight(instance, "a-double", upper, seeds),
    }


def _theorem_4_3(study: Study) -> Outcome:
    uppers = [4, 16, 64, 256]
    seeds = study.seeds(1, 3)
    kinds = {"no prompts": 0, "prompts of 10 u": 10}
    cells: list[tuple[str, int]] = [(kind, u) for u in uppers for kind in kinds]
    # Memory for 40 of the longest requests without prompts, and for 200 with them.
    calls = [
        {
            "upper": u,
            "prompt": kinds[kind] * u,
            "seeds": seeds,
            "memory": (2200 if kinds[kind] else 40) * u,
            "requests": 40_000 if kinds[kind] else 1600 * u,
        }
        for kind, u in cells
    ]
    rows: list[list[Any]] = []
    for (kind, u), found in zip(cells, study.map(_worst_mix, calls), strict=True):
        rows += [[kind, curve, u, ratio] for curve, ratio in found.items()]
    for u in [4, 16, 64, 256, 1024]:
        rows += [[kind, "bound H_u", u, CompetitiveRatio(u).trace_bound] for kind in kinds]
    for kind, times in kinds.items():
        lemma = CompetitiveRatio(1024, prompt=1024 * times)
        rows.append([kind, "Lemma 4.6", 1024, float(lemma.lower_bound)])
    table = pd.DataFrame(rows, columns=["prompts", "curve", "u", "ratio"])
    table = table.sort_values(["prompts", "u"], kind="stable")
    bound = {u: CompetitiveRatio(u).trace_bound for u in table["u"].unique()}
    claims, others = list[Claim](), _at_fixed_prompts(study)
    for key, points in table[table["curve"] != "bound H_u"].groupby(
        ["prompts", "curve"], sort=False
    ):
        prompts, curve = map(str, key)
        ratio = points.set_index("u")["ratio"]
        before, last = ratio.index[-2:]
        growth = _growth(
            f"{prompts}: growth from u={before} to {last}, {curve}", ratio[[before, last]]
        )
        if prompts == "no prompts" and curve != "a-double":
            # What the lemma says of A_min counts as Algorithm 2 in simulation does.
            claims += readings("no prompts: growth by the last fourfold", growth)
        else:
            others.append(growth)
        label = f"{prompts}: ratio over H_u at u={last}, {curve}"
        others.append(at_most(label, ratio[last] / bound[last], 1.0))
    claims[:0] = _with_prompts()
    settings = {"mix": "worst by Lemma 4.6", "seeds": seeds}
    return Outcome(table, [*claims, *beside(others)], settings)


def _growth(label: str, ratio: pd.Series[float]) -> Claim:
    """Claim that a ratio, by u, grows like a logarithm."""
    # c log u grows by this much; a constant beside it only makes that less.
    first, last = ratio.index
    return at_most(label, ratio[last] / ratio[first], math.log(last) / math.log(first))


def _with_prompts() -> list[Claim]:
    """Claim the growth with prompts, which only the proof sets aside: by the lemma, and proven."""
    uppers = [_ROOTS[0] ** 2, _ROOTS[-1] ** 2]
    label = f"growth from u={uppers[0]} to {uppers[-1]}"
    by_lemma = [float(CompetitiveRatio(u, prompt=PROMPTS * u).lower_bound) for u in uppers]
    on_slots = [float(Slots(root, **MANY).proven) for root in (_ROOTS[0], _ROOTS[-1])]
    curves = {
        f"prompts of {PROMPTS} u, Lemma 4.6": by_lemma,
        f"{_PROMPTS}, a-min over H-SF, proven least": on_slots,
    }
    claims = [_growth(f"{key}: {label}", pd.Series(of, uppers)) for key, of in curves.items()]
    return readings(f"prompts in proportion to u: {label}", refutable(claims, proves=BEYOND))


_FIXED = {"upper": 64, "prompt": 1024}


def _fixed_prompt(upper: int, prompt: int, memory: int, each: int, seeds: list[int]) -> float:
    """Run A_min on the outputs that are worst for it on slots, while only the memory grows."""
    of = Slots(math.isqrt(upper), memory // (prompt + upper), each)
    instance = Instance(np.full(len(of.outputs), prompt), of.outputs, memory)
    return ratio_to_hindsight(instance, "a-min", upper, seeds)


def _at_fixed_prompts(study: Study) -> list[Claim]:
    """Compare A_min with the lemma at one prompt, on which a constant may depend, in any memory."""
    memories = study.choose([2**14, 2**16], [2**14, 2**17, 2**20])
    options = {"each": study.choose(5, 20), "seeds": study.seeds(1, 2)}
    calls = [{**_FIXED, "memory": memory, **options} for memory in memories]
    limit = float(CompetitiveRatio(_FIXED["upper"], prompt=_FIXED["prompt"]).lower_bound)
    label = "u = {upper}, s = {prompt:,}, M = {{:,}}: a-min over H-SF".format(**_FIXED)
    return [
        at_most(label.format(memory), ratio, limit)
        for memory, ratio in zip(memories, study.map(_fixed_prompt, calls), strict=True)
    ]
