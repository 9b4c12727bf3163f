"""Formats of trace files."""

from __future__ import annotations

import contextlib
import csv
import functools
import gzip
import itertools
import json
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from optsched._internal.arguments import MAX_TOKENS
from optsched._internal.request_rules import instead
from optsched.errors import InstanceError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from io import BufferedReader
    from pathlib import Path

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray


BLOCK = 1 << 12  # rows parsed at a time
BYTES = 1 << 20  # parsed at a time where they are numbers
_PLAIN = b"0123456789.,+-eE \n"
GZIP_MAGIC = b"\x1f\x8b"

_BREAK = re.compile("\r\n|\r|\n")

#: Rows of cells, none where a line is blank, and the line that the first of them starts on.
Block = tuple[int, list[list[str]]]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a file, packed with gzip or not, and name it in every error while it is being read."""
    if "\0" in str(path):
        raise InstanceError(f"{str(path)!r} is not the name of a file; take the NUL out")
    try:
        with path.open("rb") as raw:
            start = raw.peek(2)[:2]
            if start != GZIP_MAGIC and path.suffix == ".gz" and start:
                raise InstanceError(f"{path} is not packed with gzip; rename it or pack it")
            with gzip.open(raw) if start == GZIP_MAGIC else raw as stream:
                reader = cast("BufferedReader", stream)
                if not reader.peek(1):
                    raise InstanceError(f"{path} is empty; it needs a header line and requests")
                yield reader
    except FileNotFoundError:
        from optsched.workloads.families import FAMILIES

        is_family = str(path).partition(",")[0].strip() in FAMILIES
        hint = f"for the family write family:{path}" if is_family else "check its name"
        raise InstanceError(f"there is no file {path}; {hint}") from None
    except IsADirectoryError:
        raise InstanceError(f"{path} is a directory; name a file in it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InstanceError(f"{path} is a damaged or truncated gzip file; fetch it again") from None
    except OSError as error:
        raise InstanceError(f"{path} cannot be read: {error.strerror or error}") from None


def csv_header(line: bytes, source: str) -> list[str]:
    """Split a header line into the names of its columns."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InstanceError(f"{source}, line 1: this is not UTF-8 text; pass a CSV or JSONL trace")
    try:
        return [name.strip() for name in next(csv.reader([text]), [""])]
    except csv.Error:
        raise InstanceError(
            f"{source}, line 1: the header cannot be split into columns; check its line end"
        ) from None


def keys_of(line: bytes, source: str) -> list[str]:
    """Return the keys of the object that is the first line of a file."""
    try:
        content = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InstanceError(f"{source}, line 1: the line holds no JSON object")
    return list(content)


def csv_numbers(
    stream: BinaryIO, whole: BoolArray, limit: int
) -> tuple[list[FloatArray], int, list[bytes]]:
    """Read blocks of plain numbers; return columns, lines read, and the first other lines."""
    tables: list[FloatArray] = []
    count = read = 0
    while count < limit and (lines := stream.readlines(BYTES)):
        text = b"".join(lines)
        if text.translate(None, _PLAIN):
            return tables, read, lines
        if text.strip():
            try:
                table = np.loadtxt(lines, delimiter=",", comments=None, ndmin=2)
            except ValueError:
                return tables, read, lines
            if table.shape[1] != len(whole) or not np.isfinite(table).all():
                return tables, read, lines
            counts = table[:, whole]
            if (counts != np.floor(counts)).any() or (np.abs(counts) >= 2**53).any():
                return tables, read, lines
            tables.append(table[: limit - count])
            count += len(tables[-1])
        read += len(lines)
    return tables, read, []


