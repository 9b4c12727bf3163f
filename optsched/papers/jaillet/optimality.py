"""Equal prompts: whether MC-SF is optimal, and its regret constant (Theorems 4.2 and 5.3)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from optsched.instance import Instance
from optsched.papers.claims import shape
from optsched.papers.jaillet.section_7 import over_seeds
from optsched.papers.target import Outcome, Target
from optsched.report.series import plot_bars, plot_series
from optsched.report.style import LIMIT
from optsched.schedule import Schedule
from optsched.simulate import run
from optsched.solvers.bounds.bound import bound
from optsched.solvers.bounds.machines import machines_bound
from optsched.solvers.exact.search import solve_exact
from optsched.solvers.search.pacing import start_evenly
from optsched.workloads import family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from optsched.papers.claims import Claim
    from optsched.papers.study import Study

_SAME, _OTHER = "as many fit at any age", "fewer fit when they are old"
_KNOWN = (  # prompt, outputs, memory
    (4, (1, 1, 6, 6), 13),
    (0, (2, 2, 3, 3), 4),
)


def _against_optimum(seed: int, count: int) -> list[dict[str, Any]]:
    """Run MC-SF on small sets of equal prompts, and solve them to proven optimality."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        requests, prompt = int(rng.integers(3, 8)), int(rng.choice([0, 1, 2, 4, 12, 24]))
        outputs = np.sort(rng.integers(1, rng.integers(2, 8), requests))
        most = prompt + int(outputs[-1])
        memory = int(rng.integers(most, 3 * most + 1))
        instance = Instance(np.full(requests, prompt), outputs, memory)
        served = run(instance, "mc-sf").schedule
        if served.total_latency > outputs.sum():  # not all fit at once
            rows.append(_solved(instance, served))
    return rows


def _solved(instance: Instance, served: Schedule) -> dict[str, Any]:
    found = solve_exact(instance, upper=served)
    if not found.proven_optimal:
        raise AssertionError(f"{instance!r} was not solved to optimality")
    prompt, longest = int(instance.prompts[0]), int(instance.outputs.max())
    same = instance.memory // (prompt + 1) == instance.memory // (prompt + longest)
    return {
        "requests": len(instance),
        "prompt": prompt,
        "outputs": " ".join(map(str, instance.outputs.tolist())),
        "memory": instance.memory,
        "group": _SAME if same else _OTHER,
        "mc_sf": served.total_latency,
        "optimum": found.lower,
        "ratio": served.total_latency / found.lower,
    }


