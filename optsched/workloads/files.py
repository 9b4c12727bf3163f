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
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

BLOCK = 1 << 22  # bytes parsed at a time
GZIP_MAGIC = b"\x1f\x8b"

#: The cells of a record by column, or the reason why it has none.
Record = dict[str, str] | str


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, packed with gzip or not, and name it in every error while it is being read.

    Parameters
    ----------
    path
        The file.

    Yields
    ------
    BinaryIO
        Its unpacked bytes.

    Raises
    ------
    InstanceError
        If the file is missing, empty, no file, not readable or damaged.
    """
    try:
        with path.open("rb") as raw:
            start = raw.peek(2)[:2]
            if start != GZIP_MAGIC and path.suffix == ".gz" and start:
                raise InstanceError(f"{path} is not packed with gzip; rename it or pack it")
            with gzip.open(raw) if start == GZIP_MAGIC else raw as stream:
                if not cast("io.BufferedReader", stream).peek(1):
                    raise InstanceError(f"{path} is empty; it needs a header line and requests")
                yield cast("BinaryIO", stream)
    except FileNotFoundError:
        raise InstanceError(f"there is no file {path}; check its name") from None
    except IsADirectoryError:
        raise InstanceError(f"{path} is a directory; name a file in it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InstanceError(f"{path} is a damaged or truncated gzip file; fetch it again") from None
    except OSError as error:
        raise InstanceError(f"{path} cannot be read: {error.strerror or error}") from None


def csv_header(line: bytes, source: str) -> list[str]:
    """Split a header line into the names of its columns.

    Parameters
    ----------
    line
        The first line of a file.
    source
        The file, for the message.

    Returns
    -------
    list[str]
        The names, without spaces around them.

    Raises
    ------
    InstanceError
        If the line is not text or no line.

    Examples
    --------
    >>> csv_header(b"prompt_tokens, output_tokens", "trace.csv")
    ['prompt_tokens', 'output_tokens']
    """
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InstanceError(f"{source}, line 1: this is not UTF-8 text; give a CSV or JSONL trace")
    try:
        return [name.strip() for name in next(csv.reader([text]), [""])]
    except csv.Error:
        raise InstanceError(
            f"{source}, line 1: the header cannot be split into columns; check its line end"
        ) from None


def csv_batches(
    stream: BinaryIO, header: list[str], malformed: list[str]
) -> Iterator[dict[str, Any]]:
    """Read a CSV file after its header line.

    Parameters
    ----------
    stream
        The bytes after the header line.
    header
        The names of the columns.
    malformed
        Receives a word for each row with a wrong number of cells, which no batch holds.

    Yields
    ------
    dict[str, Any]
        Pyarrow arrays of bytes by column.

    Raises
    ------
    csv.Error
        If the bytes cannot be split into rows.
    """
    import pyarrow as pa
    import pyarrow.csv

    def leave_out(_: Any) -> str:
        malformed.append("ragged")
        return "skip"

    try:
        with pa.csv.open_csv(
            stream,
            pa.csv.ReadOptions(column_names=header, block_size=BLOCK),
            pa.csv.ParseOptions(invalid_row_handler=leave_out),
            pa.csv.ConvertOptions(
                # Bytes, so that a stray byte spoils its own cell only.
                column_types=dict.fromkeys(header, pa.binary()),
                strings_can_be_null=False,
            ),
        ) as reader:
            for batch in reader:
                yield dict(zip(header, batch.columns, strict=True))
    except pa.ArrowInvalid as error:
        if "Empty CSV" not in str(error):
            raise csv.Error(str(error).split("\n")[0]) from None


def csv_records(stream: BinaryIO) -> Generator[tuple[int, Record], None, None]:
    """Read a CSV file slowly, with the line that each row starts on.

    Parameters
    ----------
    stream
        The bytes from the header line on.

    Yields
    ------
    tuple[int, Record]
        Number of a line, the header being line 1, and the cells of the row.

    Raises
    ------
    csv.Error
        If the bytes cannot be split into rows.
    """
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="backslashreplace", newline="")
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
    finally:
        text.detach()  # the stream belongs to the caller


def jsonl_batches(
    stream: BinaryIO, names: Sequence[str], malformed: list[str]
) -> Iterator[dict[str, Any]]:
    """Read a file with one JSON object per line.

    Parameters
    ----------
    stream
        The bytes of the file.
    names
        The keys to read.
    malformed
        Receives the lines that hold no object, which no batch holds.

    Yields
    ------
    dict[str, Any]
        Pyarrow arrays by key: numbers, or bytes where a line needs a closer look.
    """
    import pyarrow as pa
    import pyarrow.json

    options = pa.json.ParseOptions(
        explicit_schema=pa.schema([(name, pa.float64()) for name in names]),
        unexpected_field_behavior="ignore",
    )
    while lines := stream.readlines(BLOCK):
        lines = [line for line in lines if line.strip()]
        block = b"".join(lines)
        try:
            table = pa.json.read_json(
                io.BytesIO(block), pa.json.ReadOptions(block_size=len(block) + 1), options
            )
            exact = table.num_rows == len(lines)  # not so with two objects on a line
        except pa.ArrowInvalid:
            exact = False
        if exact:
            yield {name: table[name].combine_chunks() for name in names}
            continue
        records = [record for _, record in jsonl_records(io.BytesIO(block))]
        malformed += [record for record in records if isinstance(record, str)]
        objects = [record for record in records if not isinstance(record, str)]
        yield {
            name: pa.array([cells.get(name, "").encode() for cells in objects], pa.binary())
            for name in names
        }


def jsonl_records(stream: BinaryIO) -> Generator[tuple[int, Record], None, None]:
    """Read a file with one JSON object per line slowly.

    Parameters
    ----------
    stream
        The bytes of the file.

    Yields
    ------
    tuple[int, Record]
        Number of a line, and the values on it as JSON text.

    Examples
    --------
    >>> list(jsonl_records(io.BytesIO(b'{"timestamp": 0, "hash_ids": [1]}')))
    [(1, {'timestamp': '0', 'hash_ids': '[1]'})]
    """
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
