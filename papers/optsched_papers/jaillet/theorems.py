"""Jaillet Theorems 4.2, 5.3, 6.2 and 6.4: where MC-SF is optimal, and no algorithm competitive."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from optsched.bounds.bound import bound, machines_bound
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule
from optsched.report.style import LIMIT, TEXT_SIZE, plot_bars, plot_series
from optsched.search.delays import start_evenly
from optsched.search.exact.parts import solve_few
from optsched.simulate import run
from optsched.workloads import family
from optsched_papers.claims import at_least, at_most, beside, number, refutable, shape
from optsched_papers.jaillet.interruption import (
    Adversary,
    after_shorts,
    paused,
    restarting,
    short_first,
    weighing,
)
from optsched_papers.jaillet.section_7 import over_seeds
from optsched_papers.target import Outcome, Panels, Study, grid, panels

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray

# Theorem 4.2: equal prompts, all there at the start

_SAME, _OTHER = "as many fit at any age", "fewer fit when they are old"
_KNOWN = (  # prompt, outputs, memory
    (1, (1, 1, 3, 3), 5),  # the smallest: fewest requests, then least memory
    (4, (1, 1, 6, 6), 13),
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
    best = solve_few(instance, served)
    if best is None:
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
        "optimum": best.total_latency,
        "ratio": served.total_latency / best.total_latency,
    }


def _staggered(output: int, scale: int, rounds: int) -> dict[str, Any]:
    """Serve equal outputs, prompts of a token, by MC-SF, and one by one at an even pace."""
    memory, count = scale * output * (output + 3) // 2, rounds * scale * output
    instance = Instance(np.ones(count), np.full(count, output), memory)
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
    calls = grid(seed=[1000 * study.seed + chunk for chunk in range(chunks)], count=[count])
    small = [row for rows in study.map(_against_optimum, calls) for row in rows]
    known = [Instance([s] * len(o), o, memory) for s, o, memory in _KNOWN]
    named = [_solved(each, run(each, "mc-sf").schedule) for each in known]
    outputs = study.choose([2, 5, 10, 20], [2, 3, 5, 7, 10, 15, 20, 30, 40])
    even = study.map(_staggered, grid(rounds=(5, 50), output=outputs, scale=[10]))
    of = {
        group: [row["ratio"] for row in small if row["group"] == group] for group in (_SAME, _OTHER)
    }
    long = even[-1]
    pace = f"s = 1, o = {long['output']}, M = {long['memory']:,}: MC-SF over an even pace"
    ratios = {}
    for row in named:
        case = f"s = {row['prompt']}, o = {row['outputs']}, M = {row['memory']}"
        ratios[f"{case}: MC-SF over the optimum"] = row["ratio"]
    ratios |= {"small sets: worst MC-SF over the optimum": max(of[_OTHER]), pace: long["ratio"]}
    same = f"{_SAME}: worst MC-SF over the optimum"
    # Optima are proven, and a schedule at an even pace exists.
    claims = refutable(at_most(label, ours, 1) for label, ours in ratios.items())
    claims += beside(at_most(same, max(of[_SAME]), 1))
    settings: dict[str, Any] = {"small sets": len(small)}
    settings |= {"of them where as many fit at any age": len(of[_SAME])}
    settings |= {
        "share of the others that MC-SF serves optimally": float(np.mean(np.equal(of[_OTHER], 1)))
    }
    return Outcome(pd.DataFrame([*small, *named, *even]), claims, settings)


def _draw_theorem_4_2(table: pd.DataFrame, axes: Panels) -> None:
    labels: dict[str, Any]
    small = table[table["group"].notna()].astype({"requests": int})
    worst = small.groupby(["requests", "group"])["ratio"].max().reset_index()
    labels = {"xlabel": "requests", "ylabel": "worst total latency of MC-SF\nover the optimum"}
    plot_bars(worst, x="requests", y="ratio", by="group", ax=axes[0], **labels)
    axes[0].set_ylim(0.9, None)
    even = table[table["rounds"].notna()]
    labels = {
        "xlabel": "output of all requests (tokens)",
        "ylabel": "total latency of MC-SF\nover that of an even pace",
    }
    plot_series(even, x="output", y="ratio", by="rounds", legend=False, ax=axes[1], **labels)
    outputs = np.linspace(even["output"].min(), even["output"].max(), 100)
    limit = 2 * (outputs + 1) / (outputs + 3)
    axes[1].plot(outputs, limit, color=LIMIT, lw=1, label="limit, 2 (o + 1) / (o + 3)")
    axes[1].set_ylim(0.9, 2.1)
    axes[1].legend(frameon=False, fontsize=9, loc="lower right")


# Theorem 5.3: the regret of MC-SF over longer and longer horizons


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
_OUTPUT, _MEMORY = 10, 650  # of the last two, whose requests are equal
_BURST, _PER_STEP = (
    100,
    15,
)  # of papers/docs/theorems.md: requests that come together, and their mean
_SETTINGS = (
    _Setting("one at a time, load 0.8", 100, (1, 10), 110, 0.8 / 5.5, 500),
    _Setting("one at a time, load 1.2", 100, (1, 10), 110, 1.2 / 5.5, 500),
    _Setting("outputs 1 .. 10, load 0.95", 1, (1, 10), 200, 0.95 * 200 / 27.5, 250),
    _Setting("outputs 1 .. 10, load 1.2", 1, (1, 10), 200, 1.2 * 200 / 27.5, 250),
    _Setting("outputs 10, load 0.9", 1, (_OUTPUT, _OUTPUT), _MEMORY, 9, 250),
    _Setting("outputs 10, load 1.2", 1, (_OUTPUT, _OUTPUT), _MEMORY, 12, 250),
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


def _burst_pace(output: int = 9, memory: int = 1000) -> float:
    """Return the requests per step that MC-SF starts while a burst or more of them waits."""
    # Every wave is a burst, as the first. One comes with probability 0.15 in a step; 18 starts in
    # every step fit, so that hindsight keeps up. With positive probability a burst or more waits
    # from some step on for ever, and then the queue of MC-SF grows in proportion to time.
    count = 100 * _BURST
    return count / run(Instance([1] * count, [output] * count, memory), "mc-sf").makespan


def _overloaded_pace(rate: int, steps: int = 1000) -> float:
    """Return the requests per step that MC-SF starts where `rate` equal ones come in every step."""
    # Once more wait than a wave holds, waves repeat forever: those of the second half are counted.
    arrivals, count = np.repeat(np.arange(steps), rate), steps * rate
    requests = Instance([1] * count, [_OUTPUT] * count, _MEMORY, arrivals=arrivals)
    served = run(requests, "mc-sf")
    begun, counts = np.unique(served.schedule.starts, return_counts=True)
    waves = (begun >= steps // 2) & (begun < steps)
    apart, together = np.diff(begun[waves]), counts[waves]
    if len({*apart.tolist()}) != 1 or len({*together.tolist()}) != 1:
        raise AssertionError("MC-SF does not repeat itself")
    return float(together[0] / apart[0])


def _theorem_5_3(study: Study) -> Outcome:
    seeds, doublings = study.seeds(3, 10), study.choose(3, 6)
    cells = {
        (setting.title, steps): {"setting": at, "steps": steps}
        for at, setting in enumerate(_SETTINGS)
        for steps in (setting.steps * 2**times for times in range(doublings + 1))
    }
    rows = []
    for place, runs in study.by_seed(_regret, cells, seeds).items():
        least, most, latency = (
            over_seeds([run[name] for run in runs]) for name in ("least", "most", "mc_sf")
        )
        rows.append([*place, latency.mean, *least, *most])
    bands = [f"{end}{part}" for end in ("least", "most") for part in ("", "_low", "_high")]
    table = pd.DataFrame(rows, columns=["setting", "steps", "mean_latency", *bands])
    claims = []
    for setting in _SETTINGS:
        end = "most" if setting.constant else "least"
        curve = table[table["setting"] == setting.title][end].to_numpy()
        # Constant is a ratio of 1, growth with T one of 4; half of the way, on a scale of
        # factors, is 2.
        ratio = curve[-1] / curve[-3] if curve[-3] else math.nan
        label = f"{setting.title}: {end} regret at T over that at T / 4"
        claims.append(shape(label, ratio, at_most=2, paper=1))
    claims.sort(key=lambda claim: claim.holds)
    burst = f"outputs 9, bursts of {_BURST}, load 0.81: starts of MC-SF per step while one waits"
    every = "outputs 10, 12 in every step: starts of MC-SF per step, of 10 that fit"
    paces = {burst: (_burst_pace(), _PER_STEP), every: (_overloaded_pace(12), 10)}
    claims[:0] = refutable(
        shape(name, pace, at_least=least) for name, (pace, least) in paces.items()
    )
    longest = int(table["steps"].max())
    settings = {"family": "equal-prompts", "seeds": len(seeds), "longest": longest}
    return Outcome(table, claims, settings)


# Theorems 6.2 and 6.4: no online algorithm is competitive

_POLICIES = ("fcfs", "mc-sf", "sorted-f", "area")
_PRINTED, _WIDER = "arrivals from (1 - 2 epsilon) M, as printed", "arrivals from epsilon M on"
_ENDS = "the long request is never interrupted"
_ANEW = "it is started anew after the best number of short ones"
_DELAY = 2  # c of Theorem 6.4: an algorithm of ratio c starts the long request by step c M


def _competitive(inverse: int, memory: int) -> dict[str, Any]:
    """Serve by all policies and as if it were known what comes; 1 / epsilon is given."""
    instance = family("jaillet-theorem-6-2", n=memory // inverse + 1, memory=memory)
    offline = short_first(instance)
    if offline.check():
        raise AssertionError("the offline schedule does not fit")
    online = {name: run(instance, name).total_latency for name in _POLICIES}
    ratio = min(online.values()) / offline.total_latency
    adversary = Adversary(inverse, memory)
    return {
        "inverse": inverse,
        "memory": memory,
        "ratio": ratio,
        "anew": int(after_shorts(adversary, adversary.shorts)) / offline.total_latency,
        "paused": paused(adversary) / offline.total_latency,
        "beside": adversary.beside,
        **online,
    }


def _answered(inverse: int, memory: int) -> dict[str, Any]:
    """Find the threshold of restarts that does best against an adversary who knows it."""
    adversary = Adversary(inverse, memory)
    numbers = np.arange(1, adversary.shorts + 2)
    ratio, weighed = restarting(adversary, numbers).min(), weighing(adversary, numbers).max()
    return {"inverse": inverse, "memory": memory, "ratio": float(ratio), "weighed": float(weighed)}


def _theorem_6_2(study: Study) -> Outcome:
    inverses = (4, 8, 16, 32)
    scales = study.choose([1, 4, 16, 64], [1, 2, 4, 8, 16, 32, 64, 128, 256])
    # "When M is large enough": epsilon^3 M is to be well above 1.
    cells = [{"inverse": i, "memory": scale * i**3} for i in inverses for scale in scales]
    # Every policy starts the long request at once, so that all fall for the same arrivals.
    found = study.map(_competitive, cells)
    more = [{"inverse": i, "memory": 4**power * i**3} for i in inverses for power in range(5)]
    answered = study.map(_answered, more)
    last, best = ({row["inverse"]: row for row in rows} for rows in (found, answered))
    label = "epsilon = 1/{}: least ratio of all policies"
    claims = [at_least(label.format(i), last[i]["ratio"], i) for i in inverses]
    label = "epsilon = 1/{}: the same if it is started anew after any number of short ones"
    ours = [at_least(label.format(i), best[i]["ratio"], i) for i in inverses]
    least, name = inverses[-1], f"epsilon = 1/{inverses[-1]}"
    ours += [
        shape(f"{name}: started anew for those that come as printed",
              last[least]["anew"], at_least=least),
        shape(f"{name}: started anew while the steps lost are fewer than those that short ones "
              "would wait", best[least]["weighed"], at_least=least),
        number(f"{name}: interrupted with its tokens kept, one short one at a time, as the proof "
               "grants", least, last[least]["paused"], "level"),
        number(f"{name}: short ones that fit beside these tokens",
               1, last[least]["beside"], "exact"),
    ]  # fmt: skip
    parts = [pd.DataFrame(found).assign(long=_ENDS), pd.DataFrame(answered).assign(long=_ANEW)]
    table = pd.concat(parts, ignore_index=True)
    table["scale"] = table["memory"] // table["inverse"] ** 3
    table["epsilon"] = [f"epsilon = 1/{inverse}" for inverse in table["inverse"]]
    settings = {"policies": list(_POLICIES), "epsilon^3 M": scales}
    return Outcome(table, claims + beside(ours), settings)


def _draw_theorem_6_2(table: pd.DataFrame, axes: Panels) -> None:
    look: dict[str, Any] = {"x": "scale", "y": "ratio", "by": "epsilon", "legend": False}
    look |= {"ylabel": "least ratio to a schedule\nthat knows what comes"}
    look |= {"xscale": "log", "yscale": "log"}
    panels(table, axes, column="long", xlabel="memory M, in 1 / epsilon^3 tokens", **look)
    for ax, title in zip(axes, table["long"].unique(), strict=True):
        ax.set_title(title, fontsize=TEXT_SIZE + 1)
        ax.set_ylim(1, 2 * table["ratio"].max())
    axes[0].legend(frameon=False, fontsize=TEXT_SIZE, loc="lower right", handlelength=3)


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
    printed = family("jaillet-theorem-6-4", n=count + 1, memory=memory, delay=_DELAY)
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
    bound, rows = "the proof's bound", []
    for inverse, each in zip(inverses, found, strict=True):
        harmonic = (1 / np.arange(2, inverse)).sum()
        rows += [
            [inverse, bound, (1 - 1 / _DELAY) + harmonic / _DELAY],
            [inverse, _PRINTED, each[_PRINTED]["most"]],
            [inverse, _WIDER, each[_WIDER]["least"]],
        ]
    table = pd.DataFrame(rows, columns=["inverse", "arrivals", "ratio"])
    curves = table.pivot_table("ratio", "inverse", "arrivals")
    last, growth = curves.iloc[-1], curves.diff().iloc[-1] / curves.diff().iloc[-2]
    name, proven = f"c = {_DELAY}, epsilon = 1/{inverses[-1]}", float(last[bound])
    # Halving epsilon adds as much as before to a logarithm of 1 / epsilon, and half as much to what
    # converges like epsilon. 0.75 lies between.
    label = "{}: growth by the last halving over that by the one before"
    printed, wider = (
        shape(label.format(each), growth[each], at_least=0.75, paper=float(growth[bound]))
        for each in (_PRINTED, _WIDER)
    )
    label = f"{name}: ratio of the best start, as printed"
    probabilities = (_DELAY * inverses[-1] + 1) / (_DELAY * inverses[-1])
    # An algorithm of ratio c starts by step c M, and so costs at least this much.
    above = f"{name}: least ratio of all that start by c M and run on, {_WIDER}"
    claims = [wider, at_least(above, last[_WIDER], _DELAY)]
    claims += beside(  # what the proof takes for its arrivals
        at_least(label, last[_PRINTED], proven),
        printed,
        number(f"{name}: sum of the printed probabilities", 1, probabilities, "exact"),
    )
    settings = {"family": "jaillet-theorem-6-4", "c": _DELAY, "memory": "16 / epsilon^3"}
    return Outcome(table, claims, settings)
