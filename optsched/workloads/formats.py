"""Traces as they come: containers become rows of cells, and formats say what columns mean."""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import itertools
import json
import lzma
import math
import re
import sys
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from optsched._internal.arguments import MAX_TOKENS
from optsched._internal.arrays import Array, instead
from optsched._internal.imports import need
from optsched.errors import InstanceError, nearest_column, require, require_known
from optsched.workloads.reports import chosen, flat, places
from optsched.workloads.spans import has_spans, requests_in

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
    from io import BufferedReader

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched._internal.files import JSON

    Keep = Callable[[JSON], bool]

BLOCK = 1 << 12  # rows parsed at a time
BYTES = 1 << 22  # parsed at a time where cells are plain
LARGE = 1 << 19  # bytes from which on it pays to load pandas
DATE = "S36"  # longer than any date that has the form below
_DATE = re.compile(rb"((?:19|20)\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|\+00:00)?")
_NOT_PLAIN = b'"', b"\r", b"\0"
_HEADER_BYTES = 1 << 16
_encoded = json.JSONEncoder(default=str).encode
_SAMPLE = 256  # lines whose keys are looked at

#: Rows of cells, none where a line is blank, each with the number of its line or entry.
Block = list[tuple[int, list[str]]]


def _zstd(raw: BinaryIO) -> Any:
    content = need("pyarrow", "a file packed with zstd").CompressedInputStream(raw, "zstd").read()
    return io.BufferedReader(io.BytesIO(content))  # type: ignore[arg-type,unused-ignore]


_IN_ARCHIVES = re.compile(r"^__MACOSX/|(^|/)\._|(^|/)\.DS_Store$|/$")  # beside what was packed


def _zip(raw: BinaryIO) -> Any:
    archive = zipfile.ZipFile(io.BytesIO(raw.read()))  # a pipe has no end to start from
    names = [name for name in archive.namelist() if not _IN_ARCHIVES.search(name)]
    if len(names) != 1:
        raise InstanceError(f"the archive holds {len(names)} files; keep that with the requests")
    return archive.open(names[0])


#: How a packed file ends and begins, what that is called, and what unpacks it.
_PACKED: dict[str, tuple[bytes, str, Callable[[Any], Any]]] = {
    ".gz": (b"\x1f\x8b", "gzip", gzip.open),
    ".xz": (b"\xfd7zXZ\0", "xz", lzma.open),
    ".bz2": (b"BZh", "bzip2", bz2.open),
    ".zst": (b"\x28\xb5\x2f\xfd", "zstd", _zstd),
    ".zip": (b"PK\3\4", "zip", _zip),
}


#: What reading such a file raises where it is damaged, or, of zip, encrypted.
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError, OSError)