def csv_rows(lines: Iterable[bytes], size: int, line: int = 2) -> Generator[Block, None, None]:
    """Read the lines of a CSV file from some line on, `size` rows at a time."""
    parts = (part for each in lines for part in each.splitlines(keepends=True))
    rows = csv.reader(part.decode("utf-8", "surrogateescape") for part in parts)
    while True:
        first, block = line + rows.line_num, list[list[str]]()
        try:
            block.extend(itertools.islice(rows, size))
        except csv.Error as error:
            raise csv.Error(f"line {first + sum(map(_lines, block))}: {error}") from None
        if not block:
            return
        yield first, block


def jsonl_rows(
    lines: Iterable[bytes],
    names: Sequence[str],
    size: int,
    look: Callable[[int, dict[str, Any]], bool],
) -> Generator[Block, None, None]:
    """Read a file with one JSON object per line, `size` lines at a time; cells are JSON, too.

    `look` says whether an object is a request. A line that holds no object gives a row that is too
    short.
    """
    numbered = enumerate(lines, 1)
    paths = [[path.split(".") for path in name.split("|")] for name in names]

    def cells(number: int, line: bytes) -> list[str]:
        if not line.strip():
            return []
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            return [""]
        return [_at(content, each) for each in paths] if look(number, content) else []

    while block := list(itertools.islice(numbered, size)):
        yield block[0][0], [cells(number, line) for number, line in block]


def _at(content: object, paths: list[list[str]]) -> str:
    """Return what stands at the first of some paths that is there."""
    for path in paths:
        value = content
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return _json(value)
    return ""


def _json(value: object) -> str:
    return repr(value) if type(value) in (int, float) else json.dumps(value)  # which is slow


