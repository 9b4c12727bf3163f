"""Trace files as streams: batches of columns for speed, single records for error messages."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import json
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from optsched.errors import InstanceError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from io import BufferedReader
    from pathlib import Path

BLOCK = 1 << 22  # bytes parsed at a time
RECORDS = 1 << 14  # records parsed at a time where that is done one by one
GZIP_MAGIC = b"\x1f\x8b"

#: The cells of a record by column, or the reason why it has none.
Record = dict[str, str] | str


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a file, packed with gzip or not, and name it in every error while it is being read."""
    if "\0" in str(path):
        raise InstanceError(f"{str(path)!r} is no name of a file; take the NUL out")
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


class IrregularError(Exception):
    """Some row is not like the others, so that only a look at each record tells what it says."""


def csv_batches(stream: BinaryIO, header: list[str]) -> Iterator[dict[str, Any]]:
    """Read a CSV file after its header line."""
    import pyarrow as pa
    import pyarrow.csv

    try:
        with pa.csv.open_csv(
            stream,
            pa.csv.ReadOptions(column_names=header, block_size=BLOCK),
            convert_options=pa.csv.ConvertOptions(
                # Bytes, so that a stray byte spoils its own cell only.
                column_types=dict.fromkeys(header, pa.binary()),
                strings_can_be_null=False,
            ),
        ) as reader:
            for batch in reader:
                yield dict(zip(header, batch.columns, strict=True))
    except pa.ArrowInvalid as error:
        raise IrregularError from error


def keys_of(line: bytes, source: str) -> list[str]:
    """Return the keys of the object that is the first line of a file."""
    try:
        content = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InstanceError(f"{source}, line 1: the line holds no JSON object")
    return list(content)


def jsonl_batches(stream: BinaryIO, names: list[str], first: bytes) -> Iterator[dict[str, Any]]:
    """Read a file with one JSON object per line, whose first lines were read before."""
    import pyarrow as pa
    import pyarrow.json

    options = pa.json.ParseOptions(
        explicit_schema=pa.schema([(name, pa.float64()) for name in names]),
        unexpected_field_behavior="ignore",
    )
    while lines := [*first.splitlines(keepends=True), *stream.readlines(BLOCK)]:
        first, lines = b"", [line for line in lines if line.strip()]
        block = b"".join(lines)
        try:
            table = pa.json.read_json(
                io.BytesIO(block), pa.json.ReadOptions(block_size=len(block) + 1), options
            )
        except pa.ArrowInvalid as error:
            raise IrregularError from error
        if table.num_rows != len(lines):  # two objects on one line
            raise IrregularError
        yield {name: table[name].combine_chunks() for name in names}


def record_batches(
    records: Iterable[tuple[int, Record]], names: list[str]
) -> Iterator[dict[str, Any]]:
    """Read any file slowly."""
    import pyarrow as pa

    records = iter(records)
    while batch := [cells for _, cells in itertools.islice(records, RECORDS)]:
        rows = [{} if isinstance(cells, str) else cells for cells in batch]
        yield {
            name: pa.array([to_bytes(row.get(name, "")) for row in rows], pa.binary())
            for name in names
        }


def csv_records(stream: BinaryIO) -> Generator[tuple[int, Record], None, None]:
    """Read a CSV file slowly, with the line that each row starts on."""
    line = 0
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    try:
        rows = csv.reader(text)
        header = [name.strip() for name in next(rows)]
        line = rows.line_num
        for cells in rows:
            if len(cells) == len(header):
                yield line + 1, dict(zip(header, cells, strict=True))
            elif cells:
                yield line + 1, f"the row has {len(cells)} cells, but the header has {len(header)}"
            line = rows.line_num
    except csv.Error as error:
        raise csv.Error(f"line {line + 1}: {error}") from None
    finally:
        text.detach()  # the stream belongs to the caller


def jsonl_records(stream: BinaryIO) -> Generator[tuple[int, Record], None, None]:
    """Read a file with one JSON object per line slowly."""
    for number, line in zip(itertools.count(1), stream):
        if line.strip():
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                content = None
            if isinstance(content, dict):
                yield number, {key: json.dumps(value) for key, value in content.items()}
            else:
                yield number, "the line holds no JSON object"


def to_bytes(cell: str) -> bytes:
    """Return the bytes that a cell was read from."""
    return cell.encode("utf-8", "surrogateescape")
