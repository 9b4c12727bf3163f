"""Arrays of numbers about requests: types, limits, rules, and whether there is memory for them."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from optsched._internal.arguments import LARGEST, as_count, as_number
from optsched._internal.arguments import MAX_TOKENS as MAX_TOKENS
from optsched.errors import InstanceError, OptschedError, nearest_column, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]  # of numbers of any type
Records = np.recarray[Any, Any]
Scalar = TypeVar("Scalar", bound=np.generic)

MAX_STEP = 10**12
_LONGEST_STEP = 10**9
MAX_WEIGHT = 1e100  # of a request, a penalty or a price, so that costs are finite
MAX_SUM = 2**62  # with room for what is added to a sum


def checked_memory(memory: object) -> int:
    """Turn a memory size into an integer, refusing what cannot be one."""
    return as_count("memory", memory, of=" of tokens")


def checked_step(seconds: object) -> float:
    """Turn the length of a step into a float, refusing what cannot be one."""
    wish = f"positive, and at most {_LONGEST_STEP:,} seconds"
    return as_number("seconds_per_step", seconds, lambda each: 0 < each <= _LONGEST_STEP, wish)


def as_integers(name: str, values: object) -> IntArray:
    """Turn numbers into a frozen 64-bit array, refusing anything but whole numbers."""
    array = _listed(name, values)
    if array.dtype.kind == "i" or (array.dtype.kind == "u" and (array <= MAX_SUM).all()):
        return frozen(array.astype(np.int64))
    floats = as_floats(name, values)
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(floats) & (floats == np.floor(floats)) & (np.abs(floats) < 2**53)
    if not whole.all():
        index = int(np.argmin(whole))
        raise InstanceError(
            f"request {index}: {name} is {floats[index]:g}, but must be a whole number",
            column=name,
            request=index,
            value=float(floats[index]),
        )
    return frozen(floats.astype(np.int64))


def as_floats(name: str, values: object) -> FloatArray:
    """Turn numbers into a 64-bit array, refusing anything but numbers."""
    array = _listed(name, values)
    if array.dtype.kind == "b":
        raise InstanceError(f"{name} holds true and false, but must hold numbers", column=name)
    if array.dtype.kind in "iuf":
        return array.astype(np.float64)
    floats = np.empty(len(array))
    first = "arrivals" if name == "deadlines" else name
    for index, value in enumerate(np.asarray(values, dtype=object)):
        if array.dtype.kind in "mM" or isinstance(value, date | timedelta):
            since = name if array.dtype.kind == "m" else f"({name} - {first}.min())"
            raise InstanceError(
                f"{name} holds dates or durations, but must hold numbers; steps of 50 ms are "
                f"np.ceil({since} / np.timedelta64(50, 'ms')), with seconds_per_step=0.05",
                column=name,
            )
        real = isinstance(value, Real | Decimal)
        if not real or abs(value) > LARGEST:
            said = f"{name} is {shown(value)}, but must be a number"
            raise InstanceError(
                f"request {index}: {said}", column=name, request=index, value=value, reason=said
            )
        floats[index] = float(value)
    return floats


def _listed(name: str, values: object) -> Array:
    """Return values as an array of one dimension."""
    try:
        array = np.asarray(values)
    except ValueError:  # some of them are lists
        array = np.empty((0, 0))
    if array.ndim != 1:
        raise InstanceError(f"{name} must be a list of numbers, one per request", column=name)
    return array


def frozen(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """Copy an array, read-only."""
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


def read_only(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """Return a read-only view: kernels are compiled once more for arrays that can be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def prefix_sums(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """Return the sums of the first 0, 1, 2, ... values along the last axis."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1), dtype=values.dtype)
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def ranks_in(order: IntArray) -> IntArray:
    """Return the place of each request in an order of all."""
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return ranks


def records(count: int, fields: tuple[str, ...], **values: npt.ArrayLike) -> Records:
    """Make records of whole numbers, zero where no values are passed."""
    made = np.zeros(count, np.dtype([(name, np.int64) for name in fields])).view(np.recarray)
    for name, column in values.items():
        made[name] = column
    return made


#: Of the memory that is available, what one thing may take.
SHARE = 0.5

#: Bytes that a nonzero of a linear model takes in a solver, a file or a model of Pyomo.
NONZERO = 200

_SMALL = 2**26  # bytes, below which nobody looks at what there is
_GROUPS = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of a group: version 2, and 1


def available_memory() -> int:
    """Return the bytes that this process may still take: of the machine, its group, its limit."""
    page = os.sysconf("SC_PAGE_SIZE")
    found, held = [os.sysconf("SC_PHYS_PAGES") * page], [0, 0]
    with contextlib.suppress(OSError):
        held = [int(word) * page for word in Path("/proc/self/statm").read_text().split()[:2]]
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(1024 * int(lines["MemAvailable"].split()[0]))
    for name in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            found.append(int((_GROUPS / name).read_text()) - held[1])
    with contextlib.suppress(ImportError):
        import resource

        if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
            found.append(limit - held[0])
    return max(min(found), 0)


def require_nonzeros(count: int, what: str, error: type[OptschedError]) -> None:
    """Refuse a linear model whose nonzeros do not fit into memory."""
    advice = "shorten the horizon or take fewer requests"
    require_room(count, NONZERO, f"nonzeros {what}", advice, error)


def room_for(each: float) -> int:
    """Return how many things of this size fit into memory."""
    return int(SHARE * available_memory() / each)


def has_room(count: float, each: float) -> bool:
    """Return whether this many things of this size fit into memory."""
    return count * each <= _SMALL or count <= room_for(each)


def require_room(
    count: float, each: float, what: str, advice: str, error: type[OptschedError] = OptschedError
) -> None:
    """Refuse more things of one size than fit into memory, and say how many would fit."""
    if not has_room(count, each):
        raise error(
            f"{count:,.0f} {what} would take {count * each / 2**30:,.3g} GiB of memory, but "
            f"{SHARE:.0%} of what is available has room for {room_for(each):,}; {advice}"
        )


_LATE = (
    f"arrivals is {{value}}, beyond step {MAX_STEP}; subtract the first arrival from all of them, "
    "and divide milliseconds by 1,000"
)


@dataclass(frozen=True)
class BrokenRule:
    """A rule about the values of one column, and the rows that break it."""

    column: str
    mask: BoolArray
    values: Array
    reason: str  # a format string of {value} and of the other columns' values at the row
    columns: dict[str, Array]
    memory: int

    def describe(self, index: int) -> str:
        """Say what is wrong in one row."""
        row = {name: column[index].item() for name, column in self.columns.items()}
        return self.reason.format(value=self.values[index].item(), memory=self.memory, **row)


def broken_rules(columns: dict[str, Array], memory: int) -> Iterator[BrokenRule]:
    """Find the rules that a set of per-request columns breaks."""
    for column, mask, reason in _rules(columns, memory):
        if mask.any():
            yield BrokenRule(column, mask, columns[column], reason, columns, memory)


def _rules(columns: dict[str, Array], memory: int) -> Iterator[tuple[str, BoolArray, str]]:
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
_NUMBER = r"((num|number|n|no|total|max|tok(en)?s?)_(of_)?)*"  # a mean is of many requests
#: What other tools call the columns of a trace.
_ALIASES = {
    "prompt_tokens": rf"{_NUMBER}(in|input|prompt|context|prefill|query)s?{_TOKENS}",
    "output_tokens": rf"{_NUMBER}(out|output|completion|gen|generated|generation|response|decode|"
    rf"decoded|answer|new)s?{_TOKENS}|max_tok(en)?s?",
    "arrival_s": r"((arrival|arrived|request|start|sent|submit|submitted|creation|created)_?)?"
    r"(time|timestamp|ts|at)(_?(s|sec|secs|seconds))?|(arrivals?|start)(_(s|sec|seconds))?",
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
        timed = native == "arrival_s"
        if native in known and re.fullmatch(pattern, column if timed else plain):
            if power > 1 and timed:
                return f"name it {native} and divide its values by {power:,}"
            steps = ", or arrival if it counts steps" if timed else ""
            return f"name it {native}{steps}"
    return f"{nearest_column(name, known)}; rename it, or leave it out"
