"""`read_trace`: a trace becomes an instance, or one sentence says which row prevents it."""

from __future__ import annotations

import csv
import itertools
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal import arrays
from optsched._internal.arguments import as_count
from optsched.errors import InstanceError, named, require, require_known
from optsched.problem.instance import INTEGER_FIELDS, Instance
from optsched.workloads import formats
from optsched.workloads.families import Fields, family_from_text
from optsched.workloads.formats import CLIENT, EXACT, NATIVE, NOBODY, UNITS, WHOLE, is_readable
from optsched.workloads.reports import UNKNOWN, status_column, why_left_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from io import BufferedReader

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched._internal.files import JSON
    from optsched.workloads.formats import Block, Table, TraceFormat, Values

#: Relative error of a clock time, a step length and their quotient, with one operation to spare.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)
_DATES = 10**8, 4 * 10**9  # seconds since 1970: in 1973, after which none counts from 0, and 2096
_PLAIN = {
    WHOLE.read: "int64",
    CLIENT.read: "int64",
    EXACT.read: "float64",
    formats.STAMP.read: formats.DATE,
}
_AS_TIMES = {"arrivals": "clock", "deadlines": "due"}
_SECONDS = ("arrived", *formats.MEASURED)
_COARSE = 1e-3  # share by which two times of one event may differ, as tools round them
_FAST = 100.0  # requests per second, from which on the unit of their times is doubtful


