"""Containers of traces: CSV, JSON lines, JSON and parquet, packed or not, become rows of cells."""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import itertools
import json
import lzma
import re
import sys
import zipfile
import zlib
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from optsched._internal.extensions import need
from optsched.errors import InstanceError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from io import BufferedReader
    from pathlib import Path

    import numpy.typing as npt

    from optsched._internal.arrays import IntArray

    Keep = Callable[[dict[str, Any]], bool]

BLOCK = 1 << 12  # rows parsed at a time
BYTES = 1 << 22  # parsed at a time where cells are plain
LARGE = 1 << 19  # bytes from which on it pays to load pandas
DATE = "S36"  # longer than any date that has the form below
_DATE = re.compile(rb"((?:19|20)\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|\+00:00)?")
_NOT_PLAIN = b'"', b"\r", b"\0"
_HEADER_BYTES = 1 << 16
_encoded = json.JSONEncoder(default=str).encode
MAX_DEPTH = 8  # levels of an object in which columns are looked for

#: Rows of cells, none where a line is blank, each with the number of its line or entry.
Block = list[tuple[int, list[str]]]


def _zstd(raw: Any) -> Any:
    content = need("pyarrow", "a file packed with zstd").CompressedInputStream(raw, "zstd").read()
    return io.BufferedReader(io.BytesIO(content))  # type: ignore[arg-type,unused-ignore]


def _zip(raw: Any) -> Any:
    archive = zipfile.ZipFile(io.BytesIO(raw.read()))  # a pipe has no end to start from
    if len(names := archive.namelist()) != 1:
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
    first: Any = None  # the first object of JSON
    records: Iterable[tuple[int, Any]] = ()  # what JSON holds, with the numbers of its lines
    place: str = "line"  # what rows are called

    def rows(
        self, steps: Sequence[str], texts: Mapping[str, bool], size: int, keep: Keep
    ) -> Iterator[Block]:
        """Yield the cells of JSON, `size` rows at a time; where `texts` says so, texts as they are.

        `keep` says whether an object is a request. A row that is no object is too short.
        """
        columns = [(column.split("|"), text) for column, text in texts.items()]
        paths = [path for path, _ in columns]
        spread = ((n, row) for n, each in self.records for row in _spread(each, steps, paths))
        if self.place == "entry":
            spread = ((n, row) for n, (_, row) in enumerate(spread, 1))
        kept = ((n, row) for n, row in spread if not isinstance(row, dict) or keep(row))

        def cells(row: Any) -> list[str]:
            is_row = isinstance(row, dict)
            return [_cell(_at(row, path), text) for path, text in columns] if is_row else [""]

        while block := list(itertools.islice(kept, size)):
            yield [(n, cells(row)) for n, row in block]


def tabulated(stream: BufferedReader, path: Path) -> Table | bytes:
    """Find out how a file is written; return the text of what may be an instance as it is."""
    start = stream.peek(4)
    if start.startswith(b"PAR1"):
        return _listed(_parquet(stream.read(), path))
    if (first := start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]) not in (b"{", b"["):
        return Table(_csv_header(stream.readline(_HEADER_BYTES), path))
    text = _next_line(stream)
    content = _loaded(text)
    if isinstance(content, dict) and (more := _next_line(stream)):
        lines = enumerate(itertools.chain(io.BytesIO(text + more), stream), 1)
        return Table([], content, ((n, _loaded(line)) for n, line in lines if line.strip()))
    if not isinstance(content, dict):  # of several lines
        text += stream.read()
        content = _loaded(text)
    if isinstance(content, list):
        return _listed(content)
    if "prompts" in content if content else (first == b"{" and b'"prompts"' in text):
        return text
    if content is None:
        said = "the line holds no JSON object, nor does the file as a whole; is its end missing?"
        raise InstanceError(f"{path}, line 1: {said}")
    lists = any(isinstance(value, list) for value in flat(content).values())
    return Table([], content, [(1, content)], "entry" if lists else "line")


def _listed(rows: list[Any]) -> Table:
    first = next((each for each in rows if isinstance(each, dict)), {})
    return Table([], first, enumerate(rows, 1), "entry")


def _next_line(stream: BufferedReader) -> bytes:
    """Read up to the end of the next line that is not blank."""
    text = b""
    while not text.strip() and (line := stream.readline()):
        text += line
    return text if text.strip() else b""


def _loaded(text: bytes) -> Any:
    """Return what a JSON text says, or None."""
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


def flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return what stands in an object by paths of keys, such as "request.model"."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict) and prefix.count(".") < MAX_DEPTH:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _at(row: dict[str, Any], paths: list[str]) -> Any:
    for path in paths:
        if (value := row.get(path)) is not None:
            return value
    return None


def _spread(content: Any, steps: Sequence[str], columns: list[list[str]]) -> Iterator[Any]:
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


def _cell(value: Any, text: bool) -> str:
    if value is None or type(value) in (int, float):
        return "" if value is None else repr(value)
    if text and not isinstance(value, bool | list | dict):  # with no half of a character
        return str(value).encode(errors="backslashreplace").decode()
    return _encoded(value)


def _csv_header(line: bytes, path: Path) -> list[str]:
    """Split a header line into the names of its columns."""
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
