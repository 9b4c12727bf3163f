"""The reader's rules: where the requests are in a report, and which of them were measured."""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from optsched._internal.files import JSON

_FILE = Path(__file__).parents[1] / "data" / "statuses.json"
_TABLE: JSON = json.loads(_FILE.read_text(encoding="utf-8"))
_LEFT_OUT: dict[str, dict[str, list[str]]] = _TABLE["left_out"]
_OF_WORD = {word: status for status, each in _LEFT_OUT.items() for word in each["words"]}
_NOTHING = {"", "none", "null", "nan", "nat", "n/a", "na", "<na>", "-", "[]", "{}", '""'}
_YES, _NO = {"true", "1", "1.0", "yes", "t", "y"}, {"false", "0", "0.0", "no", "f", "n"}
_FAILED, _HTTP = "failed", range(100, 400)  # what HTTP calls no error
MAX_DEPTH = 8  # levels of an object in which columns are looked for
_SAMPLE = 1000  # records whose keys are looked at
UNKNOWN = "?"  # a status that no tool is known to write


def _plain(text: str) -> str:
    """Write a name or a word as the table has it, such as was_cancelled for wasCancelled."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s.-]+", "_", text.strip().strip('"')).lower()


@functools.lru_cache(maxsize=1 << 14)
def status_column(column: str) -> tuple[str, str] | None:
    """Return what a column says of a request: a kind, and the status of a flag; None: nothing."""
    *outer, last = map(_plain, column.split("."))
    for status, words in _LEFT_OUT.items():
        for kind in ("true", "false"):
            if last in words.get(kind, ()):
                return kind, status
    for kind in ("status", "perhaps"):
        if last in _TABLE[kind] and not (kind == "perhaps" and {*outer} & {*_TABLE["reasons"]}):
            return kind, ""
    return ("reasons", _FAILED) if {last, *outer} & {*_TABLE["reasons"]} else None


@functools.lru_cache(maxsize=1 << 14)
def status_of(kind: str, status: str, cell: str) -> str:
    """Return why a request is left out by a cell of a column that says so, or nothing."""
    word = _plain(cell)
    if word in _NOTHING:
        return ""
    if kind in ("true", "false"):
        return status if word in (_YES if kind == "true" else _NO) else ""
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if kind == "reasons":
        fine = word in _NO or word in _TABLE["measured"] or number in _HTTP
        return "" if fine or number % 1 > 0 else _OF_WORD.get(word, _FAILED)
    if not math.isnan(number):
        return _FAILED if kind == "status" and number >= _HTTP.stop else ""
    if word in _OF_WORD or word in _TABLE["measured"] or kind == "perhaps":
        return _OF_WORD.get(word, "")
    return UNKNOWN


def why_left_out(cells: Iterable[tuple[tuple[str, str], str]]) -> str:
    """Return why a request is left out by what its columns say: the first in the table counts."""
    found = {status_of(*column, cell) for column, cell in cells}
    return next((status for status in (*_LEFT_OUT, UNKNOWN) if status in found), "")


def flat(content: JSON, prefix: str = "") -> JSON:
    """Return what stands in an object by paths of keys, such as "request.model"."""
    found: JSON = {}
    for key, value in content.items():
        if isinstance(value, dict) and prefix.count(".") < MAX_DEPTH:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


@dataclass(frozen=True)
class Place:
    """Where in a report there may be requests."""

    steps: tuple[str, ...]  # keys that lead there
    lists: int  # on the way, itself included
    count: int  # of records
    keys: dict[str, None]  # of its own, not of what is around
    format: Any  # that fits, or None
    score: int = 0  # columns that fit

    @property
    def status(self) -> str:
        """Why requests there are left out, where a key on the way says so."""
        return next(filter(None, (_OF_WORD.get(_plain(key), "") for key in self.steps)), "")

    @property
    def is_settings(self) -> bool:
        """Whether these are totals, settings or averages."""
        words = (word for key in reversed(self.steps) for word in reversed(_plain(key).split("_")))
        first = next((each for each in words if each in _OF_PLACE or _SHARE.fullmatch(each)), "")
        return bool(first) and not _OF_PLACE.get(first)

    @property
    def is_whole(self) -> bool:
        """Whether both lengths are its own."""
        both = (self.format.columns[role].split("|") for role in ("prompts", "outputs"))
        return all(not self.keys.keys().isdisjoint(each) for each in both)

    def is_above(self, other: Place) -> bool:
        """Whether another place is a part of this one."""
        return len(self.steps) < len(other.steps) and other.steps[: len(self.steps)] == self.steps

    @property
    def name(self) -> str:
        """What to call it."""
        return ".".join(self.steps) or "the records at the top"


_OF_PLACE = dict.fromkeys(_TABLE["settings"], False) | dict.fromkeys(_TABLE["requests"], True)
_SHARE = re.compile(r"p\d+|std|min|max")


def places(
    nodes: list[Any],
    fitting: Callable[[frozenset[str]], tuple[int, Any]],
    outer: frozenset[str] = frozenset(),
    steps: tuple[str, ...] = (),
    lists: int = 0,
) -> Iterator[Place]:
    """Find where requests may be, among all values at one path of keys and below."""
    records = [each for each in nodes if isinstance(each, dict)]
    inner = [each for node in nodes if isinstance(node, list) for each in node]
    lists += bool(inner)
    records += [each for each in inner if isinstance(each, dict)]
    if not records or len(steps) > MAX_DEPTH:
        return
    sample = records[:_SAMPLE]
    keys = dict.fromkeys(key for each in sample for key in flat(each))
    score, form = fitting(outer | keys.keys())
    count, side = len(records), 0
    if form is not None:
        column = form.columns["prompts"].split("|")
        sides = [row.get(path) for row in map(flat, sample) for path in column]
        if found := [each for each in sides if isinstance(each, list)]:  # lists side by side
            count, side = sum(map(len, found)), 1
    yield Place(steps, lists + side, count, keys, form, score)
    shared = {key for each in sample for key, value in each.items() if not _holds(value)}
    for key in dict.fromkeys(
        key for each in sample for key, value in each.items() if _holds(value)
    ):
        below = [each[key] for each in sample if _holds(each.get(key))]
        yield from places(below, fitting, outer | shared, (*steps, key), lists)


def _holds(value: object) -> bool:
    return isinstance(value, list | dict)


def chosen(found: list[Place]) -> tuple[Place | None, list[Place], list[Place]]:
    """Return where the requests are; others that would do; and those of requests left out.

    It is the deepest list of records that has both lengths; of several such the one with most
    columns that are read, then with most records.
    """
    fits = [each for each in found if each.format is not None and not each.is_settings]
    fits = [each for each in fits if each.is_whole] or fits
    listed = any(each.lists for each in fits)
    fits = [each for each in fits if each.lists or not listed]
    lowest = [
        each
        for each in fits  # a record above a list is a total; a record below one is a part of it
        if not any(one.is_above(each) and one.lists == each.lists for one in fits)
        and not any(each.is_above(one) and one.lists > each.lists for one in fits)
    ]
    measured = [each for each in lowest if not each.status]
    best = max(measured, key=lambda one: (one.score, one.count), default=None)
    form = (best or next(iter(lowest), found[0])).format
    columns = (
        {name for column in form.columns.values() for name in column.split("|")} if form else {}
    )
    gone = [each for each in found if each.status and each.lists and columns & each.keys.keys()]
    gone = [each for each in gone if not any(one.is_above(each) for one in gone)]
    return best, [each for each in measured if each is not best], gone