@dataclass(frozen=True)
class SkippedRow:
    """A row of a trace that cannot be a request."""

    line: int  # on which it starts; the first of the file is 1
    column: str | None  # None where the row as a whole is at fault
    value: str  # text of the cell
    reason: str
    place: str = "line"  # or "entry", of a list

    def __str__(self) -> str:
        cell = f", column {self.column}, value {self.value!r}" if self.column is not None else ""
        return f"{self.place} {self.line}{cell}: {self.reason}"


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
    limit: int
    strict: bool
    #: Role of a column, None for the row as a whole, and reason by number of the row.
    faults: dict[int, tuple[str | None, str]] = field(default_factory=dict)
    keys: dict[str, None] = field(default_factory=dict)  # all columns that were seen
    measured: Fields = field(default_factory=dict)  # seconds, in the instance's order
    changes: list[str] = field(default_factory=list)  # of what stands in the file
    left_out: Counter[str] = field(default_factory=Counter)  # requests that were not measured
    unknown: int = 0  # requests with a status that no tool is known to write

    def instance(
        self, table: Table, stream: BufferedReader, memory: int, seconds_per_step: float
    ) -> tuple[Instance, list[SkippedRow]]:
        """Read the rows after the header line."""
        try:
            columns = self._columns(table, stream)
            fields = self._requests(columns, memory, seconds_per_step)
            skipped = self._located() if self.faults else []
        except csv.Error as error:
            raise InstanceError(f"{self.path}, {error}; check its quotes") from None
        if self.strict and skipped:
            raise InstanceError(
                f"{self.path}, {skipped[0]} (skip_invalid leaves such rows out)",
                column=skipped[0].column,
                request=min(self.faults),
                value=skipped[0].value,
                reason=skipped[0].reason,
            )
        if not fields or len(fields["prompts"]) == 0:
            first = f"; the first row has this fault: {skipped[0]}" if skipped else ""
            gone = f" that was measured ({self.note()})" if self.left_out else " to read"
            raise InstanceError(f"{self.path} has no request{gone}{first}")
        if "follows" in fields and (skipped or self.left_out):
            which = str(skipped[0]) if skipped else self.note()
            said = f"follows counts rows, so that none can be left out; correct {which}"
            raise InstanceError(said)
        seconds = seconds_per_step if "clock" in columns else None
        fields |= self._blocks_of_tokens(fields)
        name = formats.bare_name(self.path)
        return Instance(**fields, memory=memory, name=name, seconds_per_step=seconds), skipped

    def note(self) -> str:
        """Say what was read as what, what was not read, and what was changed."""
        columns, own = self.form.columns, NATIVE.columns
        there = {
            role: name for role in columns if (name := formats.first_in(columns[role], self.keys))
        }
        units = {"clock": f" ({self.form.unit})"}
        renamed = [
            f"{name}{units.get(role, '')} -> {own.get(role, role)}"
            for role, name in there.items()
            if name != own.get(role)
        ]
        said = [f"read as {self.form.name}: {', '.join(renamed)}"] if renamed else []
        known = {*there.values(), *filter(status_column, self.keys)}
        if unread := [name for name in self.keys if name and name not in known]:
            said.append(f"not read: {', '.join(unread)}")
        if self.left_out:
            gone = ", ".join(f"{count:,} {status}" for status, count in self.left_out.items())
            said.append(f"left out, as not measured: {gone}")
        if self.unknown:
            said.append(f"{self.unknown:,} requests have a status that is not known, and count")
        return "; ".join(said + self.changes)

    @property
    def is_timed(self) -> bool:
        """Whether the file says when requests arrived."""
        columns = (self.form.columns.get(role, "") for role in formats.TIMES)
        return any(formats.first_in(column, self.keys) for column in columns)

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(self.form.columns.values()))

    def blocks(self, table: Table, lines: Iterable[bytes], line: int = 2) -> Iterator[Block]:
        """Yield the cells of requests that were measured, and count the others."""
        size = min(formats.BLOCK, self.limit)
        if table.header:
            blocks = formats.csv_rows(lines, size, line)
            if not (said := _statuses(table.header)):
                return blocks
            width = len(table.header)
            return (
                [
                    (n, row)
                    for n, row in block
                    if len(row) != width or self._is_measured((what, row[at]) for at, what in said)
                ]
                for block in blocks
            )
        return table.rows(self.form, size, self._is_request, self.left_out)

    def _is_request(self, row: JSON) -> bool:
        self.keys |= dict.fromkeys(row)
        key, value = self.form.only
        if key and row.get(key) != value:
            return False
        said = [(what, row[name]) for name in row if (what := status_column(name)) is not None]
        return self._is_measured((what, formats.cell_of(value, True)) for what, value in said)

    def _is_measured(self, said: Iterable[tuple[tuple[str, str], str]]) -> bool:
        """Count a request that its columns leave out."""
        if (status := why_left_out(said)) and status != UNKNOWN:
            self.left_out[status] += 1
            return False
        self.unknown += bool(status)
        return True

    def _columns(self, table: Table, stream: BufferedReader) -> dict[str, Values]:
        """Read the columns by role, noting the rows that cannot be read."""
        parts: dict[str, list[Values]] = {role: [] for role in self.form.columns}
        count, read, rest = 0, 0, list[bytes]()
        header = table.header or self._names
        places = {role: header.index(column) for role, column in self.form.columns.items()}
        self.keys.update(dict.fromkeys(table.header))
        kinds = {role: self.form.kind(role).read for role in parts}
        dtypes = {places[role]: _PLAIN.get(read, "") for role, read in kinds.items()}
        plain, size = table.header and self.form.unit and all(dtypes.values()), formats.BYTES
        plain = plain and not _statuses(table.header)
        while plain and count < self.limit and (text := stream.read(size) + stream.readline()):
            try:
                cells = formats.csv_columns(text, dtypes, len(header))
            except (ValueError, OverflowError):
                rest = [text]
                break
            for role, at in places.items():
                parts[role].append(cells[at][: self.limit - count])
            count += len(parts["prompts"][-1])
            read += formats.count_of(b"\n", text)
        # In JSON any object may lack any key; what none has, no request has.
        blank = {
            role: list[int]() for role in parts if not (table.header or role in formats.NEEDED)
        }
        done = count == self.limit
        for block in () if done else self.blocks(table, itertools.chain(rest, stream), read + 2):
            rows = [row for _, row in block if row][: self.limit - count]
            for at, row in enumerate(rows):
                if len(row) != len(header):
                    said = f"the row has {len(row)} cells, but the header has {len(header)}"
                    said = said if table.header else f"the {table.place} holds no JSON object"
                    self.faults[count + at] = (None, said)
                    rows[at] = [""] * len(header)
            cells = list(zip(*rows, strict=True))
            for role, place in places.items() if rows else ():
                if role == "clock":
                    self._find_unit(cells[place])
                kind = self.form.kind(role)
                if role in blank and not any(cells[place]):
                    blank[role] += range(count, count + len(rows))
                    if not is_readable("", kind):
                        parts[role].append(np.full(len(rows), kind.filler))
                        continue
                values, unreadable = formats.read_cells(cells[place], kind)
                parts[role].append(values)
                for at in np.flatnonzero(unreadable).tolist():
                    self.faults.setdefault(count + at, (role, f"must be {kind.name}"))
            count += len(rows)
            if count == self.limit or (self.strict and self.faults):
                break
        for role, lacking in blank.items():
            kind = self.form.kind(role)
            if len(lacking) == count:
                del parts[role]
            elif not is_readable("", kind):
                fault = role, f"must be {kind.name}"
                self.faults = {**dict.fromkeys(lacking, fault), **self.faults}
        return {role: np.concatenate(each) for role, each in parts.items() if each}

    def _find_unit(self, cells: Sequence[str]) -> None:
        """Look at a cell for dates, where numbers are expected; refuse numbers without a unit."""
        cell = next(filter(None, cells), "")
        if not is_readable(cell, EXACT):
            if self.form.kind("clock").read in _PLAIN and is_readable(cell, formats.STAMP):
                self.form = replace(self.form, unit="date")
        elif not self.form.unit:
            raise _without_unit(self.form.columns["clock"], cell)

    def _requests(self, columns: dict[str, Values], memory: int, seconds_per_step: float) -> Fields:
        """Return the fields of the rows that can be requests, noting the others."""
        rows = np.delete(np.arange(len(columns.get("prompts", ()))), list(self.faults))
        fields: Fields = dict(columns)
        if self.faults:
            fields = {role: values[rows] for role, values in columns.items()}
        times: Values = next((fields[role] for role in formats.TIMES if role in fields), rows)
        late = times < np.maximum.accumulate(times)
        if late.any() and "follows" not in fields:  # which counts rows
            self.changes += [f"sorted by arrival, as {late.sum()} requests stood behind later ones"]
            order = np.argsort(times, kind="stable")
            rows, fields = rows[order], {role: each[order] for role, each in fields.items()}
        if "clock" in fields:
            self._count_from_arrivals(fields, seconds_per_step)
        else:  # instants are those of a clock
            if "due" in fields:
                raise InstanceError(
                    f"{self.path}: {self.form.columns['due']} is a time, but arrivals are not; "
                    "name their column arrival_s, or count both in steps (arrival, deadline)"
                )
            fields = {role: each for role, each in fields.items() if role not in formats.INSTANTS}
        if "due" in fields:  # the last step that ends in time; empty where any time will do
            due = (fields["arrived"] + fields.pop("due")) * (1 + _ROUNDING) / seconds_per_step
            due = np.clip(
                np.where(np.isnan(due), arrays.MAX_STEP, np.floor(due)), -1, arrays.MAX_STEP
            )
            fields["deadlines"] = due.astype(np.int64)
        for role in fields.keys() & {"ttft", "latency", "gaps"}:
            fields[role] = fields[role] / self._units_of(role, fields[role])
        people = {role: fields.pop(role) for role in formats.PEOPLE if role in fields}
        fields = formats.conversations(people) | fields
        if (clients := fields.get("clients")) is not None and (no := clients == NOBODY).any():
            fields["clients"] = np.where(no, max(int(clients.max()), -1) + 1, clients)
        for role, mask, reason in list(self._impossible(fields)):
            said = f"{reason}; leave the cell empty where it is unknown"
            self.faults = dict.fromkeys(rows[mask].tolist(), (role, said)) | self.faults
        if self.faults:
            kept = ~np.isin(rows, list(self.faults))
            rows, fields = rows[kept], {role: each[kept] for role, each in fields.items()}
        while rule := next(self._broken_rules(fields, memory), None):
            role = _AS_TIMES.get(rule.column, "")
            role = role if role in columns else rule.column
            for index in np.flatnonzero(rule.mask).tolist():
                # Column and value are named as they stand in the file.
                reason = re.sub(r"^\w+ is \S+, (?!but |which )", "is ", rule.describe(index))
                reason = re.sub(r"^\w+ is \S+, but ", "", reason)
                self.faults[int(rows[index])] = (role, reason)
            rows = rows[~rule.mask]
            fields = {name: values[~rule.mask] for name, values in fields.items()}
        self.measured = {role: fields.pop(role) for role in _SECONDS if role in fields}
        return fields

    def _count_from_arrivals(self, fields: Fields, seconds_per_step: float) -> None:
        """Turn times of arrival into steps and seconds since the first, instants into durations."""
        times = fields.pop("clock")
        units, start = UNITS[self.form.unit], times.min() if len(times) else 0
        own = self.form.columns["clock"] == NATIVE.columns["clock"]
        if own and start / units >= _DATES[0]:
            self.changes += ["arrivals since 1970 count from the first"]
        elif own:  # as it is
            start = 0
        start *= bool(start / units < _DATES[1])  # else it is refused as too late
        self._doubt(times, units)
        fields["arrivals"] = to_steps(times, start, units, seconds_per_step)
        fields["arrived"] = (times - start) / units
        for role in fields.keys() & {*formats.INSTANTS}:
            per = self._units_of(role, fields[role])
            if per == units:  # as far as possible in whole numbers
                fields[role] = (fields[role] - times) / units
            else:
                fields[role] = fields[role] / per - times / units

    def _doubt(self, times: Values, units: int) -> None:
        """Note a unit that only the format tells, where hardly anyone sends so many requests."""
        span = (float(times.max()) - float(times.min())) / units if len(times) else 0.0
        column = formats.first_in(self.form.columns["clock"], self.keys)
        told = self.form.exact or formats.unit_in(column)
        if span > 0 and len(times) / span > _FAST and self.form.unit in ("ms", "us") and not told:
            self.changes.append(
                f"{column} is read in {self.form.unit}, by which {len(times) / span:,.0f} requests "
                "come per second; if it counts seconds, pass --time-unit s"
            )

    def _units_of(self, role: str, values: Values) -> int:
        """Return how many units of what was measured are a second."""
        if (unit := self.form.unit_of(role)) in UNITS:
            return UNITS[unit]
        raise _without_unit(self.form.columns[role], f"{np.nanmax(values, initial=0):g}")

    def _impossible(self, fields: Fields) -> Iterator[tuple[str, BoolArray, str]]:
        """Find measurements that cannot be: role, rows and reason."""
        last = {role for role in ("latency", "last_token") if role in fields}
        first = {role for role in ("ttft", "first_token") if role in fields}
        for role in (*first, *last):
            yield role, fields[role] <= 0, "is not after the arrival"
        for role, before in itertools.product(last, first):
            least = fields[before] * (1 - _COARSE) - _COARSE**2
            yield (
                role,
                fields[role] < least,
                f"is before the first token ({self.form.columns[before]})",
            )

    def _blocks_of_tokens(self, fields: Fields) -> Fields:
        """Return ids and size of blocks, where both are known and the size is always the same."""
        sizes = sorted({*fields.pop("hash_block", np.array([0])).tolist()} - {0})
        size = self.form.block_tokens or next(iter(sizes), None)
        if len(sizes) > 1:
            said = f"{self.path} has blocks of {' and '.join(map(str, sizes))} tokens"
            raise InstanceError(f"{said}; split it by {self.form.columns['hash_block']}")
        if size is None and any(map(len, fields.pop("hash_ids", ()))):
            said = "there are ids of blocks, but not how many tokens a block has"
            raise InstanceError(f"{said}; pass --columns block=16, or the column that says so")
        return {"hash_block": size if "hash_ids" in fields else None}

    def _broken_rules(self, fields: dict[str, Values], memory: int) -> Iterator[arrays.BrokenRule]:
        numbers = {name: fields[name] for name in (*INTEGER_FIELDS, "weights") if name in fields}
        if self.form.name != NATIVE.name and numbers:
            prompts = numbers["prompts"]
            if (mask := prompts == 0).any():
                reason = f"prompts is 0, which in a trace of the {self.form.name} format is missing"
                yield arrays.BrokenRule("prompts", mask, prompts, reason, numbers, memory)
        if numbers:
            yield from arrays.broken_rules(numbers, memory)

    def _located(self) -> list[SkippedRow]:
        """Read the file again to find the lines and cells of all faults, or of the first."""
        if not self.path.is_file():
            raise InstanceError(
                f"{self.path} has a row at fault, but a pipe cannot be read again to name it; "
                "save the trace as a file"
            )
        skipped: list[SkippedRow] = []
        again = replace(self, left_out=Counter())  # they are counted already
        with formats.opened(self.path) as stream:
            table: Any = formats.tabulated(stream, self.path)
            rows = (row for block in again.blocks(table, stream) for row in block if row[1])
            for at, (line, row) in enumerate(rows):
                if at not in self.faults:
                    continue
                role, reason = self.faults[at]
                column = None if role is None else self.form.columns[role]
                cell = "" if column is None else row[(table.header or self._names).index(column)]
                value = cell.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
                skipped.append(SkippedRow(line, column, value, reason, table.place))
                if self.strict or len(skipped) == len(self.faults):
                    break
        return skipped