def bare_name(path: Path) -> str:
    """Return the name of a file without the endings that say how it is written."""
    name = path.name
    for ending in (*_PACKED, ".csv", ".jsonl", ".json", ".parquet"):
        name = name.removesuffix(ending)
    return name


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a file, packed or not, and name it in every error while it is being read."""
    if "\0" in str(path):
        raise InstanceError(f"{str(path)!r} is not the name of a file; take the NUL out")
    packed: str | None = None
    unpack: Callable[[Any], Any] = contextlib.nullcontext
    try:
        with path.open("rb") as raw:
            start = raw.peek(8)
            for ending, (magic, name, opener) in _PACKED.items():
                if start.startswith(magic):
                    packed, unpack = name, opener
                elif path.suffix == ending and start:
                    raise InstanceError(f"{path} is not packed with {name}; rename it or pack it")
            with unpack(raw) as stream:
                if not stream.peek(1):
                    raise InstanceError(f"{path} is empty; it needs a header line and requests")
                yield stream
    except FileNotFoundError:
        from optsched.workloads.families import FAMILIES

        is_family = str(path).partition(",")[0].strip() in FAMILIES
        hint = f"for the family write family:{path}" if is_family else "check its name"
        raise InstanceError(f"there is no file {path}; {hint}") from None
    except IsADirectoryError:
        raise InstanceError(f"{path} is a directory; name a file in it") from None
    except _DAMAGE as error:
        wrong = f"{path} is a damaged or truncated {packed} file; fetch it again"
        if packed == "zip":
            wrong = wrong.replace("file;", "file, or encrypted;")
        if packed is None or getattr(error, "errno", None):  # the disk is at fault
            wrong = f"{path} cannot be read: {getattr(error, 'strerror', error)}"
        raise InstanceError(wrong) from None


@dataclass
class Table:
    """What a file holds, before it is known what its columns mean."""

    header: list[str]  # of CSV, with at least one column
    content: Any = None  # of JSON: the document, or its first lines
    records: Iterable[tuple[int, Any]] = ()  # what JSON holds, with the numbers of its lines
    place: str = "line"  # what rows are called
    note: str = ""  # on what stands in the file

    def rows(self, form: TraceFormat, size: int, keep: Keep, gone: Counter[str]) -> Iterator[Block]:
        """Yield the cells of the JSON that `keep` takes, `size` rows at a time; count the rest."""
        texts = {column: form.kind(role).text for role, column in form.columns.items()}
        columns = [(column.split("|"), text) for column, text in texts.items()]
        paths = [path for path, _ in columns]

        def parts(record: Any) -> Iterator[Any]:
            for status, steps in form.gone:
                gone[status] += sum(isinstance(row, dict) for row in _spread(record, steps, paths))
            yield from _spread(record, form.steps, paths)

        spread = ((n, row) for n, each in self.records for row in parts(each))
        if self.place == "entry":
            spread = ((n, row) for n, (_, row) in enumerate(spread, 1))
        kept = ((n, row) for n, row in spread if not isinstance(row, dict) or keep(row))

        def cells(row: object) -> list[str]:
            if not isinstance(row, dict):
                return [""]
            return [cell_of(_at(row, path), text) for path, text in columns]

        while block := list(itertools.islice(kept, size)):
            yield [(n, cells(row)) for n, row in block]


def tabulated(stream: BufferedReader, path: Path) -> Table | bytes:
    """Find out how a file is written; return the text of what may be an instance as it is."""
    start = stream.peek(4)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or {0} in ({*start[:8:2]}, {*start[1:8:2]}):
        said = "this is not UTF-8 text but UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)"
        raise InstanceError(f"{path}, line 1: {said}")
    if start.startswith(b"PAR1"):
        return _listed(_parquet(stream.read(), path))
    if (first := start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]) not in (b"{", b"["):
        return Table(_csv_header(stream.readline(_HEADER_BYTES), path))
    text = _next_line(stream)
    content = _loaded(text)
    if isinstance(content, dict) and (more := _next_line(stream)):
        head = [text, more, *itertools.islice(stream, _SAMPLE)]
        lines = enumerate(itertools.chain(io.BytesIO(b"".join(head)), stream), 1)
        known = [each for line in head if isinstance(each := _loaded(line), dict)]
        if any(map(has_spans, known)):
            return _of_spans([_loaded(line) for _, line in lines if line.strip()])
        return Table([], known, ((n, _loaded(line)) for n, line in lines if line.strip()))
    if not isinstance(content, dict):  # of several lines
        text += stream.read()
        content = _loaded(text)
    documents = content if isinstance(content, list) else [content]
    if any(map(has_spans, documents)):
        return _of_spans(documents)
    if isinstance(content, list):
        return _listed(content)
    if "prompts" in content if content else (first == b"{" and b'"prompts"' in text):
        return text
    if content is None:
        said = "the line holds no JSON object, nor does the file as a whole; is its end missing?"
        raise InstanceError(f"{path}, line 1: {said}")
    lists = any(isinstance(value, list) for value in flat(content).values())
    return Table([], content, [(1, content)], "entry" if lists else "line")


def _of_spans(documents: list[Any]) -> Table:
    if not all(isinstance(each, dict) for each in documents):
        raise InstanceError("a line or an entry holds no JSON object; is the end of it missing?")
    requests, note = requests_in(documents)
    return Table([], [row for _, row in requests], requests, "span", note)


def _listed(rows: list[Any]) -> Table:
    return Table([], rows, enumerate(rows, 1), "entry")


def _next_line(stream: BufferedReader) -> bytes:
    text = b""
    while not text.strip() and (line := stream.readline()):
        text += line
    return text if text.strip() else b""


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parquet(content: bytes, path: Path) -> list[Any]:
    arrow = need("pyarrow", "a parquet file")
    try:
        table = import_module("pyarrow.parquet").read_table(arrow.BufferReader(content))
        return cast("list[Any]", table.to_pylist())
    except (arrow.ArrowException, OSError, ValueError):
        wrong = f"{path} is a damaged or truncated parquet file; fetch it again"
        raise InstanceError(wrong) from None


def _at(row: JSON, paths: list[str]) -> Any:
    return next((value for path in paths if (value := row.get(path)) is not None), None)


def _spread(content: object, steps: Sequence[str], columns: list[list[str]]) -> Iterator[Any]:
    """Yield the requests in lists that steps lead to, or in lists side by side; or one alone."""
    if not isinstance(content, dict):
        yield content
    elif steps:
        outer = {key: value for key, value in content.items() if not isinstance(value, list | dict)}
        inner = content.get(steps[0])
        for part in inner if isinstance(inner, list) else [inner]:
            for row in _spread(part, steps[1:], columns):
                yield outer | row if isinstance(row, dict) else row
    elif not isinstance(side := _at(row := flat(content), columns[0]), list):
        yield row
    else:
        lists = {path: value for path, value in row.items() if isinstance(value, list)}
        for path in (path for paths in columns for path in paths if path in lists):
            if len(lists[path]) != len(side):
                said = f"{path} has {len(lists[path])} entries, but {columns[0][0]} {len(side)}"
                raise InstanceError(f"{said}; lists side by side must be equally long")
        lists = {path: value for path, value in lists.items() if len(value) == len(side)}
        for values in zip(*lists.values(), strict=True):
            yield dict(zip(lists, values, strict=True))


def cell_of(value: object, text: bool) -> str:
    """Write a value of JSON as a cell."""
    if value is None or type(value) in (int, float):
        return "" if value is None else repr(value)
    if text and not isinstance(value, bool | list | dict):  # with no half of a character
        return str(value).encode(errors="backslashreplace").decode()
    return _encoded(value)


def _csv_header(line: bytes, path: Path) -> list[str]:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InstanceError(f"{path}, line 1: this is not UTF-8 text; pass a CSV or JSONL trace")
    try:
        return [name.strip() for name in next(csv.reader([text]), ()) or [""]]
    except csv.Error:
        raise InstanceError(
            f"{path}, line 1: the header cannot be split into columns; check its line end"
        ) from None


def csv_columns(text: bytes, dtypes: dict[int, str], width: int) -> list[Any]:
    """Read the columns of plain lines, those that are wanted as what they are; or ValueError."""
    few = len(text) < LARGE and "pandas" not in sys.modules
    if few or not text.isascii() or any(each in text for each in _NOT_PLAIN):
        raise ValueError("not worth loading pandas, or no plain cells")
    import pandas as pd

    how: Any = {"dtype": dict.fromkeys(range(width), "S1") | dtypes, "na_filter": False}
    how["float_precision"] = "round_trip" if pd.__version__ < "3.1" else None  # always exact then
    with np.errstate(invalid="ignore"):
        table = pd.read_csv(io.BytesIO(text), header=None, **how)
    if table.shape[1] != width or count_of(b",", text) != (width - 1) * len(table):
        raise ValueError("a row has more or fewer cells")
    columns = [table[at].to_numpy() for at in table]
    for at, dtype in dtypes.items():
        if dtype == DATE:
            columns[at] = stamps(np.asarray(columns[at], dtype=DATE))
        elif not ((columns[at] > -(2**53)) & (columns[at] < 2**53)).all():
            raise ValueError("missing, or perhaps rounded")
    return columns


def count_of(sign: bytes, text: bytes) -> int:
    """Count a sign faster than bytes do."""
    return int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == ord(sign)))


def stamps(cells: npt.NDArray[np.bytes_]) -> IntArray:
    """Return nanoseconds since 1970 of dates with the same signs in the same places."""
    shown, date = cells.view(np.uint8).reshape(len(cells), -1), _DATE.fullmatch(cells[0])
    same = shown[0] - ord("0") > 9  # signs, and that no date is longer
    digits = shown[:, ~same]
    same[:2] = True  # the century, so that nanoseconds have 64 bits
    same[date.end(1) if date else 0 :] = True  # the zone
    if not date or (shown[:, same] != shown[0, same]).any() or (digits - ord("0") > 9).any():
        raise ValueError("not the same signs")
    return cells.astype(f"S{date.end(1)}").astype("M8[us]").astype(np.int64) * 1000


def csv_rows(lines: Iterable[bytes], size: int, line: int = 2) -> Generator[Block, None, None]:
    """Read the lines of a CSV file from some line on, `size` rows at a time."""
    parts = (part for each in lines for part in each.splitlines(keepends=True))
    rows = csv.reader(part.decode("utf-8", "surrogateescape") for part in parts)
    start = line
    while True:
        block: Block = []
        try:
            for row in itertools.islice(rows, size):
                block.append((start, row))
                start = line + rows.line_num
        except csv.Error as error:
            raise csv.Error(f"line {start}: {error}") from None
        if not block:
            return
        yield block


Values = Array

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

    def values(cells: Sequence[str]) -> FloatArray:
        known = [cell if cell.strip().lower() not in _UNKNOWN else "" for cell in cells]
        return np.array([read(cell) if cell else math.nan for cell in known], dtype=float)

    return values


def _sum(cell: str) -> float:
    """Add the gaps between tokens up, none of which is negative."""
    gaps = _numbers([repr(each) for each in json.loads(cell)])
    if (gaps < 0).any():
        raise ValueError("negative")
    return float(gaps.sum())


NOBODY = -(2**62)  # the client of a request that names none
WHOLE = CellKind(_whole_numbers, "a whole number", 0)
EXACT = CellKind(_exact, "a finite number", 0)
CLIENT = CellKind(
    lambda cells: _whole_numbers([cell or str(NOBODY) for cell in cells]), WHOLE.name, NOBODY
)
_PART = CellKind(_whole_numbers, "a whole number of {}, or pass --time-unit", 0)
STAMP = CellKind(_stamps, "a date and time such as 2023-11-16 18:15:46.68", 0)
TEXT = CellKind(_texts, "UTF-8 text on one line", "", text=True)
LIST = CellKind(_lists, "a list of whole numbers", None)
SIZE = CellKind(_sizes, f"a whole number of tokens up to {MAX_TOKENS}", 0)
EVENTS = CellKind(_submitted, "a list of events with dates and times", 0)
_INSTANT = CellKind(
    _perhaps(lambda cell: float(_numbers([cell])[0])), "a finite number, or empty", 0.0
)
_DATED = CellKind(_perhaps(lambda cell: _stamps([cell])[0]), "a date and time, or empty", 0.0)
_GAPS = CellKind(_perhaps(_sum), "a list of numbers from 0", 0.0)


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


_UNKNOWN = ("nan", "none", "null", "nat")
#: Units of time in a second, and how instants in them are read.
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "date": 10**9, "events": 10**9}
_ENDINGS = {  # of names of columns
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "usec", "usecs", "micros", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nsec", "nsecs", "nano", "nanos", "nanosecond", "nanoseconds"), "ns"),
}
_CLOCKS = {"date": STAMP, "events": EVENTS, "s": EXACT, "": EXACT}
#: What users call the roles of columns.
ROLES = {
    **{"prompt": "prompts", "output": "outputs", "arrival": "clock", "client": "client"},
    **{"priority": "priorities", "prefix": "hash_ids", "block": "hash_block", "turn": "turn"},
    **{"conversation": "conversation", "label": "labels", "weight": "weights", "ttft": "ttft"},
    **{"deadline": "deadlines", "first_token": "first_token", "last_token": "last_token"},
    **{"latency": "latency", "due": "due"},
}
#: Roles of what was measured: instants on the clock; durations; and the gaps between tokens.
MEASURED = ("first_token", "last_token", "ttft", "latency", "gaps")
INSTANTS = ("first_token", "last_token", "due")
NEEDED = {"prompts", "outputs"}
TIMES = ("clock", "arrivals")
#: Roles of who asks: class, conversation, the request before it, turn, and client.
PEOPLE = ("tenant", "conversation", "before", "turn", "client")
_KINDS = {
    **{
        "clients": CLIENT,
        "weights": EXACT,
        "labels": TEXT,
        "hash_ids": LIST,
        "hash_block": SIZE,
        "gaps": _GAPS,
    },
    **dict.fromkeys(PEOPLE, TEXT),
    **dict.fromkeys(("ttft", "latency"), _INSTANT),
}


@dataclass(frozen=True)
class TraceFormat:
    """What columns of a trace mean: in JSON paths of keys, with ``|`` between alternatives."""

    name: str
    columns: dict[str, str]  # by role: a field of `Instance`, or what one is made from
    unit: str = "s"  # of the clock; "" where the cells must tell
    spans: str = "s"  # unit of durations that were measured, where their columns do not tell
    block_tokens: int | None = None  # of a block with an id, where no column has them
    marks: Sequence[str] = ()  # columns that tell this format, else prompts and outputs
    only: Sequence[str] = ("", "")  # a key and its value, without which an object is no request
    exact: bool = False  # whether the unit is certain, so that there may be parts of it
    steps: Sequence[str] = ()  # keys of an object that lead to the requests
    gone: Sequence[tuple[str, tuple[str, ...]]] = ()  # why others are left out, and their steps

    def unit_of(self, role: str) -> str:
        """Return the unit of what was measured: that in the name, or that of the format."""
        usual = self.unit if role in INSTANTS else self.spans
        return unit_in(self.columns[role]) or usual

    def kind(self, role: str) -> CellKind:
        """Say how the cells of a column are read."""
        if role in INSTANTS:
            return _DATED if self.unit_of(role) == "date" else _INSTANT
        if role != "clock":
            return _KINDS.get(role, WHOLE)
        part = EXACT if self.exact else replace(_PART, name=_PART.name.format(self.unit))
        return _CLOCKS.get(self.unit, part)


_FILE = Path(__file__).parents[1] / "data" / "formats.json"
FORMATS = tuple(TraceFormat(**each) for each in json.loads(_FILE.read_text(encoding="utf-8")))
NATIVE = FORMATS[0]


def recognised(
    table: Table,
    given: dict[str, str],
    time_unit: str | None,
    measured: bool,
    where: str,
    say: Callable[[str], object],
) -> TraceFormat:
    """Tell the format of a table; `given` are columns that the user names, by role."""
    block = given.pop("hash_block") if given.get("hash_block", "").isdecimal() else None
    content = [dict.fromkeys(table.header)] if table.header else [table.content]
    found = list(places(content, lambda keys: _fitting(keys, given)))
    place, others, gone = chosen(found) if found else (None, [], [])
    keys = table.header or list(found[0].keys if found else ())
    if place is None:
        if gone:
            said = ", ".join(f"{each.count} {each.status} ({each.name})" for each in gone)
            raise InstanceError(f"{where}: no request was measured, only {said}; run it again")
        raise _unknown(keys, given, bool(table.header), where)
    form: TraceFormat = replace(
        place.format, steps=place.steps, gone=[(one.status, one.steps) for one in gone]
    )
    if others:
        less = ", ".join(f"{each.name} ({each.count})" for each in others)
        say(f"requests are read from {place.name} ({place.count}), not from {less}")
    hidden = () if measured else MEASURED
    columns = {role: each for role, each in (form.columns | given).items() if role not in hidden}
    if "clock" in given:
        columns.pop("arrivals", None)
        form = replace(form, unit=unit_in(given["clock"]), exact=True)
    there = keys if table.header else [*keys, *place.keys]
    present = {role: name for role, each in columns.items() if (name := first_in(each, there))}
    if table.header and not present.keys() >= NEEDED:
        raise _unknown(keys, given, True, where)
    times = [present[role] for role in TIMES if role in present]
    due = [present[role] for role in ("deadlines", "due") if role in present]
    for name, both in (("arrival", times), ("deadline", due)):
        if len(both) > 1:
            said = f"{name} (steps) and {name}_s (seconds) are both there; keep one of them"
            raise InstanceError(f"{where}: {said}", column=name)
    if not form.steps:
        _check_unread(form, keys, present, form.name == NATIVE.name and not given, where)
    columns = present if table.header else columns
    if time_unit is not None:
        if not times:
            said = f"--time-unit {time_unit} is that of arrivals, but there are none; leave it out"
            raise InstanceError(f"{where}: {said}, or pass --columns arrival=COLUMN")
        if (named := unit_in(times[0])) and named != time_unit:
            said = f"column {times[0]} says {named} by its name, but --time-unit {time_unit}"
            raise InstanceError(f"{where}: {said}; leave one of them out, or rename the column")
        columns = {role: column for role, column in columns.items() if role not in TIMES}
        columns["arrivals" if time_unit == "steps" else "clock"] = times[0]
        form = replace(form, unit=time_unit, exact=True)
    if given.keys() & {"ttft", "latency"}:
        form = replace(form, spans=time_unit or "")
    return replace(form, columns=columns, block_tokens=int(block) if block else form.block_tokens)


def first_in(column: str, keys: Collection[str]) -> str:
    """Return the first alternative of a column that is there, or nothing."""
    return next((name for name in column.split("|") if name in keys), "")


def _fitting(keys: frozenset[str], given: Mapping[str, str]) -> tuple[int, TraceFormat | None]:
    """Return the format that most keys speak for, among those whose marks are all there."""
    if not keys.issuperset(given.values()):
        return 0, None
    if {"prompts", "outputs"} <= given.keys():
        return len(given), NATIVE
    marks = [[form.columns[role] for role in NEEDED - given.keys()] for form in FORMATS]
    fits = [
        (sum(bool(first_in(column, keys)) for column in form.columns.values()), form)
        for form, needed in zip(FORMATS, marks, strict=True)
        if all(first_in(mark, keys) for mark in form.marks or needed)
    ]
    return max(fits, key=lambda fit: fit[0], default=(0, None))


def _check_unread(
    form: TraceFormat, keys: list[str], present: Mapping[str, str], plain: bool, where: str
) -> None:
    """Refuse a column that is there twice, and one that is not read but seems to be meant."""
    own = NATIVE.columns
    used = {*present.values(), *(own[role] for role in MEASURED if role in own)}
    if twice := next((name for name in used if keys.count(name) > 1), None):
        times = f"is there {keys.count(twice)} times"
        raise InstanceError(f"{where}: column {twice!r} {times}", column=twice)
    timed = not present.keys().isdisjoint(TIMES)
    free = {own[role] for role in (own if plain else ["clock"]) if not (timed and role in TIMES)}
    for name in [name for name in keys if name and name not in used]:
        hint = instead(name, free - set(keys))
        close = plain and get_close_matches(name.lower(), own.values(), 1, 0.6)
        if close or hint.startswith("name it"):
            raise InstanceError(f"{where}: unknown column {name!r}; {hint}", column=name)


def _unknown(keys: list[str], given: Mapping[str, str], is_csv: bool, where: str) -> InstanceError:
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
        said = f"there is no column {column!r}; {nearest_column(column, keys)}"
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
    """Return the unit that a name ends with, such as "ms" of "start_ms" or "TTFT (ms)"."""
    words = re.findall("[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower())
    return _ENDINGS.get(words[-1], "") if len(words) > 1 else ""


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
    clients = chats if senders is None else senders  # what names no sender is one, too
    if clients is not None and (all(clients) or (senders is not None and any(senders))):
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
