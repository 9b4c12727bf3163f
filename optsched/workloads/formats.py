"""Formats of traces: what their columns are called and mean, and how their cells are read."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from optsched._internal.arguments import MAX_TOKENS
from optsched._internal.arrays import instead
from optsched.errors import InstanceError, nearest, require, require_known
from optsched.workloads.containers import MAX_DEPTH, flat

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.workloads.containers import Table

Values = npt.NDArray[Any]

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_INPUTS = ("user_message", "tool_result")  # events of TraceLab that a round answers


@dataclass(frozen=True)
class CellKind:
    """A kind of cell: how a column of them is read, and what to call one."""

    read: Callable[[Sequence[str]], Values]  # raises ValueError if any cell is not of the kind
    name: str  # with its article
    filler: object  # stands in for a cell that cannot be read
    text: bool = False  # whether strings of JSON come without their quotes


def _numbers(cells: Sequence[str]) -> FloatArray:
    _plain(cells)
    values = np.fromiter(map(float, cells), np.float64, len(cells))
    if not np.isfinite(values).all():
        raise ValueError("missing or infinite")
    return values


def _whole_numbers(cells: Sequence[str]) -> IntArray:
    _plain(cells)
    with contextlib.suppress(ValueError, OverflowError):
        return np.fromiter(map(int, cells), np.int64, len(cells))
    values = _numbers(cells)  # such as 3.0
    if (values != np.floor(values)).any() or (np.abs(values) >= 2**53).any():
        raise ValueError("fractional or too large")
    return values.astype(np.int64)


def _plain(cells: Sequence[str]) -> None:
    """Refuse what only Python takes for digits: 1_000, and those of other scripts."""
    text = "".join(cells)
    if "_" in text or not text.isascii():
        raise ValueError("no plain number")


def _stamps(cells: Sequence[str]) -> IntArray:
    """Return nanoseconds since 1970."""
    found = [datetime.fromisoformat(cell.strip('"')) for cell in cells]
    zoned = [each if each.tzinfo else each.replace(tzinfo=UTC) for each in found]
    return np.array([(each - _EPOCH) // _MICROSECOND * 1000 for each in zoned], dtype=np.int64)


def _texts(cells: Sequence[str]) -> npt.NDArray[np.object_]:
    text = "".join(cells)
    if "\n" in text:  # a quote without its partner swallows the lines up to the next one
        raise ValueError("line break")
    text.encode()  # fails where a byte is no UTF-8
    return np.array(cells, dtype=object)


def _lists(cells: Sequence[str]) -> npt.NDArray[np.object_]:
    values = np.empty(len(cells), dtype=object)
    for at, cell in enumerate(cells):
        ids = json.loads(cell or "[]")
        whole = isinstance(ids, list) and {int}.issuperset(map(type, ids))
        if not whole or any(not -(2**63) <= each < 2**64 for each in ids):
            raise ValueError("no list of whole numbers")
        # Hashes without a sign keep their 64 bits.
        values[at] = np.array([each - (each >> 63 << 64) * (each > 0) for each in ids], np.int64)
    return values


def _sizes(cells: Sequence[str]) -> IntArray:
    """Return tokens of blocks, 0 where there are none."""
    values = _whole_numbers([cell or "0" for cell in cells])
    if ((values < 0) | (values > MAX_TOKENS)).any():
        raise ValueError("no size")
    return values


def _submitted(cells: Sequence[str]) -> IntArray:
    """Return when a round of TraceLab was sent: at its last input, or before its first output."""
    found = []
    for cell in cells:
        sides: tuple[list[str], list[str]] = [], []
        for event in json.loads(cell):
            sides[event["event_type"] in _INPUTS].append(event["timestamp"])
        outputs, inputs = (_stamps(side) for side in sides)
        found.append(int(inputs.max() if len(inputs) else outputs.min()))
    return np.array(found, dtype=np.int64)


def _exact(cells: Sequence[str]) -> Values:
    """Return numbers, whole ones as integers: doubles round nanoseconds since 1970."""
    try:
        return _whole_numbers(cells)
    except ValueError:
        return _numbers(cells)


def _perhaps(read: Callable[[str], float]) -> Callable[[Sequence[str]], FloatArray]:
    """Read cells that may be empty: a request that failed has no last token."""
    return lambda cells: np.array([read(cell) if cell else math.nan for cell in cells], dtype=float)


WHOLE = CellKind(_whole_numbers, "a whole number", 0)
EXACT = CellKind(_exact, "a finite number", 0)
_PART = CellKind(_whole_numbers, "a whole number of {}, or pass --time-unit", 0)
STAMP = CellKind(_stamps, "a date and time such as 2023-11-16 18:15:46.68", 0)
TEXT = CellKind(_texts, "UTF-8 text on one line", "", text=True)
LIST = CellKind(_lists, "a list of whole numbers", None)
SIZE = CellKind(_sizes, f"a whole number of tokens up to {MAX_TOKENS}", 0)
EVENTS = CellKind(_submitted, "a list of events with dates and times", 0)
_INSTANT = CellKind(_perhaps(float), "a number, or empty", 0.0)
_DATED = CellKind(_perhaps(lambda cell: _stamps([cell])[0]), "a date and time, or empty", 0.0)
_GAPS = CellKind(_perhaps(lambda cell: sum(json.loads(cell))), "a list of numbers", 0.0)


def read_cells(cells: Sequence[str], kind: CellKind) -> tuple[Values, BoolArray]:
    """Read a column."""
    try:
        return kind.read(cells), np.zeros(len(cells), dtype=bool)
    except (ValueError, TypeError, KeyError, OverflowError):
        if len(cells) == 1:
            return np.array([kind.filler]), np.array([True])
    # Halving finds the few bad cells of a long column without a look at every cell.
    middle = len(cells) // 2
    halves = [read_cells(half, kind) for half in (cells[:middle], cells[middle:])]
    values, unreadable = zip(*halves, strict=True)
    return np.concatenate(values), np.concatenate(unreadable)


def is_readable(cell: str, kind: CellKind) -> bool:
    """Say whether a cell is of a kind."""
    return not read_cells([cell], kind)[1].any()


#: Units of time in a second, and how instants in them are read.
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "date": 10**9, "events": 10**9}
_CLOCKS = {"date": STAMP, "events": EVENTS, "s": EXACT, "": EXACT}
#: What users call the roles of columns.
ROLES = {
    **{"prompt": "prompts", "output": "outputs", "arrival": "clock", "client": "client"},
    **{"priority": "priorities", "prefix": "hash_ids", "block": "hash_block", "turn": "turn"},
    **{"conversation": "conversation", "label": "labels", "weight": "weights", "ttft": "ttft"},
    **{"deadline": "deadlines", "first_token": "first_token", "last_token": "last_token"},
    "latency": "latency",
}
#: Roles of what was measured: instants on the clock; durations; and the gaps between tokens.
MEASURED = ("first_token", "last_token", "ttft", "latency", "gaps")
NEEDED = {"prompts", "outputs"}
_TIMES = ("clock", "arrivals")
#: Roles of who asks: class, conversation, the request before it, turn, and client.
PEOPLE = ("tenant", "conversation", "before", "turn", "client")
_KINDS = {
    **{"weights": EXACT, "labels": TEXT, "hash_ids": LIST, "hash_block": SIZE, "gaps": _GAPS},
    **dict.fromkeys(PEOPLE, TEXT),
    **dict.fromkeys(("ttft", "latency"), _INSTANT),
}


@dataclass(frozen=True)
class TraceFormat:
    """What the columns of a trace mean.

    In JSON a column is a path of keys, such as ``request.output_tokens``; several alternatives have
    ``|`` between them.
    """

    name: str
    columns: dict[str, str]  # by role: a field of `Instance`, or what one is made from
    unit: str = "s"  # of the clock; "" where the cells must tell
    spans: str = "s"  # unit of durations that were measured, where their columns do not tell
    block_tokens: int | None = None  # of a block with an id, where no column has them
    marks: Sequence[str] = ()  # columns that tell this format, else prompts and outputs
    only: Sequence[str] = ("", "")  # a key and its value, without which an object is no request
    exact: bool = False  # whether the unit is certain, so that there may be parts of it
    steps: Sequence[str] = ()  # keys of an object that lead to the requests

    def kind(self, role: str) -> CellKind:
        """Say how the cells of a column are read."""
        if role in ("first_token", "last_token"):
            return _DATED if self.unit == "date" else _INSTANT
        if role != "clock":
            return _KINDS.get(role, WHOLE)
        part = EXACT if self.exact else replace(_PART, name=_PART.name.format(self.unit))
        return _CLOCKS.get(self.unit, part)


_FILE = Path(__file__).parents[1] / "data" / "formats.json"
FORMATS = tuple(TraceFormat(**each) for each in json.loads(_FILE.read_text(encoding="utf-8")))
NATIVE = FORMATS[0]


def recognised(
    table: Table, given: dict[str, str], time_unit: str | None, measured: bool, where: str
) -> TraceFormat:
    """Tell the format of a table; `given` are columns that the user names, by role."""
    content = table.first or dict.fromkeys(table.header)
    keys = table.header or list(flat(content))
    block = given.pop("hash_block") if given.get("hash_block", "").isdecimal() else None
    if (form := _found(content, given)) is None:
        raise _unknown(keys, given, bool(table.header), where)
    hidden = () if measured else MEASURED
    columns = {role: each for role, each in (form.columns | given).items() if role not in hidden}
    if "clock" in given:
        columns.pop("arrivals", None)
        form = replace(form, unit=unit_in(given["clock"]), exact=True)
    present = {role: there for role, column in columns.items() if (there := first_in(column, keys))}
    if table.header and not present.keys() >= NEEDED:
        raise _unknown(keys, given, True, where)
    times = [present[role] for role in _TIMES if role in present]
    if len(times) > 1:
        said = "arrival (steps) and arrival_s (seconds) are both there; keep one of them"
        raise InstanceError(f"{where}: {said}", column="arrival")
    if not form.steps:
        _check_unread(form, keys, present, form is NATIVE and not given, where)
    columns = present if table.header else columns
    if time_unit is not None:
        if not times:
            said = f"--time-unit {time_unit} is that of arrivals, but there are none; leave it out"
            raise InstanceError(f"{where}: {said}, or pass --columns arrival=COLUMN")
        columns = {role: column for role, column in columns.items() if role not in _TIMES}
        columns["arrivals" if time_unit == "steps" else "clock"] = times[0]
        form = replace(form, unit=time_unit, exact=True)
    if given.keys() & {"ttft", "latency"}:
        form = replace(form, spans=time_unit or "")
    return replace(form, columns=columns, block_tokens=int(block) if block else form.block_tokens)


def first_in(column: str, keys: Collection[str]) -> str:
    """Return the first alternative of a column that is there, or nothing."""
    return next((name for name in column.split("|") if name in keys), "")


def _found(
    content: Any, given: Mapping[str, str], outer: frozenset[str] = frozenset(), *steps: str
) -> TraceFormat | None:
    """Find the format of an object, or of objects or lists inside of it, which share its keys."""
    if isinstance(content, list):
        content = next((each for each in content if isinstance(each, dict)), None)
    if not isinstance(content, dict) or len(steps) > MAX_DEPTH:
        return None
    if form := _fitting(outer | flat(content).keys(), given):
        return replace(form, steps=steps) if steps else form
    outer |= {key for key, value in content.items() if not isinstance(value, list | dict)}
    inner = (_found(value, given, outer, *steps, key) for key, value in content.items())
    return next(filter(None, inner), None)


def _fitting(keys: frozenset[str], given: Mapping[str, str]) -> TraceFormat | None:
    """Return the format that most keys speak for, among those whose marks are all there."""
    if not keys.issuperset(given.values()):
        return None
    if {"prompts", "outputs"} <= given.keys():
        return NATIVE
    marks = [[form.columns[role] for role in NEEDED - given.keys()] for form in FORMATS]
    fits = [
        (sum(bool(first_in(column, keys)) for column in form.columns.values()), form)
        for form, needed in zip(FORMATS, marks, strict=True)
        if all(first_in(mark, keys) for mark in form.marks or needed)
    ]
    return max(fits, key=lambda fit: fit[0], default=(0, None))[1]


def _check_unread(
    form: TraceFormat, keys: list[str], present: Mapping[str, str], plain: bool, where: str
) -> None:
    """Refuse a column that is there twice, and one that is not read but seems to be meant.

    In a trace that is `plain` any of our columns may be meant, else only the arrivals.
    """
    own, used = NATIVE.columns, set(present.values())
    if twice := next((name for name in used if keys.count(name) > 1), None):
        times = f"is there {keys.count(twice)} times"
        raise InstanceError(f"{where}: column {twice!r} {times}", column=twice)
    timed = not present.keys().isdisjoint(_TIMES)
    free = {own[role] for role in (own if plain else ["clock"]) if not (timed and role in _TIMES)}
    for name in [name for name in keys if name and name not in used]:
        hint = instead(name, free - set(keys))
        close = plain and get_close_matches(name.lower(), own.values(), 1, 0.6)
        if close or hint.startswith("name it"):
            raise InstanceError(f"{where}: unknown column {name!r}; {hint}", column=name)


def _unknown(keys: list[str], given: Mapping[str, str], is_csv: bool, where: str) -> InstanceError:
    """Say why no format fits."""
    hint = "--columns prompt=COLUMN,output=COLUMN,arrival=COLUMN says what columns mean"
    column = next((column for column in given.values() if column not in keys), None)
    form = max(FORMATS, key=lambda form: len(set(form.columns.values()) & set(keys)))
    if all(form.columns[role] in keys for role in NEEDED):  # only its marks are missing
        form = NATIVE
    names = {*form.columns.values(), *given.values()}
    if names.isdisjoint(keys):  # the format itself is unclear
        names = {form.columns[role] for form in FORMATS for role in NEEDED}
        names = {name for name in names if "." not in name}
    if column is not None:
        said = f"there is no column {column!r}; {nearest(column, keys)}"
    elif not is_csv:
        known = ", ".join(dict.fromkeys(form.name for form in FORMATS))
        said = f"the keys {', '.join(keys[:5])} are of no format that is known ({known}); {hint}"
    elif column := next((name for name in keys if name and name not in names), None):
        said = f"unknown column {column!r}; {instead(column, names - set(keys))}; {hint}"
    else:
        column = next(column for column in form.columns.values() if column not in keys)
        said = f"column {column!r} of the {form.name} format is missing; {hint}"
    return InstanceError(f"{where}: {said}", column=column)


def unit_in(column: str) -> str:
    """Return the unit that a name ends with, such as "ms" of "start_ms"."""
    ending = column.rpartition("_")[2]
    return ending if ending in ("s", "ms", "us", "ns") else ""


def conversations(columns: dict[str, Values]) -> dict[str, Values]:
    """Return labels of tenant, conversation and turn, and senders or conversations as clients."""
    tenants, chats, before, turns, senders = map(columns.get, PEOPLE)
    found: dict[str, Values] = {}
    if chats is not None and before is not None:
        first: dict[str, str] = {}
        for chat, previous in zip(chats, before, strict=True):
            first[chat] = chat if previous in ("", "-1") else first.get(previous, previous)
        chats = np.array([first[chat] for chat in chats], dtype=object)
    if chats is not None and any(chats):
        parts = [each for each in (tenants, chats, turns) if each is not None]
        labels = ["/".join(filter(None, each)) for each in zip(*parts, strict=True)]
        found["labels"] = np.array(labels, dtype=object)
    if (clients := chats if senders is None else senders) is not None and all(clients):
        number = {client: at for at, client in enumerate(dict.fromkeys(clients))}
        found["clients"] = np.array([number[client] for client in clients], dtype=np.int64)
    return found


def roles(columns: Mapping[str, str] | str | None) -> dict[str, str]:
    """Return the columns that a user names, by our roles."""
    if isinstance(columns, str):
        columns = dict(part.partition("=")[::2] for part in columns.split(","))
    wish = "a text such as prompt=tokens_in,output=tokens_out, or a mapping"
    require(columns := columns or {}, Mapping, "columns", wish, InstanceError)
    for role, column in columns.items():
        require_known("role of a column", role, ROLES, InstanceError)
        if not (column and isinstance(column, str)):
            raise InstanceError(f"columns leaves out what {role} is; write {role}=COLUMN")
    return {ROLES[role]: column for role, column in columns.items()}