def _statuses(header: Sequence[str]) -> list[tuple[int, tuple[str, str]]]:
    """Return the columns that say which requests were measured, by place."""
    found = ((at, status_column(name)) for at, name in enumerate(header))
    return [(at, what) for at, what in found if what is not None]


def _without_unit(column: str, value: str) -> InstanceError:
    said = f"the unit of column {column}, with values such as {value}, is not known"
    said += "; pass --time-unit s, ms, us, ns or steps"
    return InstanceError(said, column=column, value=value)


def to_steps(
    times: Values, start: float, units_per_second: int, seconds_per_step: float
) -> IntArray:
    """Turn clock times into the first steps that begin no earlier."""
    seconds = (times - start) / units_per_second
    # Integers are subtracted exactly; doubles carry the rounding of the times themselves.
    size = seconds if times.dtype.kind == "i" else (np.abs(times) + abs(start)) / units_per_second
    with np.errstate(over="ignore"):
        steps = np.ceil((seconds - _ROUNDING * np.abs(size)) / seconds_per_step)
        steps = np.maximum(steps, np.floor(seconds / seconds_per_step))  # if rounding passes a step
    return np.clip(steps, -arrays.MAX_STEP, arrays.MAX_STEP + 1).astype(np.int64)


def read_trace(
    path: str | Path,
    memory: int | None = None,
    *,
    limit: int | None = None,
    seconds_per_step: float = 0.05,
    skip_invalid: bool = False,
    columns: Mapping[str, str] | str | None = None,
    time_unit: str | None = None,
    note: Callable[[str], None] | None = None,
) -> Instance:
    r"""Read an instance from a trace or a log, a JSON file or the name of a family.

    A trace of our own is a CSV with columns ``prompt_tokens`` and ``output_tokens`` and, in any
    order, ``arrival`` (steps) or ``arrival_s`` (seconds), ``deadline`` or ``deadline_s``,
    ``weight``, ``output_lower``, ``output_upper``, ``output_estimate``, ``priority``, ``client``,
    ``label``, ``follows``, ``pauses``, ``hash_ids`` and ``hash_block``. Logs of other
    tools are recognised by their columns; the page "From a trace to an answer" lists them, and how
    files may be packed. Tenant, conversation and turn become ``labels``, such as ``text/159/2``.

    An arrival after :math:`t` seconds becomes step :math:`\lceil t / \mathtt{seconds\_per\_step}
    \rceil`, because a request cannot start before it arrives. Requests are sorted by arrival.
    ``arrival_s`` counts from 0 unless it counts from 1970, all other times from the first arrival.

    Parameters
    ----------
    path
        The file, or a text ``family:NAME,n=...,seed=...`` with parameters of `optsched.family`.
    memory
        Memory of the worker in tokens; overrides that of a JSON instance or a family.
    limit
        Read at most this many rows, from the start.
    seconds_per_step
        Length of a step, used where arrivals are given in seconds.
    skip_invalid
        Leave out, with a warning, rows that cannot be requests; `read_trace_skipping` lists them.
    columns
        What columns of a log are, as a mapping or as text: ``prompt=A,output=B,arrival=C``; also
        ``client``, ``priority``, ``conversation``, ``turn``, ``label``, ``weight``, ``deadline``
        (steps), ``due`` (a time, as arrivals), ``prefix`` (ids of blocks) and ``block`` (their
        tokens: a column or a number). In JSON a column is a path of keys, such as
        ``usage.prompt_tokens``.
    time_unit
        Unit of the arrivals, "s", "ms", "us", "ns" or "steps", where neither format nor name of the
        column (``sent_ms``) nor dates tell it.
    note
        Called with one sentence on what was read as what, what was not read, and what was changed.

    Raises
    ------
    InstanceError
        If a row cannot be a request and `skip_invalid` is false, or there is nothing to read. It
        names file, line (the header being line 1) or entry of a list, column and value.

    Examples
    --------
    >>> import pathlib, tempfile, optsched
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "chat.csv")
    ...     _ = path.write_text("prompt_tokens,output_tokens,arrival_s\n12,43,0\n9,85,1.1\n")
    ...     optsched.read_trace(path, memory=1000, seconds_per_step=0.1).arrivals
    array([ 0, 11])
    """
    how: Fields = {"limit": limit, "seconds_per_step": seconds_per_step, "note": note}
    how |= {"columns": columns, "time_unit": time_unit, "left_out": (gone := Counter[str]())}
    instance, skipped, _ = _read(path, memory, strict=not skip_invalid, **how)
    if skipped:
        warnings.warn(
            f"{path}: left {len(skipped)} rows out, the first for {skipped[0]}", stacklevel=2
        )
    gone.pop("invalid", None)
    if gone and note is None:
        warnings.warn(f"{path}: left out, as not measured: {dict(gone)}", stacklevel=2)
    return instance


