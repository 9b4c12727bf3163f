"""Trace files as streams of rows, in blocks for speed."""

from __future__ import annotations

import contextlib
import csv
import gzip
import itertools
import json
import re
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from optsched.errors import InstanceError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from io import BufferedReader
    from pathlib import Path

    from optsched._internal.arrays import BoolArray, FloatArray

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