def _staggered(output: int, scale: int, rounds: int) -> dict[str, Any]:
    """Serve equal outputs without prompts by MC-SF, and one after the other at an even pace."""
    memory, count = scale * output * (output + 1) // 2, rounds * scale * output
    instance = Instance(np.zeros(count), np.full(count, output), memory)
    even = Schedule(instance, np.arange(count) // scale)
    if even.check():
        raise AssertionError("the staggered schedule does not fit")
    served = run(instance, "mc-sf").schedule
    return {
        "output": output,
        "requests": count,
        "memory": memory,
        "rounds": f"starts over {rounds} o steps",
        "mc_sf": served.total_latency,
        "staggered": even.total_latency,
        "ratio": served.total_latency / even.total_latency,
    }


def _theorem_4_2(study: Study) -> Outcome:
    chunks, count = study.choose((2, 50), (20, 200))
    cells = [{"seed": 1000 * study.seed + chunk, "count": count} for chunk in range(chunks)]
    small = [row for rows in study.map(_against_optimum, cells) for row in rows]
    known = [Instance([s] * len(o), o, memory) for s, o, memory in _KNOWN]
    named = [_solved(each, run(each, "mc-sf").schedule) for each in known]
    cells = [
        {"output": output, "scale": 10, "rounds": rounds}
        for rounds in (5, 50)
        for output in study.choose([2, 5, 10, 20], [2, 3, 5, 7, 10, 15, 20, 30, 40])
    ]
    even = study.map(_staggered, cells)
    of = {
        group: [row["ratio"] for row in small if row["group"] == group] for group in (_SAME, _OTHER)
    }
    long = even[-1]
    claims = [
        shape("small sets: worst MC-SF over optimum", max(of[_OTHER]), at_most=1, paper=1),
        *(
            shape(
                f"s = {row['prompt']}, o = {row['outputs']}, M = {row['memory']}: the same",
                row["ratio"],
                at_most=1,
                paper=1,
            )
            for row in named
        ),
        shape(
            f"s = 0, o = {long['output']}, M = {long['memory']:,}: MC-SF over an even pace",
            long["ratio"],
            at_most=1,
            paper=1,
        ),
        shape(f"{_SAME}: worst MC-SF over optimum", max(of[_SAME]), at_most=1, paper=1),
    ]
    settings = {
        "small sets": len(small),
        "of them where as many fit at any age": len(of[_SAME]),
        "share of the others that MC-SF serves optimally": float(np.mean(np.equal(of[_OTHER], 1))),
    }
    return Outcome(pd.DataFrame([*small, *named, *even]), claims, settings)


def _draw_theorem_4_2(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    small = table[table["group"].notna()].astype({"requests": int})
    worst = small.groupby(["requests", "group"])["ratio"].max().reset_index()
    plot_bars(
        worst, x="requests", y="ratio", by="group", xlabel="requests", ax=axes[0],
        ylabel="worst total latency of MC-SF\nover the optimum",
    )  # fmt: skip
    axes[0].set_ylim(0.9, None)
    even = table[table["rounds"].notna()]
    plot_series(
        even, x="output", y="ratio", by="rounds", xlabel="output of all requests (tokens)",
        ylabel="total latency of MC-SF\nover that of an even pace", legend=False, ax=axes[1],
    )  # fmt: skip
    outputs = np.linspace(even["output"].min(), even["output"].max(), 100)
    axes[1].plot(
        outputs, 2 * outputs / (outputs + 1), color=LIMIT, lw=1, label="limit, 2 o / (o + 1)"
    )
    axes[1].set_ylim(0.9, 2.1)
    axes[1].legend(frameon=False, fontsize=9, loc="lower right")


class _Setting(NamedTuple):
    """Equal prompts with a bounded number of arrivals per step (Sections 3 and 5)."""

    title: str
    prompt: int
    outputs: tuple[int, int]
    memory: int
    rate: float  # requests per step
    steps: int  # of the shortest horizon

    @property
    def constant(self) -> bool:
        """Whether the regret is known to be constant: as many requests fit at any age."""
        prompt, most = self.prompt, self.outputs[1]
        return self.memory // (prompt + 1) == self.memory // (prompt + most)


# Outputs 1 .. 10 take 5.5 steps in the mean, and with s = 1 a memory-time of 27.5 tokens; one of 10
# takes 65. Capacity is one request at a time, or the memory over this.
_SETTINGS = (
    _Setting("one at a time, load 0.8", 100, (1, 10), 110, 0.8 / 5.5, 500),
    _Setting("one at a time, load 1.2", 100, (1, 10), 110, 1.2 / 5.5, 500),
    _Setting("outputs 1 .. 10, load 0.95", 1, (1, 10), 200, 0.95 * 200 / 27.5, 250),
    _Setting("outputs 1 .. 10, load 1.2", 1, (1, 10), 200, 1.2 * 200 / 27.5, 250),
    _Setting("outputs 10, load 0.9", 1, (10, 10), 650, 9, 250),
    _Setting("outputs 10, load 1.2", 1, (10, 10), 650, 12, 250),
)


def _regret(setting: int, steps: int, seed: int) -> dict[str, float]:
    """Mean latency of MC-SF above a schedule that exists, and above a bound that is proven."""
    _, prompt, (least, most), memory, rate, _ = _SETTINGS[setting]
    count = round(rate * steps)
    instance = family(
        "equal-prompts", n=count, seed=seed, memory=memory, rate=rate,
        prompt=prompt, output_least=least, output_most=most,
    )  # fmt: skip
    ours = run(instance, "mc-sf").total_latency
    even = start_evenly(instance)
    if even.check():
        raise AssertionError("the schedule at an even pace does not fit")
    below = max(bound(instance).value, machines_bound(instance))
    return {
        "mc_sf": ours / count,
        "least": (ours - min(ours, even.total_latency)) / count,
        "most": (ours - below) / count,
    }


def _theorem_5_3(study: Study) -> Outcome:
    seeds, doublings = study.seeds(3, 10), study.choose(3, 6)
    cells = {
        (setting.title, setting.steps * 2**times): {
            "setting": at,
            "steps": setting.steps * 2**times,
        }
        for at, setting in enumerate(_SETTINGS)
        for times in range(doublings + 1)
    }
    rows = []
    for place, runs in study.by_seed(_regret, cells, seeds).items():
        least, most, latency = (
            over_seeds([run[name] for run in runs]) for name in ("least", "most", "mc_sf")
        )
        rows.append([*place, latency.mean, *least, *most])
    bands = [f"{end}{part}" for end in ("least", "most") for part in ("", "_low", "_high")]
    table = pd.DataFrame(rows, columns=["setting", "steps", "mean_latency", *bands])
    claims: list[Claim] = []
    for setting in _SETTINGS:
        end = "most" if setting.constant else "least"
        curve = table[table["setting"] == setting.title][end].to_numpy()
        # Constant is a ratio of 1, growth with T one of 4; half of the way, on a scale of
        # factors, is 2.
        ratio = curve[-1] / curve[-3] if curve[-3] else math.nan
        label = f"{setting.title}: {end} regret at T over that at T / 4"
        claims.append(shape(label, ratio, at_most=2, paper=1))
    claims.sort(key=lambda claim: claim.holds)
    settings = {
        "family": "equal-prompts",
        "seeds": len(seeds),
        "longest": int(table["steps"].max()),
    }
    return Outcome(table, claims, settings)


def _draw_theorem_5_3(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    for ax, end, of in (
        (axes[0], "least", "a schedule that exists"),
        (axes[1], "most", "a proven bound"),
    ):
        plot_series(
            table, x="steps", y=end, by="setting", low=f"{end}_low", high=f"{end}_high",
            xlabel="steps with arrivals, T", ylabel=f"mean latency of MC-SF above\n{of} (steps)",
            xscale="log", yscale="symlog", legend=False, ax=ax,
        )  # fmt: skip
        ax.set_ylim(0, None)
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=3,
        frameon=False,
        fontsize=9,
        handlelength=3,
    )


TARGETS = (
    Target(
        "jaillet-theorem-4-2",
        "shortest output first for equal prompts, all there at the start: is it optimal?",
        "Jaillet et al., Theorem 4.2",
        _theorem_4_2,
        _draw_theorem_4_2,
        (1, 2),
        "The theorem is false on finite integers, and as s / M tends to 0 as well: requests that "
        "start together peak together. The proof exchanges requests of different age, which hold "
        "different memory. It is true where as many requests fit at any age.",
    ),
    Target(
        "jaillet-theorem-5-3",
        "regret of MC-SF over longer and longer horizons: is it constant?",
        "Jaillet et al., Theorem 5.3",
        _theorem_5_3,
        _draw_theorem_5_3,
        (1, 2),
        "The least regret is proven by a schedule that exists, the most by a bound. It is constant "
        "where as many requests fit at any age. Elsewhere MC-SF starts its backlog in waves that "
        "peak together and serves fewer requests per step than hindsight does: it is overloaded "
        "where the worker is not, and its regret grows with T. The proof's Lemma 5.4 takes for "
        "granted that a schedule that fills the memory completes everything earlier.",
    ),
)
