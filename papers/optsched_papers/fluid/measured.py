"""Fluid Fig. 3, 9, 10 and 15: what the paper measured, of a GPU and of conversations."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.clock import BatchContent, get_clock
from optsched.problem.request_types import RequestTypes
from optsched.report.style import plot_bars
from optsched.workloads import family
from optsched_papers.claims import (
    Claim,
    Estimate,
    beside,
    either,
    estimate,
    number,
    readings,
    shape,
)
from optsched_papers.distributions import CONVERSATIONS, distributions
from optsched_papers.fluid.memory import BINS, LONGEST, PROMPT, chats, least_plan
from optsched_papers.fluid.serving import BIN_THRESHOLDS
from optsched_papers.target import Outcome, Panels, Study, grid

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray

WORKLOAD = "chat"  # of conversations, with the moments that Robust prints

# Figure 3: is the time of a batch linear in its tokens?

# The paper has Llama-7B and -13B on an L20, of which there is no profile.
_SMALL, _LARGE = "llama-2-7b on an A100", "llama-2-70b on two A100"
CLOCKS = {_SMALL: "llama-2-7b-a100", _LARGE: "llama-2-70b-2xa100"}
KINDS = ("prefills", "decodes", "both")
_REPEATS = 20  # as in the paper


def batch_of(tokens: int, kind: str, rng: np.random.Generator) -> BatchContent:
    """Draw conversations, each at any of its stages as in the fluid, until they hold so much."""
    drawn = family(WORKLOAD, n=2000, seed=int(rng.integers(2**31)))
    prompts, outputs = drawn.prompts, drawn.outputs
    chosen = rng.permutation(len(drawn))
    if kind == "decodes":
        chosen = chosen[outputs[chosen] > 1]
    prompts, outputs = prompts[chosen], outputs[chosen]
    least = np.full(len(chosen), int(kind == "decodes"))
    beyond = np.ones_like(least) if kind == "prefills" else outputs
    stages = rng.integers(least, beyond)
    held = prompts + stages
    count = int(np.searchsorted(np.cumsum(held), tokens)) + 1
    prompts, stages, held = prompts[:count], stages[:count], held[:count]
    first = stages == 0
    return BatchContent(
        int(prompts[first].sum()),
        int((~first).sum()),
        int(held[~first].sum() - (~first).sum()),  # before the batch
        int((prompts[first] ** 2).sum()),
        int(held.sum()),
    )


def times(model: str, kind: str, tokens: list[int], seed: int) -> list[dict[str, float]]:
    """Time batches of about so many tokens."""
    rng, clock = np.random.default_rng([seed, KINDS.index(kind)]), get_clock(CLOCKS[model])
    batches = [batch_of(least, kind, rng) for least in tokens for _ in range(_REPEATS)]
    return [{"held": batch.held_tokens, "ms": 1e3 * clock(batch)} for batch in batches]


def line(held: Any, ms: Any) -> tuple[float, float, float]:
    """Fit d0 + d1 x; return d0, d1 and R^2."""
    slope, start = np.polyfit(held, ms, 1)
    return float(start), float(slope), float(np.corrcoef(held, ms)[0, 1] ** 2)


def _figure_3(study: Study) -> Outcome:
    tokens = list(range(1000, 8001, study.choose(1000, 500)))
    calls = grid(model=list(CLOCKS), kind=list(KINDS), tokens=[tokens], seed=[study.seed])
    runs = study.table(times, calls).drop(columns="tokens")
    fits = {
        str(key): line(rows["held"], rows["ms"])
        for key, rows in runs.assign(key=runs["model"] + ", " + runs["kind"]).groupby("key")
    }
    statement = "time is linear in the tokens of a batch (R^2)"
    of = {kind: fits[f"{_SMALL}, {kind}"] for kind in KINDS}
    claims = readings(
        statement, (shape(f"R^2, {kind}", fit[2], at_least=0.95) for kind, fit in of.items())
    )
    prefills, decodes, _ = of.values()
    claims += beside(
        shape("d1 of prefills over d1 of decodes", prefills[1] / decodes[1], at_most=2),
        shape("d0 of prefills over d0 of decodes", prefills[0] / decodes[0], at_most=1.1),
        shape(f"R^2, both, {_LARGE}", fits[f"{_LARGE}, both"][2], at_least=0.95),
    )
    places = np.repeat(tokens, _REPEATS)
    runs["tokens"] = np.tile(places, len(runs) // len(places))
    times_of = runs.groupby(["model", "kind", "tokens"], sort=False)["ms"]
    table = times_of.agg(ms="mean", low="min", high="max").reset_index()
    settings = {"clocks": CLOCKS, "lengths": WORKLOAD, "fits (d0 ms, d1 ms, R^2)": fits}
    return Outcome(table, claims, settings)


# Figures 9, 10 and 15: lengths of conversations

#: Mean prompts of the public sample by outputs, 1 to 50, ..., 451 to 500; a test finds them again.
PROMPTS = (53.28, 59.77, 64.70, 57.95, 54.22, 58.97, 63.92, 70.50, 67.41, 64.96)
_WIDTH = LONGEST // len(BINS)
_SAMPLE = np.array(CONVERSATIONS).reshape(-1, 5).sum(axis=1)[: len(BINS)]
_SHARES = _SAMPLE / _SAMPLE.sum()
_WHOLE, _TURNS = "whole conversations", "single answers"


def conversations(seed: int, n: int = 50_000) -> tuple[IntArray, IntArray]:
    """Draw lengths of single answers, with outputs up to 500."""
    drawn = family(WORKLOAD, n=n, seed=seed)
    kept = drawn.outputs <= LONGEST
    return drawn.prompts[kept], drawn.outputs[kept]


def _mean_prefill(study: Study, printed: float) -> list[Claim]:
    """Claim the mean prompt, of whole conversations or of single answers."""
    drawn = [float(conversations(seed)[0].mean()) for seed in study.seeds(4, 12)]
    ours: dict[str, float | Estimate] = {f", {_WHOLE}": float(_SHARES @ PROMPTS)}
    ours[f", {_TURNS}"] = estimate(drawn)
    return either("mean prefill", ours, partial(number, paper=printed, kind="quantile"))


def _figure_9(study: Study) -> Outcome:
    found = distributions(study, WORKLOAD, {"prompts": {}, "outputs": {}}, n=10_000)
    whole = {"least": 10 * np.arange(len(CONVERSATIONS)), "width": 10}
    whole |= {"share": np.array(CONVERSATIONS) / sum(CONVERSATIONS)}
    named = found.table.assign(lengths=found.table["lengths"] + f", {_TURNS}")
    table = [named, pd.DataFrame(whole).assign(lengths=f"outputs, {_WHOLE}")]
    shown = pd.concat(table, ignore_index=True)
    shown[["printed_mean", "printed_median"]] = np.nan
    # The figure prints no number; the mean prompt is one of the text.
    falls = float((_SAMPLE[1:] / _SAMPLE[:-1]).max())
    label = f"outputs: requests of 50 lengths over those of the 50 before, {_WHOLE}"
    claims = [shape(label, falls, at_most=1), *beside(_mean_prefill(study, 60.0))]
    return Outcome(shown, claims, found.settings)


def bins(seed: int) -> list[dict[str, float]]:
    """Count the requests of each bin of 50 output tokens, and average their prompts."""
    prompts, outputs = conversations(seed)
    place = (outputs - 1) // _WIDTH
    counts = np.bincount(place, minlength=len(BINS))
    sums = np.bincount(place, prompts, minlength=len(BINS))
    return [
        {"bin": b, "share": count / len(outputs), "prompt": total / count}
        for b, (count, total) in enumerate(zip(counts, sums, strict=True))
    ]


def _figure_10(study: Study) -> Outcome:
    runs = study.table(bins, grid(seed=study.seeds(4, 12)))
    drawn = runs.groupby("bin")[["share", "prompt"]].mean()
    by = {_WHOLE: pd.DataFrame({"share": _SHARES, "prompt": PROMPTS}), _TURNS: drawn}
    paper = np.array(BINS) / sum(BINS)
    agree = int((np.cumsum(BINS[::-1])[::-1] == np.array(BIN_THRESHOLDS)).sum())
    claims = [
        number("thresholds that are sums of the rates from their bin on", 10, agree, "exact"),
        *_mean_prefill(study, 60.0),
    ]
    labels = ("requests of a bin over those of the one before, most", "share of the first bin")
    flat = "mean prefill of a bin, most over least"
    for what, found in by.items():
        share, prompt = found["share"].to_numpy(), found["prompt"].to_numpy()
        falls = float((share[1:] / share[:-1]).max())
        claims += readings(labels[0], shape(f"{labels[0]}, {what}", falls, at_most=1))
        claims += readings(labels[1], number(f"{labels[1]}, {what}", paper[0], share[0], "level"))
        most = float(prompt.max() / prompt.min())
        claims += readings(flat, shape(f"{flat}, {what}", most, at_most=1.25))
    names = [f"{b * _WIDTH + 1}-{(b + 1) * _WIDTH}" for b in range(len(BINS))]
    shown = {"printed": pd.DataFrame({"share": paper, "prompt": 60.0}), **by}
    table = pd.concat([each.assign(bin=names, of=name) for name, each in shown.items()])
    return Outcome(table.reset_index(drop=True), claims, {"workload": WORKLOAD})


def _draw_figure_10(table: pd.DataFrame, axes: Panels) -> None:
    labels = {"share": "share of requests", "prompt": "mean prompt (tokens)"}
    for ax, (what, ylabel) in zip(axes, labels.items(), strict=True):
        plot_bars(table, x="bin", y=what, by="of", ylabel=ylabel, xlabel="output tokens", ax=ax)
        ax.tick_params(axis="x", rotation=45, labelsize=7)


def frequencies(seed: int, rate: float = 50.0) -> RequestTypes:
    """Return the 500 output lengths at rates in proportion to those of drawn conversations."""
    outputs = conversations(seed)[1]
    # One more of each, so that a length that was not drawn has a rate as well.
    counts = np.bincount(outputs, minlength=LONGEST + 1)[1:] + 1.0
    lengths = np.arange(1, LONGEST + 1)
    return RequestTypes(np.full(LONGEST, PROMPT), lengths, rate * counts / counts.sum())


def _least_segments(seed: int, segments: list[int], margins: list[float]) -> int:
    """Return the number of segments whose memory bound is least, as in Fig. 16."""
    types = frequencies(seed)
    found = [least_plan(types, count, margins, delta=0.1, iterations=200) for count in segments]
    return segments[int(np.argmin([plan.memory_bound for plan in found]))]


def _figure_15(study: Study) -> Outcome:
    drawn = frequencies(study.seed)
    even = chats(float(drawn.rates.sum()))
    whole = np.array(CONVERSATIONS[: LONGEST // 10])
    tens = {_WHOLE: whole, _TURNS: drawn.rates.reshape(-1, 10).sum(axis=1)}
    segments = [1, 2, 4, 6, 8, 10, 12, 15, 20, 30, 50, 100]
    margins = study.choose([0.01, 0.1], [0.005, 0.01, 0.02, 0.05, 0.1, 0.2])
    call = {"seed": study.seed, "segments": segments, "margins": margins}
    least = study.map(_least_segments, [call])[0]
    # Of the first 200 lengths, which are frequent; the figure prints no numbers.
    falls, few = "rate of ten lengths over that of the ten before, most", "segments of least memory"
    ours = {f", {what}": float((ten[1:20] / ten[:19]).max()) for what, ten in tens.items()}
    claims = either(falls, ours, partial(shape, at_most=1.2))
    claims += beside(
        _mean_prefill(study, PROMPT),
        shape(f"{few} at rates of {_TURNS}", least, at_least=5, at_most=15, paper=10),
    )
    rates = {"bins of Section 6.2": even.rates, _TURNS: drawn.rates}
    rates[_WHOLE] = np.repeat(whole * drawn.rates.sum() / whole.sum() / 10, 10)
    table = pd.DataFrame(
        {"of": name, "output": drawn.outputs, "rate": each} for name, each in rates.items()
    ).explode(["output", "rate"], ignore_index=True)
    table = table.astype({"output": int, "rate": float})
    return Outcome(table, claims, {"workload": WORKLOAD, "margins": margins})
