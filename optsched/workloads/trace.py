"""`read_trace`: a trace becomes an instance, or one sentence says which row prevents it."""

from __future__ import annotations

import csv
import io
import itertools
import re
import sys
import warnings
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from optsched._internal.arguments import as_count
from optsched._internal.arrays import MAX_STEP, checked_memory, checked_step
from optsched._internal.request_rules import BrokenRule, broken_rules
from optsched.errors import InstanceError, named, require
from optsched.problem.instance import Instance
from optsched.workloads import formats
from optsched.workloads.families import family_from_text
from optsched.workloads.formats import (
    JSONL_FORMATS,
    MEASURED,
    NUMBER,
    WHOLE,
    Values,
    conversations,
    csv_header,
    csv_numbers,
    csv_rows,
    jsonl_format,
    jsonl_rows,
    keys_of,
    numbered,
    opened,
    read_cells,
    recognised,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.workloads.formats import Block, TraceFormat

_HEADER_BYTES = 1 << 16
#: Relative error of a clock time, a step length and their quotient, with one operation to spare.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class SkippedRow:
    """A row of a trace that cannot be a request."""

    line: int  # on which it starts; the first of the file is 1
    column: str | None  # None where the row as a whole is at fault
    value: str  # text of the cell
    reason: str

    def __str__(self) -> str:
        cell = f", column {self.column}, value {self.value!r}" if self.column is not None else ""
        return f"line {self.line}{cell}: {self.reason}"


class Measured(NamedTuple):
    """What an engine needed for the requests of a log: seconds, nan where they are unknown."""

    arrivals: FloatArray  # since the first one
    first_token: FloatArray  # since the arrival, as `latency`
    latency: FloatArray


@dataclass
class Trace:
    """A trace of a known format on its way to an instance."""

    path: Path
    form: TraceFormat
    header: list[str]
    limit: int
    strict: bool
    first: bytes  # the header line; or the first objects, and blank lines before
    #: Column, None for the row as a whole, and reason by number of the row.
    faults: dict[int, tuple[str | None, str]] = field(default_factory=dict)
    #: Seconds since the first arrival, in the order of the instance; filled in with it.
    measured: dict[str, FloatArray] = field(default_factory=dict)

    def instance(
        self, stream: BinaryIO, memory: int, seconds_per_step: float
    ) -> tuple[Instance, list[SkippedRow]]:
        """Read the rows after the header line."""
        try:
            columns = self._columns(stream)
            fields = self._requests(columns, memory, seconds_per_step)
            skipped = self._located() if self.faults else []
        except csv.Error as error:
            raise InstanceError(f"{self.path}, {error}; check its quotes") from None
        if self.strict and skipped:
            raise self._refusal(skipped[0], min(self.faults))
        self.measured = {name: fields.pop(name) for name in MEASURED if name in fields}
        if not fields or len(fields["prompts"]) == 0:
            first = f"; the first row has this fault: {skipped[0]}" if skipped else ""
            raise InstanceError(f"{self.path} has no request to read{first}")
        timed = self.form.clock in columns
        name = self.path.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".jsonl")
        seconds = seconds_per_step if timed else None
        blocks = self._blocks_of_tokens(columns, fields)
        fields |= blocks | {"memory": memory, "name": name, "seconds_per_step": seconds}
        return Instance(**fields), skipped

    def _blocks(self, lines: Iterable[bytes], line: int = 2) -> Generator[Block, None, None]:
        size = min(formats.BLOCK, self.limit)
        if self.form in JSONL_FORMATS:
            lines = itertools.chain(io.BytesIO(self.first), lines)
            return jsonl_rows(lines, self.header, size, self._is_request)
        return csv_rows(lines, size, line)

    def _is_request(self, line: int, content: dict[str, Any]) -> bool:
        """Say whether an object is a request; refuse one with a key that means nothing."""
        if not self.form.nested and not content.keys() <= self.form.kinds.keys():
            recognised(list(content), str(self.path), (self.form,), line)
        key, value = self.form.only
        return not key or content.get(key) == value

    def _columns(self, stream: BinaryIO) -> dict[str, Values]:
        """Read the columns, noting the rows that cannot be read."""
        parts: dict[str, list[Values]] = {}
        count, read, rest, width = 0, 0, list[bytes](), len(self.header)
        kinds = [self.form.kinds[column] for column in self.header]
        plain = self.form in JSONL_FORMATS and not self.form.nested  # any line may lack any key
        absent = set(self.header).difference(self.form.required) if plain else set[str]()
        if self.form not in JSONL_FORMATS and set(kinds) <= {NUMBER, WHOLE}:
            whole = np.array([kind is WHOLE for kind in kinds])
            tables, read, rest = csv_numbers(stream, whole, self.limit)
            for table in tables:
                count += len(table)
                for column, kind, values in zip(self.header, kinds, table.T, strict=True):
                    values = values.astype(np.int64) if kind is WHOLE else values.copy()
                    parts.setdefault(column, []).append(values)
        done = count == self.limit
        for _, block in () if done else self._blocks(itertools.chain(rest, stream), read + 2):
            rows = list(filter(None, block))[: self.limit - count]
            if set(map(len, rows)) - {width}:
                for at, row in enumerate(rows):
                    if len(row) != width:
                        self.faults[count + at] = (None, self._ragged(row))
                        rows[at] = [""] * width
            columns = zip(self.header, kinds, zip(*rows, strict=True), strict=False)
            for column, kind, cells in columns:
                if column in absent and any(cells):
                    absent.remove(column)
                values, unreadable = read_cells(cells, kind)
                parts.setdefault(column, []).append(values)
                for at in np.flatnonzero(unreadable).tolist():
                    self.faults.setdefault(count + at, (column, f"must be {kind.name}"))
            count += len(rows)
            if count == self.limit or (self.strict and self.faults):
                break
        return {name: np.concatenate(each) for name, each in parts.items() if name not in absent}

    def _ragged(self, row: list[str]) -> str:
        if self.form in JSONL_FORMATS:
            return "the line holds no JSON object"
        return f"the row has {len(row)} cells, but the header has {len(self.header)}"

    def _requests(
        self, columns: dict[str, Values], memory: int, seconds_per_step: float
    ) -> dict[str, Any]:
        """Return the fields of the rows that can be requests, noting the others."""
        count = len(next(iter(columns.values()), ()))
        rows = np.delete(np.arange(count), list(self.faults))
        fields: dict[str, Any] = {
            self.form.fields[column]: values[rows]
            for column, values in columns.items()
            if column in self.form.fields
        }
        if self.form.clock in columns:
            times = columns[self.form.clock][rows]
            if self.form.nested:  # written as requests end, or by conversations
                order = np.argsort(times, kind="stable")
                rows, times = rows[order], times[order]
                fields = {name: values[order] for name, values in fields.items()}
            start = times[0] if self.form.public and len(times) else 0
            fields["arrivals"] = to_steps(
                times, start, self.form.units_per_second, seconds_per_step
            )
            for name in fields.keys() & set(MEASURED):
                fields[name] = (fields[name] - start) / self.form.units_per_second
            fields["arrived"] = (times - start) / self.form.units_per_second
        given = {name: columns[name][rows] for name in self.form.session if name in columns}
        fields |= conversations(self.form, given)
        while rule := next(self._broken_rules(fields, memory), None):
            column = self.form.column(rule.column, self.header)
            for index in np.flatnonzero(rule.mask).tolist():
                # Column and value are named as they stand in the file.
                reason = re.sub(r"^\w+ is \S+, (?!but |which )", "is ", rule.describe(index))
                reason = re.sub(r"^\w+ is \S+, but ", "", reason)
                self.faults[int(rows[index])] = (column, reason)
            rows = rows[~rule.mask]
            fields = {name: values[~rule.mask] for name, values in fields.items()}
        return fields

    def _blocks_of_tokens(
        self, columns: dict[str, Values], fields: dict[str, Any]
    ) -> dict[str, Any]:
        """Return ids and size of blocks, where both are known and the size is always the same."""
        size: Any = self.form.hash_block if "hash_ids" in fields else None
        if isinstance(size, str):
            sizes = sorted({*np.delete(columns[size], list(self.faults)).tolist()} - {0})
            if len(sizes) > 1:
                raise InstanceError(
                    f"{self.path} has blocks of {' and '.join(map(str, sizes))} tokens; split it "
                    f"by {self.form.hash_block}"
                )
            size = sizes[0] if sizes else None
        return {"hash_ids": fields["hash_ids"] if size else None, "hash_block": size}

    def _broken_rules(self, fields: dict[str, Values], memory: int) -> Iterator[BrokenRule]:
        numbers = {
            name: values for name, values in fields.items() if name not in ("labels", "hash_ids")
        }
        if self.form.public and numbers:
            prompts = numbers["prompts"]
            if (mask := prompts == 0).any():
                reason = f"prompts is 0, which in a trace of the {self.form.name} format is missing"
                yield BrokenRule("prompts", mask, prompts, reason, numbers, memory)
        if numbers:
            yield from broken_rules(numbers, memory)

    def _located(self) -> list[SkippedRow]:
        """Read the file again to find the lines and cells of all faults, or of the first."""
        if not self.path.is_file():
            raise InstanceError(
                f"{self.path} has a row at fault, but a pipe cannot be read again to name it; "
                "save the trace as a file"
            )
        skipped: list[SkippedRow] = []
        with opened(self.path) as stream:
            stream.read(len(self.first))
            for at, (line, row) in enumerate(numbered(self._blocks(stream))):
                if at not in self.faults:
                    continue
                column, reason = self.faults[at]
                cell = "" if column is None else row[self.header.index(column)]
                value = cell.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
                skipped.append(SkippedRow(line, column, value, reason))
                if self.strict or len(skipped) == len(self.faults):
                    break
        return skipped

    def _refusal(self, row: SkippedRow, request: int) -> InstanceError:
        return InstanceError(
            f"{self.path}, {row} (skip_invalid leaves such rows out)",
            column=row.column,
            request=request,
            value=row.value,
            reason=row.reason,
        )


