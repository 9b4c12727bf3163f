"""Robust Fig. 3 and Theorem 5.3: geometric outputs, without prompts and with long ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.problem.instance import Instance
from optsched_papers.claims import (
    BEYOND,
    Estimate,
    at_most,
    beside,
    either,
    estimate,
    number,
    refutable,
    shape,
)
from optsched_papers.robust.closed_ratios import a_min_geometric, a_min_weighted_geometric
from optsched_papers.robust.competitive_ratio import CompetitiveRatio
from optsched_papers.robust.theorems import ratio_to_hindsight, requests_of
from optsched_papers.target import Outcome, Study, grid

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray

_SIMULATED = "a-min, simulated"
_FAMILIES = {"geometric": a_min_geometric, "weighted geometric": a_min_weighted_geometric}


def _shares(name: str, q: float) -> FloatArray:
    """Return the distribution, cut where less than 1e-17 of its second moment is left."""
    lengths = np.arange(1.0, 2 + int(60 / (1 - q)))
    weights: FloatArray = (lengths if name != "geometric" else 1.0) * q ** (lengths - 1)
    weights /= weights.sum()
    return weights


def _lemma(name: str, q: float, prompt: int = 0) -> float:
    """Sum Lemma 4.6 over a distribution, without its closed form."""
    shares = _shares(name, q)
    form = CompetitiveRatio(len(shares), prompt=prompt).form()
    suffixes = np.cumsum(shares[::-1])[::-1]
    return float(suffixes @ form.image(suffixes) / (form.diagonal @ suffixes**2))


def _simulated(name: str, q: float, memory: int, batches: int, seeds: list[int]) -> list[float]:
    shares = _shares(name, q)
    mean = float(shares @ np.arange(1, len(shares) + 1))
    outputs = requests_of(shares, int(batches * memory / mean))
    instance = Instance(np.zeros_like(outputs), outputs, memory)
    return [ratio_to_hindsight(instance, "a-min", int(outputs.max()), [seed]) for seed in seeds]


def _lemma_by_q(name: str) -> pd.DataFrame:
    """Return the ratio of Lemma 4.6, summed, by q."""
    found = [(float(q), _lemma(name, float(q))) for q in np.linspace(0, 0.99, 100)]
    rows = [[name, "Lemma 4.6", q, *3 * (ratio,)] for q, ratio in found]
    return pd.DataFrame(rows, columns=["family", "curve", "q", "ratio", "low", "high"])


def _fig_3(study: Study) -> Outcome:
    settings: dict[str, Any] = {"memory": study.choose(1000, 4000)}
    settings |= {"batches": study.choose(60, 200), "seeds": study.seeds(4, 4)}
    calls = [call | settings for call in grid(name=_FAMILIES, q=[0.3, 0.5, 0.7, 0.8, 0.9])]
    lemmas = pd.concat([_lemma_by_q(name) for name in _FAMILIES], ignore_index=True)
    rows = [
        [call["name"], _SIMULATED, call["q"], *estimate(run)]
        for call, run in zip(calls, study.map(_simulated, calls), strict=True)
    ]
    table = pd.concat([pd.DataFrame(rows, columns=lemmas.columns), lemmas], ignore_index=True)
    claims = []
    for name, most in (("geometric", 1.7), ("weighted geometric", 1.6)):
        lemma = table[(table["family"] == name) & (table["curve"] == "Lemma 4.6")]
        closed = np.array([_FAMILIES[name](q) for q in lemma["q"]])
        distance = np.abs(closed - lemma["ratio"]).max()
        label = f"{name}: largest distance of the lemma from our closed form"
        points = table[(table["family"] == name) & (table["curve"] == _SIMULATED)]
        by = {", Lemma 4.6": lemma["ratio"], f", {_SIMULATED}": points["ratio"]}
        # The figure shows what the lemma says of A_min; either way of finding that counts.
        largest = {curve: ratio.max() for curve, ratio in by.items()}
        claims += either(f"{name}: largest ratio", largest, partial(at_most, limit=most))
        rise = {curve: ratio.diff().min() for curve, ratio in by.items()}
        claims += either(f"{name}: least rise with q", rise, partial(shape, at_least=0))
        agree = f"{name}, q={{:g}}: {_SIMULATED}, and by the lemma"
        claims += beside(
            shape(label, distance, at_most=1e-9),
            (
                number(agree.format(q), _lemma(name, q), Estimate(*ours), "ratio")
                for q, *ours in points[["q", "ratio", "low", "high"]].to_numpy().tolist()
            ),
        )
    # The figure shows what the lemma says, without prompts; simulated ratios are in the table. With
    # prompts its limit is a matter of the text.
    label = "geometric, q=0.9, s = 1: Lemma 4.6"
    claims += beside(at_most(label, _lemma("geometric", 0.9, 1), 1.7))
    return Outcome(table, claims, settings)


def _theorem_5_3(_study: Study) -> Outcome:
    name = "weighted geometric"
    table = _lemma_by_q(name)
    claims = [
        number(f"q={q:g}: Lemma 4.6", a_min_weighted_geometric(q), _lemma(name, q), "exact")
        for q in (0.1, 0.5, 0.9, 0.99)
    ]
    claims += [
        number("limit as q tends to 1", 14 / 9, _lemma(name, 0.9999), "digits"),
        at_most("largest ratio", table["ratio"].max(), 14 / 9),
        # The theorem prints its limit without a condition on prompts.
        *refutable(at_most("q=0.9, s = 1: Lemma 4.6", _lemma(name, 0.9, 1), 14 / 9), proves=BEYOND),
        *beside(at_most("q=0.999, s = 1: Lemma 4.6", _lemma(name, 0.999, 1), 14 / 9 + 1e-3)),
    ]
    return Outcome(table, claims, {"summed": "Lemma 4.6, until 1e-17 of the second moment is left"})