def read_trace_skipping(
    path: str | Path, memory: int | None = None, *, strict: bool = False, **how: Any
) -> tuple[Instance, list[SkippedRow]]:
    """Read a trace as `read_trace` does, without the rows that cannot be requests; list those.

    `left_out`, a `Counter`, counts the requests that were not measured.
    """
    return _read(path, memory, strict=strict, **how)[:2]


def read_measured(
    path: str | Path, memory: int | None = None, **how: Any
) -> tuple[Instance, Measured]:
    """Read a log as `read_trace` does, with what was measured of its requests, in their order.

    Parameters
    ----------
    path, memory, how
        As in `read_trace`. Columns of a log of your own may also be ``ttft`` and ``latency``
        (durations), or ``first_token`` and ``last_token`` (instants), which a trace of our own has
        as ``first_token_s`` and ``last_token_s``. A log without times of tokens
        raises an `InstanceError`.

    Returns
    -------
    Instance, Measured
        The requests, sorted by arrival; and of each the seconds of its arrival since the first one,
        and from it to its first token and to its last, nan where that is unknown.
    """
    strict = not how.pop("skip_invalid", False)
    instance, _, trace = _read(path, memory, measured=True, strict=strict, **how)
    seconds = {} if trace is None else trace.measured
    unknown = np.full(len(instance), np.nan)
    arrivals = seconds.get("arrived", instance.arrivals * float(how.get("seconds_per_step", 0.05)))
    first = seconds.get("ttft", seconds.get("first_token", unknown))
    last = seconds.get("latency", seconds.get("last_token", first + seconds.get("gaps", unknown)))
    if np.isnan(first).all() and np.isnan(last).all():
        raise InstanceError(f"{path} has no times of tokens, only requests; pass a measured log")
    return instance, Measured(arrivals if trace is None or trace.is_timed else unknown, first, last)