def to_steps(
    times: Values, start: float, units_per_second: int, seconds_per_step: float
) -> IntArray:
    """Turn clock times into the first steps that begin no earlier."""
    seconds = (times - start) / units_per_second
    # Integers are subtracted exactly; doubles carry the rounding of the times themselves.
    size = seconds if times.dtype.kind == "i" else (np.abs(times) + abs(start)) / units_per_second
    with np.errstate(over="ignore"):
        steps = np.ceil((seconds - _ROUNDING * np.abs(size)) / seconds_per_step)
    return np.clip(steps, -MAX_STEP, MAX_STEP + 1).astype(np.int64)


def read_trace(
    path: str | Path,
    memory: int | None = None,
    *,
    limit: int | None = None,
    seconds_per_step: float = 0.05,
    skip_invalid: bool = False,
) -> Instance:
    r"""Read an instance from a trace, a JSON file or the name of a family.

    A trace is a CSV, plain or gzipped, with columns ``prompt_tokens`` and ``output_tokens``
    and, in any order, ``arrival`` (steps) or ``arrival_s`` (seconds), ``weight``, ``deadline``,
    ``output_lower``, ``output_upper``, ``output_estimate``, ``priority`` and ``label``; or one of
    the public traces: Azure LLM inference 2023 to 2025, BurstGPT, Vidur; or JSON lines of Mooncake,
    Qwen Bailian, TraceLab, Dynamo or AIPerf. The header, or the keys of the first line, tell which.
    Ids of blocks become ``hash_ids``; tenant, conversation and turn become ``labels``, such as
    ``text/159/2``, and conversations ``clients``.

    An arrival after :math:`t` seconds becomes step :math:`\lceil t / \mathtt{seconds\_per\_step}
    \rceil`, because a request cannot start before it arrives. Public traces start when their first
    request arrives; ``arrival_s`` is taken as it is.

    Parameters
    ----------
    path
        The file, or ``family:NAME,n=...,seed=...`` with parameters of `optsched.family`.
    memory
        Memory of the worker in tokens; overrides that of a JSON instance or a family.
    limit
        Read at most this many rows, from the start.
    seconds_per_step
        Length of a step, used where arrivals are given in seconds.
    skip_invalid
        Leave out, with a warning, rows that cannot be requests; `read_trace_skipping` lists them.

    Raises
    ------
    InstanceError
        If a row cannot be a request and `skip_invalid` is false, or there is nothing to read. It
        names file, line (the header being line 1), column and value.

    Examples
    --------
    >>> import pathlib, tempfile, optsched
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "chat.csv")
    ...     _ = path.write_text("prompt_tokens,output_tokens,arrival_s\n12,43,0\n9,85,1.1\n")
    ...     optsched.read_trace(path, memory=1000, seconds_per_step=0.1).arrivals
    array([ 0, 11])
    """
    if not skip_invalid:
        return _read(path, memory, limit, seconds_per_step, strict=True)[0]
    instance, skipped = read_trace_skipping(
        path, memory, limit=limit, seconds_per_step=seconds_per_step
    )
    if skipped:
        warnings.warn(
            f"{path}: left {len(skipped)} rows out, the first for {skipped[0]}", stacklevel=2
        )
    return instance