def numbered(blocks: Iterable[Block]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, each with the line that it starts on."""
    for line, block in blocks:
        for row in block:
            if row:
                yield line, row
            line += _lines(row)


def _lines(row: list[str]) -> int:
    return 1 + sum(len(_BREAK.findall(cell)) for cell in row)


Values = npt.NDArray[Any]

#: A date and time within the 64 bits of nanoseconds, alone and ahead or behind UTC.
_STAMP = r"(?:1[7-9]|2[01])\d\d-\d\d-\d\d(?:[ T]\d\d(?::\d\d(?::\d\d(?:\.\d{1,9})?)?)?)?"
_STAMPS = re.compile(rf"(?:{_STAMP}\n)*", re.ASCII)
_ZONED = re.compile(rf"({_STAMP})(?:Z|([+-])(\d\d)(?::?(\d\d))?)", re.ASCII)
_INPUTS = ("user_message", "tool_result")  # events of TraceLab that a round answers


@dataclass(frozen=True)
class CellKind:
    """A kind of cell: how a column of them is read, and what to call one."""

    read: Callable[[Sequence[str]], Values]  # raises ValueError if any cell is not of the kind
    name: str  # with its article
    filler: object  # stands in for a cell that cannot be read


def _numbers(cells: Sequence[str]) -> FloatArray:
    _plain(cells)
    values = np.fromiter(map(float, cells), np.float64, len(cells))
    if not np.isfinite(values).all():
        raise ValueError("missing or infinite")
    return values


def _instants(cells: Sequence[str]) -> FloatArray:
    """Return finite numbers, nan where there is none: a request that failed has no last token."""
    known = np.array([cell not in ("", "NaN", "nan") for cell in cells], dtype=bool)
    values = np.full(len(cells), np.nan)
    values[known] = _numbers([cell for cell, there in zip(cells, known, strict=True) if there])
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
    east: Any = 0  # nanoseconds ahead of UTC
    if not _STAMPS.fullmatch("\n".join((*cells, ""))):
        zoned = [_ZONED.fullmatch(cell) for cell in cells]
        parts = [found.groups("0") for found in zoned if found]
        if len(parts) < len(cells):
            raise ValueError("no date and time")
        cells = [stamp for stamp, *_ in parts]
        minutes = [int(f"{sign}1") * (60 * int(h) + int(m)) for _, sign, h, m in parts]
        east = np.array(minutes, dtype=np.int64) * 60 * 10**9
    stamps: IntArray = np.array(cells, dtype="datetime64[ns]").astype(np.int64) - east
    return stamps


def _texts(cells: Sequence[str]) -> npt.NDArray[np.object_]:
    _single_lines(cells)
    "".join(cells).encode()  # fails where a byte is no UTF-8
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


def _names(cells: Sequence[str]) -> npt.NDArray[np.object_]:
    """Return the strings and numbers of JSON as text, empty where there is none."""
    found = [json.loads(cell or "null") for cell in cells]
    if not {str, int, type(None)}.issuperset(map(type, found)):
        raise ValueError("no name")
    return np.array(["" if each is None else str(each) for each in found], dtype=object)


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
        try:
            sides: tuple[list[str], list[str]] = [], []
            for event in json.loads(cell):
                sides[event["event_type"] in _INPUTS].append(event["timestamp"])
            outputs, inputs = (_stamps(side) for side in sides)
        except (KeyError, TypeError):
            raise ValueError("no list of events") from None
        found.append(int(inputs.max() if len(inputs) else outputs.min()))
    return np.array(found, dtype=np.int64)


def _single_lines(cells: Sequence[str]) -> Values:
    # A quote without its partner swallows the lines up to the next one.
    if "\n" in "".join(cells):
        raise ValueError("line break")
    return np.zeros(len(cells), dtype=np.int8)


WHOLE = CellKind(_whole_numbers, "a whole number", 0)
NUMBER = CellKind(_numbers, "a finite number", 0.0)
INSTANT = CellKind(_instants, "a finite number, or empty", 0.0)
#: Nanoseconds since 1970, of a date and time with or without an offset from UTC.
STAMP = CellKind(_stamps, "a date and time such as 2023-11-16 18:15:46.68", 0)
TEXT = CellKind(_texts, "UTF-8 text on one line", "")
LIST = CellKind(_lists, "a list of whole numbers", None)
NAME = CellKind(_names, "a text or a whole number", "")
SIZE = CellKind(_sizes, f"a whole number of tokens up to {MAX_TOKENS}", 0)
EVENTS = CellKind(_submitted, "a list of events with dates and times", 0)
#: What an instance does not need, checked only for rows swallowed by a quote.
IGNORED = CellKind(_single_lines, "text on one line", 0)


def read_cells(cells: Sequence[str], kind: CellKind) -> tuple[Values, BoolArray]:
    """Read a column."""
    try:
        return kind.read(cells), np.zeros(len(cells), dtype=bool)
    except ValueError:
        if len(cells) == 1:
            return np.array([kind.filler]), np.array([True])
    # Halving finds the few bad cells of a long column without a look at every cell.
    middle = len(cells) // 2
    halves = [read_cells(half, kind) for half in (cells[:middle], cells[middle:])]
    values, unreadable = zip(*halves, strict=True)
    return np.concatenate(values), np.concatenate(unreadable)


#: How the cells of a field of `Instance` are read, where they are not whole numbers.
FIELD_KINDS = {
    **{"weights": NUMBER, "labels": TEXT, "hash_ids": LIST},
    **{"first_token": INSTANT, "last_token": INSTANT},
}
#: Fields that are no part of an instance: when its tokens came.
MEASURED = ("arrived", "first_token", "last_token")


@dataclass(frozen=True)
class TraceFormat:
    """What the columns of a trace mean.

    In JSON lines a column is a path of keys, such as ``request.output_tokens``, or several
    alternatives with ``|`` between them.
    """

    name: str
    fields: dict[str, str]
    clock: str
    clock_kind: CellKind = NUMBER
    units_per_second: int = 1
    optional: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    public: bool = True
    hash_block: int | str | None = None  # tokens of a block with an id, or the column with them
    #: Columns of tenant or class, conversation, the request before it, and turn; "" without one.
    session: tuple[str, str, str, str] = ("", "", "", "")
    marks: tuple[str, ...] = ()  # keys of the first object that tell JSON lines of this kind
    only: tuple[str, str] = ("", "")  # a key and its value, without which a line is no request
    nested: bool = False  # whether there may be other keys, and rows are in no order

    @functools.cached_property
    def kinds(self) -> dict[str, CellKind]:
        """How the cells of each column are read."""
        kinds = {column: FIELD_KINDS.get(field, WHOLE) for column, field in self.fields.items()}
        kinds |= dict.fromkeys(filter(None, self.session), NAME) | {self.clock: self.clock_kind}
        if isinstance(self.hash_block, str):
            kinds[self.hash_block] = SIZE
        return {**dict.fromkeys(self.ignored, IGNORED), **kinds}

    @property
    def required(self) -> list[str]:
        """The columns without which there is no instance."""
        return [name for name in (*self.fields, self.clock) if name not in self.optional]

    def column(self, field: str, header: list[str]) -> str:
        """Return the column of this header that a field of `Instance` was made from."""
        names = (name for name, meant in self.fields.items() if meant == field and name in header)
        return next(names, self.clock)


NATIVE = TraceFormat(
    "optsched CSV",
    {
        "prompt_tokens": "prompts",
        "output_tokens": "outputs",
        "arrival": "arrivals",
        "weight": "weights",
        "deadline": "deadlines",
        "output_lower": "output_lower",
        "output_upper": "output_upper",
        "priority": "priorities",
        "output_estimate": "output_estimates",
        "client": "clients",
        "label": "labels",
    },
    clock="arrival_s",
    optional=frozenset(
        (
            *("arrival", "arrival_s", "weight", "deadline", "priority", "label"),
            *("output_lower", "output_upper", "output_estimate", "client"),
        )
    ),
    public=False,
)

#: The formats with a JSON object per line.
JSONL_FORMATS = (
    TraceFormat(
        "Mooncake JSONL",
        {"input_length": "prompts", "output_length": "outputs", "hash_ids": "hash_ids"},
        clock="timestamp",
        clock_kind=WHOLE,
        units_per_second=1000,
        optional=frozenset({"hash_ids"}),
        hash_block=512,
        session=("", "session_id", "", ""),
        marks=("input_length",),
    ),
    TraceFormat(
        "Qwen Bailian JSONL",
        {"input_length": "prompts", "output_length": "outputs", "hash_ids": "hash_ids"},
        clock="timestamp",
        optional=frozenset({"hash_ids"}),
        hash_block=16,
        session=("type", "chat_id", "parent_chat_id", "turn"),
        marks=("input_length", "chat_id"),
    ),
    TraceFormat(
        "TraceLab",
        {"input_tokens_total": "prompts", "output_tokens": "outputs"},
        clock="timing_events",
        clock_kind=EVENTS,
        units_per_second=10**9,
        session=("provider", "session_id", "", "round_index"),
        marks=("input_tokens_total", "round_index", "timing_events"),
        nested=True,
    ),
    TraceFormat(
        "Dynamo request trace",
        {
            "request.replay.input_length|request.input_tokens": "prompts",
            "request.output_tokens": "outputs",
            "request.replay.input_sequence_hashes": "hash_ids",
        },
        clock="request.request_received_ms",
        clock_kind=WHOLE,
        units_per_second=1000,
        hash_block="request.replay.trace_block_size",
        session=("request.model", "agent_context.session_id", "", "request.request_id"),
        marks=("schema", "event_type"),
        only=("event_type", "request_end"),
        nested=True,
    ),
    TraceFormat(
        "AIPerf records",
        {
            "metrics.input_sequence_length.value": "prompts",
            "metrics.output_sequence_length.value": "outputs",
        },
        clock="metadata.request_start_ns",
        clock_kind=WHOLE,
        units_per_second=10**9,
        session=(
            "",
            "metadata.x_correlation_id|metadata.conversation_id",
            "",
            "metadata.turn_index",
        ),
        marks=("metadata", "metrics"),
        nested=True,
    ),
    TraceFormat(
        "LLMServingSim",
        {
            **{"input_toks": "prompts", "output_toks": "outputs"},
            **{"first_token_ts": "first_token", "last_token_ts": "last_token"},
        },
        clock="queued_ts",  # that of the engine, as the instants of tokens
        optional=frozenset({"first_token_ts", "last_token_ts"}),
        marks=("input_toks", "queued_ts"),
        nested=True,
    ),
)

#: The formats with a header line.
CSV_FORMATS = (
    NATIVE,
    TraceFormat(
        "Azure LLM inference",
        {"ContextTokens": "prompts", "GeneratedTokens": "outputs"},
        clock="TIMESTAMP",
        clock_kind=STAMP,
        units_per_second=10**9,
        ignored=frozenset({"NumImages"}),  # whose tokens are in ContextTokens
    ),
    TraceFormat(
        "BurstGPT",
        {"Request tokens": "prompts", "Response tokens": "outputs"},
        clock="Timestamp",
        ignored=frozenset({"Session ID", "Elapsed time", "Model", "Total tokens", "Log Type"}),
    ),
    TraceFormat(
        "Vidur",
        {"num_prefill_tokens": "prompts", "num_decode_tokens": "outputs"},
        clock="arrived_at",
        optional=frozenset({"arrived_at"}),
        ignored=frozenset({"", "Unnamed: 0", "num_total_tokens", "pd_ratio"}),
    ),
)


def jsonl_format(first: bytes) -> TraceFormat | None:
    """Return the kind of a file of JSON lines: the one that most of the keys speak for."""
    known = (
        form for form in JSONL_FORMATS if all(b'"%s"' % k.encode() in first for k in form.marks)
    )
    return max(known, key=lambda form: len(form.marks), default=None)


def conversations(form: TraceFormat, columns: dict[str, Values]) -> dict[str, Values]:
    """Return labels of tenant, conversation and turn, and conversations as clients."""
    tenants, chats, before, turns = (columns.get(name) for name in form.session)
    if chats is None:
        return {}
    if before is not None:
        first: dict[str, str] = {}
        for chat, previous in zip(chats, before, strict=True):
            first[chat] = chat if previous in ("", "-1") else first.get(previous, previous)
        chats = np.array([first[chat] for chat in chats], dtype=object)
    parts = [each for each in (tenants, chats, turns) if each is not None]
    labels = ["/".join(filter(None, each)) for each in zip(*parts, strict=True)]
    found: dict[str, Values] = {"labels": np.array(labels, dtype=object)}
    if all(chats):
        number = {chat: at for at, chat in enumerate(dict.fromkeys(chats))}
        found["clients"] = np.array([number[chat] for chat in chats], dtype=np.int64)
    return found


def recognised(
    header: list[str], source: str, formats: Iterable[TraceFormat] = CSV_FORMATS, line: int = 1
) -> TraceFormat:
    """Tell which format a header line belongs to, or the keys of the object on a line."""
    form = max(formats, key=lambda form: len(form.kinds.keys() & set(header)))
    known = form.kinds.keys()
    where = f"{source}, line {line}"
    if unknown := [name for name in header if name not in known]:
        # Without any known column the format itself is unclear.
        names = known if known & set(header) else {n for form in formats for n in form.required}
        raise InstanceError(
            f"{where}: unknown column {unknown[0]!r}; {instead(unknown[0], names - set(header))}",
            column=unknown[0],
        )
    if missing := [name for name in form.required if name not in header]:
        raise InstanceError(
            f"{where}: column {missing[0]!r} of the {form.name} format is missing",
            column=missing[0],
        )
    name, times = Counter(header).most_common(1)[0]
    if times > 1:
        raise InstanceError(f"{where}: column {name!r} is there {times} times", column=name)
    if form is NATIVE and {"arrival", "arrival_s"} <= set(header):
        raise InstanceError(
            f"{where}: arrival (steps) and arrival_s (seconds) are both there; keep one of them",
            column="arrival",
        )
    return form
