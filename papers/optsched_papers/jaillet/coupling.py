"""Jaillet Figure 4 and Lemma 5.4: Off-Couple beside the offline optimum that it follows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.problem.instance import Instance
from optsched.report.style import (
    BLUE,
    ORANGE,
    REFERENCE,
    TEXT_SIZE,
    legend_above,
    memory_limit,
    plot_bars,
)
from optsched.search.exact.search import solve_exact
from optsched_papers.claims import Claim, at_most, beside, refutable, shape
from optsched_papers.jaillet.off_couple import NEVER, Coupled, State, off_couple, optimal_schedules
from optsched_papers.target import Outcome, Panels, Study, grid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched_papers.jaillet.off_couple import Starts

# Figure 4: one request at a time. Step 0 is the paper's t + 1, so that its t + 8 is after step 7.

_P3, _P4 = 2, 3
_OURS = "Off-Couple"
_SAME_BY = 8


def _figure_state(first: int, second: int, third: int, fifth: int, own: bool, comes: int) -> State:
    """Return the example: whether the prompt takes a step of its own, and when P4 is there."""
    outputs = tuple(output + own for output in (first, second, third, 1, fifth))
    prompt = max(outputs)  # two prompts and their first tokens do not fit
    arrivals = (0, 0, 0, comes, comes + 4)
    return State(prompt, outputs, arrivals, prompt + max(outputs), 0, (NEVER,) * 5)


def _least(state: State, begin: int = 0) -> tuple[int, Starts]:
    """Return the least total latency of what starts nothing before a step, and its starts."""
    arrivals = np.maximum(state.arrivals, begin)
    order = np.argsort(arrivals, kind="stable")
    outputs = np.array(state.outputs)[order]
    found = solve_exact(
        Instance(np.full(5, state.prompt), outputs, state.memory, arrivals=arrivals[order])
    )
    if not found.proven_optimal:
        raise AssertionError(f"{state} was not solved to optimality")
    starts = tuple(found.schedule.starts[np.argsort(order)].tolist())
    return state.latency(starts), starts


def _at_once(state: State) -> int:
    """Return the least total latency of what starts P3 now."""
    end = state.outputs[_P3]
    arrivals = (0 if i == _P3 else max(end, a) for i, a in enumerate(state.arrivals))
    late = replace(state, arrivals=tuple(arrivals))
    return _least(late)[0] + sum(late.arrivals) - sum(state.arrivals)


def _wait(example: list[int]) -> dict[str, Any]:
    """Wait for P4 as in the figure, and let Off-Couple follow that schedule."""
    first, second, third, fifth, own, comes = example
    state = _figure_state(first, second, third, fifth, bool(own), comes)
    waiting, offline = _least(state, comes)
    coupled = off_couple(state, offline)
    return {
        "costs": waiting - _least(state)[0],
        "gains": _at_once(state) - waiting,
        "outputs": state.outputs,
        "offline": offline,
        "coupled": coupled.starts,
        "until": coupled.until if coupled.same else NEVER,
    }


def _figure_4(study: Study) -> Outcome:
    others = study.choose([(9, 4)], [(long, fifth) for long in (4, 6, 9, 12) for fifth in (4, 6)])
    examples = [
        [long, long + more, 3, fifth, own, comes]
        for own in (0, 1)
        for comes in (1, 2)
        for long, fifth in others
        for more in (0, 3)
    ]
    found = study.map(_wait, [{"example": example} for example in examples])
    long = study.map(_wait, [{"example": [9, 9, 8, 9, 0, 1]}])[0]
    shown = found[examples.index([9, 9, 3, 4, 0, 1])]
    rows = [
        [title, f"P{i + 1}", start, start + output]
        for title, key in ((_OURS, "coupled"), ("offline", "offline"))
        for i, (start, output) in enumerate(zip(shown[key], shown["outputs"], strict=True))
    ]
    begins = max(row["coupled"][_P3] for row in found)
    gap = max(abs(row["coupled"][_P4] - row["outputs"][_P3]) for row in found)
    met = max(row["until"] for row in found)
    above = "least latency with the wait, above the optimum (steps)"
    # Shapes of a drawing: a wait that gains nothing is optimal as a tie alone.
    claims = [
        shape("Off-Couple: steps until P3 starts, the most", begins, at_most=0),
        shape("Off-Couple: steps from P3's end to P4's start, the most", gap, at_most=0),
        shape("steps from t until both are in the same state, the most", met, at_most=_SAME_BY),
        _none(above, min(row["costs"] for row in found)),
    ]
    gains = "steps that the wait gains over starting P3 at once"
    ours = {f"{gains}, the most of all readings": max(row["gains"] for row in found)}
    ours[f"o_3 = 8: {gains}"] = long["gains"]
    claims += beside(shape(label, gain, at_least=1) for label, gain in ours.items())
    settings: dict[str, Any] = {"examples": len(examples)}
    settings |= {
        "readings": "a prompt takes a step of its own or not; P4 runs from t + 2 or t + 3 on"
    }
    settings |= {"plotted": "o = (9, 9, 3, 1, 4), a prompt takes no step, P4 from t + 2 on"}
    table = pd.DataFrame(rows, columns=["schedule", "request", "start", "end"])
    return Outcome(table, claims, settings)


def _none(label: str, ours: float) -> Claim:
    """Claim that there are none of what is counted in whole numbers, exactly."""
    return refutable(at_most(label, ours, 0))[0]


def _draw_figure_4(table: pd.DataFrame, axes: Panels) -> None:
    for ax, (title, rows) in zip(axes, table.groupby("schedule", sort=False), strict=True):
        for place, (_, row) in enumerate(rows.iterrows()):
            length = row["end"] - row["start"]
            named = row["request"] in ("P3", "P4")
            ax.barh(place, length, left=row["start"] + 1, color=ORANGE if named else BLUE)
        ax.set_title(str(title), fontsize=TEXT_SIZE + 1)
        ax.set_yticks(range(len(rows)), list(rows["request"]))
        ax.invert_yaxis()
        ax.axvline(_SAME_BY, **REFERENCE)
        ax.set(xlabel="step after t", xlim=(0, table["end"].max() + 2))


# Lemma 5.4: what holds at the step at which the two schedules are to meet

_TWO = State(1, (4, 2), (0, 1), 6, 0, (NEVER,) * 2)
_OVER = State(2, (1, 4, 1, 3), (0, 0, 0, 0), 8, 0, (NEVER,) * 4)
_MORE = State(1, (2, 4, 1, 6, 4, 1), (0, 0, 0, 2, 3, 3), 11, 3, (0, 0, 0, 2, NEVER, NEVER))
_CONDITIONS = {
    "above": "(i) memory exceeded",
    "missing": "(ii) requests missing",
    "more": "(iii) more held",
    "other": "another state",
}
_EVERY, _SOME = "under every optimum", "under some optimum"


def _judge(coupled: Coupled) -> dict[str, int]:
    """Return by how much each condition fails; 0 where it holds."""
    return {
        "above": max(0, coupled.state.excess(coupled.starts)),
        "missing": len(coupled.missing),
        "more": max(0, coupled.more_held),
        "other": int(not coupled.same),
    }


def _least_failure(state: State, condition: str) -> int:
    """Return by how much a condition fails under the optimum that is kindest to it."""
    optima = optimal_schedules(state)
    return min(_judge(off_couple(state, starts))[condition] for starts in optima)


def _visited(rng: np.random.Generator, single: bool) -> Iterator[State]:
    """Draw a tiny instance and return the states in which Algorithm 2 starts requests."""
    count, prompt = int(rng.integers(2, 5 if single else 7)), int(rng.integers(1, 4))
    outputs = tuple(rng.integers(1, 7, count).tolist())
    apart = rng.integers(0, 6, count) * (rng.random(count) < 0.4)
    arrivals = tuple(np.sort(apart - apart.min()).tolist())
    if single:
        prompt = max(outputs)
    most = prompt + max(outputs)
    memory = most if single else int(rng.integers(most, 3 * most + 1))
    open_state = State(prompt, outputs, arrivals, memory, 0, (NEVER,) * count)
    online = open_state.online
    for now in sorted(set(online)):
        starts = tuple(start if start < now else NEVER for start in online)
        yield State(prompt, outputs, arrivals, memory, now, starts)


def _states(seed: int, count: int, single: bool) -> dict[str, Any]:
    """Find states in which no optimum starts what Algorithm 2 starts, and judge Off-Couple."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    visited = 0
    while len(rows) < count:
        for state in _visited(rng, single):
            visited += 1
            begun = state.begun(state.algorithm_2())
            optima = optimal_schedules(state)
            if any(state.begun(starts) == begun for starts in optima):
                continue
            found = pd.DataFrame([_judge(off_couple(state, starts)) for starts in optima])
            row = {name: [bool(found[name].all()), bool(found[name].any())] for name in _CONDITIONS}
            all_hold = (found == 0).all(axis=1)
            subset = any(state.begun(starts) <= begun for starts in optima)
            rows.append(row | {"as stated": [bool(all_hold.any()), subset]})
    return {"visited": visited, "rows": rows}