def _read(
    path: str | Path,
    memory: int | None,
    *,
    limit: int | None = None,
    seconds_per_step: float = 0.05,
    columns: Mapping[str, str] | str | None = None,
    time_unit: str | None = None,
    note: Callable[[str], None] | None = None,
    strict: bool = True,
    measured: bool = False,
    left_out: Counter[str] | None = None,
) -> tuple[Instance, list[SkippedRow], Trace | None]:
    most = sys.maxsize
    limit = most if limit is None else as_count("limit", limit, most=most, of=" of rows")
    arrays.checked_step(seconds_per_step)
    if memory is not None:
        memory = arrays.checked_memory(memory)
    given = formats.roles(columns)
    if time_unit is not None:
        require_known("time_unit", time_unit, (*UNITS, "steps"), InstanceError)
    if str(path).startswith("family:"):
        return _head(family_from_text(str(path), memory), limit), [], None
    require(path, (str, PathLike), "the trace", "a file, or family:NAME", InstanceError)
    path = Path(path)
    with named(path), formats.opened(path) as stream:
        table = formats.tabulated(stream, path)
        if isinstance(table, bytes):
            if given or time_unit is not None:
                raise InstanceError(
                    "an instance has no columns; leave --columns and --time-unit out"
                )
            return _head(_from_json(path, table, memory), limit), [], None
        where = f"{path}, line 1" if table.place == "line" else str(path)
        said = [table.note] if table.note else []
        form = formats.recognised(table, given, time_unit, measured, where, said.append)
        if memory is None:
            raise InstanceError(
                f"{path} does not say how much the worker holds; pass the memory (--memory M, or "
                "--llm and --gpu, such as llama-3.1-8b and h100-80gb)"
            )
        trace = Trace(path, form, limit, strict, changes=said)
        instance, skipped = trace.instance(table, stream, memory, seconds_per_step)
    if left_out is not None:
        left_out.update(trace.left_out + Counter(invalid=len(skipped)))
    if note is not None and (text := trace.note()):
        note(text)
    return instance, skipped, trace


def _from_json(path: Path, content: bytes, memory: int | None) -> Instance:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InstanceError(f"{path} is not UTF-8 text; give an instance as JSON") from None
    instance = Instance.from_json(text)
    return instance if memory is None else instance.replace(memory=memory)


def _head(instance: Instance, limit: int) -> Instance:
    return instance if len(instance) <= limit else instance.take(range(limit))
