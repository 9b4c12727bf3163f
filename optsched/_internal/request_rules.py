"""Rules about the requests of an instance, and which rows of a table break them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import MAX_TOKENS
from optsched._internal.arrays import MAX_STEP, MAX_WEIGHT
from optsched.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray


_LATE = (
    f"arrivals is {{value}}, beyond step {MAX_STEP}; subtract the first arrival from all of them, "
    "and divide milliseconds by 1,000"
)


@dataclass(frozen=True)
class BrokenRule:
    """A rule about the values of one column, and the rows that break it."""

    column: str
    mask: BoolArray
    values: npt.NDArray[Any]
    reason: str  # a format string of {value} and of the other columns' values at the row
    columns: dict[str, Any]
    memory: int

    def describe(self, index: int) -> str:
        """Say what is wrong in one row."""
        row = {name: column[index].item() for name, column in self.columns.items()}
        return self.reason.format(value=self.values[index].item(), memory=self.memory, **row)


def broken_rules(columns: dict[str, Any], memory: int) -> Iterator[BrokenRule]:
    """Find the rules that a set of per-request columns breaks."""
    for column, mask, reason in _rules(columns, memory):
        if mask.any():
            yield BrokenRule(column, mask, columns[column], reason, columns, memory)


def _rules(columns: dict[str, Any], memory: int) -> Iterator[tuple[str, BoolArray, str]]:
    """List columns, the rows that break a rule about them, and what to say of one."""
    prompts, outputs = columns["prompts"], columns["outputs"]
    yield ("prompts", prompts < 0, "prompts is {value}, but cannot be negative")
    yield ("outputs", outputs < 1, "outputs is {value}, but every request makes at least 1 token")
    # Subtracting instead of adding cannot overflow: both sides lie within 64-bit integers.
    too_large = (outputs >= 1) & (prompts >= 0) & (outputs > memory - prompts)
    raised = ""
    if too_large.any() and (largest := (prompts.astype(float) + outputs).max()) <= MAX_TOKENS:
        raised = f" or raise the memory to {largest:.0f}"
    yield (
        "prompts",
        too_large,
        "prompts {value} + outputs {outputs} is more than fits, but the memory holds {memory}; "
        f"leave the request out{raised}",
    )
    if (arrivals := columns.get("arrivals")) is not None:
        yield ("arrivals", arrivals < 0, "arrivals is {value}, before time zero")
        yield ("arrivals", arrivals > MAX_STEP, _LATE)
    if (weights := columns.get("weights")) is not None:
        yield (
            "weights",
            ~((weights >= 1 / MAX_WEIGHT) & (weights <= MAX_WEIGHT)),
            f"weights is {{value}}, but must be positive, from {1 / MAX_WEIGHT:g} to "
            f"{MAX_WEIGHT:g}; divide or multiply all of them by one number",
        )
    if (deadlines := columns.get("deadlines")) is not None:
        yield ("deadlines", deadlines < 1, "deadlines is {value}, but steps count from 1")
    lower, upper = columns.get("output_lower"), columns.get("output_upper")
    for name, bound in (("output_lower", lower), ("output_upper", upper)):
        if bound is not None:
            yield (name, bound < 1, f"{name} is {{value}}, but must be at least 1")
    if lower is not None and upper is not None:
        wrong = "output_upper is {value}, below its output_lower {output_lower}"
        yield ("output_upper", upper < lower, wrong)
    if (estimates := columns.get("output_estimates")) is not None:
        wrong = "output_estimates is {value}, but must be at least 1"
        yield ("output_estimates", estimates < 1, wrong)
    if (follows := columns.get("follows")) is not None:
        wrong = "follows is {value}, but must be the number of a request before it, or -1"
        yield ("follows", (follows < -1) | (follows >= np.arange(len(follows))), wrong)
    if (pauses := columns.get("pauses")) is not None:
        wrong = f"pauses is {{value}}, but must be a number of steps from 0 to {MAX_STEP}"
        yield ("pauses", (pauses < 0) | (pauses > MAX_STEP), wrong)
    # Last, because only among requests that break no other rule it is clear which one is too early.
    if arrivals is not None:
        descending = np.zeros(len(arrivals), dtype=bool)
        descending[1:] = arrivals[1:] < np.maximum.accumulate(arrivals)[:-1]
        yield (
            "arrivals",
            descending,
            "arrivals is {value}, earlier than a request before it; sort the requests by arrival",
        )


_TOKENS = r"(_?(num|tok(en)?s?|len(gth)?s?|count|size))*"
_NUMBER = r"((num|number|n|no|total|mean|avg|max|tok(en)?s?)_(of_)?)*"
#: What other tools call the columns of a trace.
_ALIASES = {
    "prompt_tokens": rf"{_NUMBER}(in|input|prompt|context|prefill|query)s?{_TOKENS}",
    "output_tokens": rf"{_NUMBER}(out|output|completion|gen|generated|generation|response|decode|"
    rf"decoded|answer|new)s?{_TOKENS}|max_tok(en)?s?",
    "arrival_s": r"((arrival|arrived|request|start|sent|submit|submitted|creation|created)_?)?"
    r"(time|timestamp|ts|at)(_?(s|sec|secs|seconds))?|(arrival|start)(_(s|sec|seconds))?",
}


def instead(name: str, known: Iterable[str]) -> str:
    """Say what an unknown column of a trace must be called, and what its values must be."""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])|[\s.-]+", "_", name.strip()).lower()
    if re.search("[;\t|]", name):
        return "separate columns by commas"
    column, power = plain, 1
    for suffix, unit in (("_ms", 10**3), ("_us", 10**6), ("_ns", 10**9)):
        if plain.endswith(suffix):
            column, power = plain.removesuffix(suffix), unit
    for native, pattern in _ALIASES.items():
        if native in known and (plain == native or re.fullmatch(pattern, column)):
            if power > 1:
                return f"name it {native} and divide its values by {power:,}"
            steps = ", or arrival if it counts steps" if native == "arrival_s" else ""
            return f"name it {native}{steps}"
    return f"{nearest(name, known)}; rename it, or leave it out"