def _small_prompts(memory: int) -> int:
    """Return how many steps late Off-Couple completes the second of two requests."""
    # The first fills the memory alone at its end. The second, half as long, comes a step later and
    # fits beside it if both start then.
    state = State(1, (memory - 1, memory // 2 - 1), (0, 1), memory, 0, (NEVER,) * 2)
    found = [off_couple(state, starts) for starts in optimal_schedules(state)]
    return min(max(0, each.starts[1] + state.outputs[1] - each.until) for each in found)


def _lemma_5_4(study: Study) -> Outcome:
    chunks, count = study.choose((2, 10), (10, 40))
    seeds = [1000 * study.seed + chunk for chunk in range(chunks)]
    found = study.map(_states, grid(seed=seeds, count=[count], single=[False]))
    alone = study.map(_states, grid(seed=seeds, count=[count], single=[True]))
    rows, single = ([row for each in of for row in each["rows"]] for of in (found, alone))
    shares = pd.DataFrame(
        {"condition": text, "fails": how, "share": _share(rows, key, at)}
        for key, text in _CONDITIONS.items()
        for at, how in enumerate((_EVERY, _SOME))
    )
    memory = study.choose(32, 128)
    late = f"s = 1, M = {memory}: steps after t-hat until it has caught up (ii)"
    claims = [
        _none("two requests: missing at t-hat (ii)", _least_failure(_TWO, "missing")),
        _none("two requests: another state at t-hat", _least_failure(_TWO, "other")),
        _none(late, _small_prompts(memory)),
        _none("four requests: tokens above M (i)", _least_failure(_OVER, "above")),
        _none(
            "six requests: tokens above the optimum's at t-hat (iii)", _least_failure(_MORE, "more")
        ),
    ]
    claims += beside(
        shape(label, _share(of, "as stated", at), at_least=1)
        for label, of, at in (
            ("random states: share with all conditions under some optimum", rows, 0),
            ("the same: share where some optimum starts no other requests", rows, 1),
            ("one request at a time: share with all conditions under some optimum", single, 0),
        )
    )
    settings: dict[str, Any] = {"states": sum(each["visited"] for each in found)}
    settings |= {"of them where no optimum starts what Algorithm 2 starts": len(rows)}
    settings |= {"states with one request at a time": sum(each["visited"] for each in alone)}
    settings |= {"of these where the two differ": len(single)}
    return Outcome(pd.concat([shares, _of_two()]), claims, settings)


def _share(rows: list[dict[str, list[bool]]], what: str, place: int) -> float:
    return float(np.mean([row[what][place] for row in rows]))


def _of_two() -> pd.DataFrame:
    """Return the tokens that two requests hold at each step."""
    optimum = optimal_schedules(_TWO)[0]
    both = {_OURS: off_couple(_TWO, optimum).starts, "optimum": optimum}
    last = max(max(starts) for starts in both.values()) + max(_TWO.outputs)
    return pd.DataFrame(
        {"schedule": title, "step": step, "tokens": _TWO.held(step, starts)}
        for title, starts in both.items()
        for step in range(1, last + 1)
    )


def _draw_lemma_5_4(table: pd.DataFrame, axes: Panels) -> None:
    shares = table[table["condition"].notna()]
    labels = {"xlabel": "", "ylabel": "share of states in which\nit fails"}
    plot_bars(shares, x="condition", y="share", by="fails", ax=axes[0], **labels)
    held = table[table["schedule"].notna()]
    for (title, rows), colour in zip(
        held.groupby("schedule", sort=False), (ORANGE, BLUE), strict=True
    ):
        axes[1].step(rows["step"], rows["tokens"], where="mid", color=colour, label=title)
    memory_limit(axes[1], _TWO.memory)
    until = off_couple(_TWO, optimal_schedules(_TWO)[0]).until
    axes[1].axvline(until, label="t-hat", **REFERENCE)
    axes[1].set(xlabel="step", ylabel="tokens held by two requests", ylim=(0, None))
    legend_above(axes[1])
