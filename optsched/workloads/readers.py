"""`read_trace`: a trace becomes an instance, or one sentence says which row prevents it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

from optsched._internal.arrays import checked_memory
from optsched.errors import InstanceError
from optsched.instance import Instance
from optsched.workloads.families import family_from_text
from optsched.workloads.files import csv_header, opened
from optsched.workloads.formats import MOONCAKE, recognised
from optsched.workloads.trace import SkippedRow, Trace

HEADER_BYTES = 1 << 16


def read_trace(
    path: str | Path,
    memory: int | None = None,
    *,
    limit: int | None = None,
    seconds_per_step: float = 0.05,
    skip_invalid: bool = False,
) -> Instance:
    r"""Read an instance from a trace, a JSON file or the name of a family.

    A trace is a CSV, packed with gzip or not, with columns ``prompt_tokens`` and ``output_tokens``
    and, in any order, ``arrival`` (steps) or ``arrival_s`` (seconds), ``weight``, ``deadline``,
    ``output_lower``, ``output_upper`` and ``label``; or one of the public traces: Azure LLM
    inference 2023 and 2024, BurstGPT, Vidur, Mooncake (JSONL). The header tells which.

    An arrival after :math:`t` seconds becomes step :math:`\lceil t / \mathtt{seconds\_per\_step}
    \rceil`, as a request cannot start before it is there. Public traces start when their first
    request arrives; ``arrival_s`` is taken as it is.

    Parameters
    ----------
    path
        The file, or ``family:NAME,n=...,seed=...`` with parameters of `optsched.family`.
    memory
        Tokens that the worker holds at most. A JSON instance and a family bring their own, which
        this overrides.
    limit
        Read only so many rows from the start, and nothing behind them.
    seconds_per_step
        Length of a step, used where arrivals are given in seconds.
    skip_invalid
        Leave rows out that cannot be requests, with a warning; `read_trace_skipping` lists them.

    Returns
    -------
    Instance
        The requests in the order of the file, named after the file.

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
    r"""Read a trace without the rows that cannot be requests, and list those.

    Where arrivals are not sorted, the rows earlier than one before them are left out.

    Parameters
    ----------
    path, memory, limit, seconds_per_step
        As in `read_trace`. `limit` counts the rows of the file, left out or not.

    Returns
    -------
    instance
        The other rows.
    skipped
        The rows left out, in the order of the file.

    Raises
    ------
    InstanceError
        If no row is left, or the file as a whole cannot be read.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "chat.csv")
    ...     _ = path.write_text("prompt_tokens,output_tokens\n12,43\n9,0\n")
    ...     instance, skipped = read_trace_skipping(path, memory=1000)
    >>> len(instance), skipped[0].line, skipped[0].reason
    (1, 3, 'outputs is 0, but every request makes at least 1 token')
    """
    return _read(path, memory, limit, seconds_per_step, strict=False)


def _read(
    path: str | Path, memory: int | None, limit: int | None, seconds_per_step: float, strict: bool
) -> tuple[Instance, list[SkippedRow]]:
    if limit is None:
        limit = sys.maxsize
    if not (isinstance(limit, int) and limit >= 1):
        raise InstanceError(f"limit is {limit!r}, but must be a whole number of rows from 1")
    if not 0 < seconds_per_step < np.inf:
        raise InstanceError(f"seconds_per_step is {seconds_per_step}, but must be positive")
    if memory is not None:
        memory = checked_memory(memory)
    if str(path).startswith("family:"):
        return _head(family_from_text(str(path), memory), limit), []
    path = Path(path)
    with opened(path) as stream:
        start = stream.peek(1)
        if not start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
            header = csv_header(stream.readline(HEADER_BYTES), str(path))
            form = recognised(header, str(path))
        elif b'"input_length"' in start.partition(b"\n")[0] or ".jsonl" in path.suffixes:
            header, form = list(MOONCAKE.kinds), MOONCAKE
        else:
            return _head(_from_json(path, stream.read(), memory), limit), []
        if memory is None:
            raise InstanceError(
                f"{path} does not say how much the worker holds; pass the memory (--memory M)"
            )
        return Trace(path, form, header, limit, strict).instance(stream, memory, seconds_per_step)


def _from_json(path: Path, content: bytes, memory: int | None) -> Instance:
    try:
        instance = Instance.from_json(content.decode("utf-8-sig"))
        return instance if memory is None else instance.replace(memory=memory)
    except UnicodeDecodeError:
        raise InstanceError(f"{path} is not UTF-8 text; give an instance as JSON") from None
    except InstanceError as error:
        raise InstanceError(
            f"{path}: {error}",
            column=error.column,
            request=error.request,
            value=error.value,
            reason=error.reason,
        ) from None


def _head(instance: Instance, limit: int) -> Instance:
    return instance if len(instance) <= limit else instance.take(range(limit))