def read_trace_skipping(
    path: str | Path,
    memory: int | None = None,
    *,
    limit: int | None = None,
    seconds_per_step: float = 0.05,
) -> tuple[Instance, list[SkippedRow]]:
    """Read a trace as `read_trace` does, without the rows that cannot be requests; list those."""
    return _read(path, memory, limit, seconds_per_step, strict=False)[:2]


def read_measured(
    path: str | Path,
    memory: int | None = None,
    *,
    limit: int | None = None,
    seconds_per_step: float = 0.05,
) -> tuple[Instance, Measured]:
    """Read a log as `read_trace` does, with what was measured of its requests, in their order."""
    instance, _, seconds = _read(path, memory, limit, seconds_per_step, strict=True)
    unknown = np.full(len(instance), np.nan)
    arrivals, first, last = (seconds.get(name, unknown) for name in MEASURED)
    if np.isnan(first).all() and np.isnan(last).all():
        raise InstanceError(f"{path} has no times of tokens, only requests; pass a measured log")
    return instance, Measured(arrivals, first - arrivals, last - arrivals)


def _read(
    path: str | Path, memory: int | None, limit: int | None, seconds_per_step: float, strict: bool
) -> tuple[Instance, list[SkippedRow], dict[str, FloatArray]]:
    if limit is None:
        limit = sys.maxsize
    limit = as_count("limit", limit, most=sys.maxsize, of=" of rows")
    checked_step(seconds_per_step)
    if memory is not None:
        memory = checked_memory(memory)
    if str(path).startswith("family:"):
        return _head(family_from_text(str(path), memory), limit), [], {}
    require(path, (str, PathLike), "the trace", "a file, or family:NAME", InstanceError)
    path = Path(path)
    with opened(path) as stream:
        start, first = stream.peek(1), b""
        if not start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
            first = stream.readline(_HEADER_BYTES)
            header = csv_header(first, str(path))
            form = recognised(header, str(path))
        else:
            while not first.strip():
                first += stream.readline()
            kind = jsonl_format(first)
            if kind is None and ".jsonl" not in path.suffixes:
                return _head(_from_json(path, first + stream.read(), memory), limit), [], {}
            keys = keys_of(first, str(path))
            if kind is None:
                known = ", ".join(form.name for form in JSONL_FORMATS)
                raise InstanceError(
                    f"{path}, line 1: the keys {', '.join(keys[:5])} are of no kind of JSON lines "
                    f"that is known ({known}); write a CSV with prompt_tokens and output_tokens"
                )
            form, header = kind, list(kind.kinds)
            if strict and not kind.nested:
                recognised(keys, str(path), (kind,))
        if memory is None:
            raise InstanceError(
                f"{path} does not say how much the worker holds; pass the memory (--memory M)"
            )
        trace = Trace(path, form, header, limit, strict, first)
        return *trace.instance(stream, memory, seconds_per_step), trace.measured


def _from_json(path: Path, content: bytes, memory: int | None) -> Instance:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InstanceError(f"{path} is not UTF-8 text; give an instance as JSON") from None
    with named(path):
        instance = Instance.from_json(text)
        return instance if memory is None else instance.replace(memory=memory)


def _head(instance: Instance, limit: int) -> Instance:
    return instance if len(instance) <= limit else instance.take(range(limit))
