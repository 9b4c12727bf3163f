"""The instance: requests, their arrivals and the memory of one worker (docs/conventions.md)."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import as_count
from optsched._internal.arrays import BoolArray as BoolArray
from optsched._internal.arrays import FloatArray as FloatArray
from optsched._internal.arrays import IntArray as IntArray
from optsched._internal.arrays import (
    as_floats,
    as_integers,
    broken_rules,
    checked_memory,
    checked_step,
    frozen,
    instead,
)
from optsched._internal.files import read_object, write_csv, write_object
from optsched._internal.imports import data_frame
from optsched._internal.views import Shown
from optsched.errors import InstanceError, named, nearest, require, shown

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    import pandas as pd

    from optsched._internal.files import JSON

_SHORTEST_BATCH = 1e-3  # seconds; shorter steps are ticks of a clock, in which no batch is run

#: Fields with one integer per request, and those of them that may be absent.
INTEGER_FIELDS = (
    *("prompts", "outputs", "arrivals", "deadlines"),
    *("output_lower", "output_upper", "priorities", "output_estimates"),
    *("follows", "pauses", "clients"),
)
OPTIONAL_FIELDS = (
    *("weights", "deadlines", "output_lower", "output_upper", "priorities", "output_estimates"),
    *("labels", "hash_ids", "follows", "clients"),
)
#: Columns of a table of requests, where they are called otherwise than the fields.
_COLUMNS = {
    **{"prompts": "prompt_tokens", "outputs": "output_tokens", "arrivals": "arrival"},
    **{"weights": "weight", "deadlines": "deadline", "priorities": "priority"},
    **{"output_estimates": "output_estimate", "labels": "label"},
    "clients": "client",
}
_ATTRS = ("seconds_per_step", "hash_block")  # of a table of pandas: what is no column


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Instance(Shown):
    r"""Requests for one worker with a KV cache of limited size.

    Request :math:`i` brings :math:`s_i` prompt tokens and makes :math:`o_i` output tokens, one per
    step. Started at step :math:`p_i \ge a_i` it occupies steps :math:`p_i + 1, \dots, p_i + o_i`
    and holds :math:`s_i + (t - p_i)` tokens at step :math:`t` (Sorted-F Eq. 6), so that its peak
    :math:`s_i + o_i` falls on its completion :math:`c_i = p_i + o_i` and another request may start
    at :math:`c_i`. At no step may the tokens held exceed the memory :math:`M`.

    Parameters
    ----------
    prompts
        Prompt tokens :math:`s_i \ge 0` of each request, shape (n,), as all arrays here.
    outputs
        Output tokens :math:`o_i \ge 1`.
    memory
        Memory :math:`M` of the worker in tokens; every request must fit alone,
        :math:`s_i + o_i \le M`.
    arrivals
        Step :math:`a_i \ge 0` from which a request may start, ascending; None: 0 for all.
    weights
        Positive weights for weighted latency. None means 1 each.
    deadlines
        Latest completion steps, if there are any.
    output_lower, output_upper
        Interval :math:`[\ell_i, u_i]` that a predictor gives for each output, perhaps wrongly.
    labels
        Your names for the requests; None means "0", "1", ...
    name
        Name of the instance in tables and plots.
    seconds_per_step
        Length of a step in seconds where arrivals were converted from seconds, else None.
    priorities
        Priorities for engines that schedule by them, smaller first.
    output_estimates
        Outputs that a predictor expects, at least 1; they may be far off.
    hash_ids
        Ids of the blocks of each request's tokens, from the first on and as far as they are known,
        which may be into the output: with the same id, two requests are equal up to the end of
        that block, or of the prompts if the ids end with them. Engines with a prefix cache share
        them.
    hash_block
        Tokens of such a block.
    follows
        Number of the request that each goes on from, as a turn of a conversation does, or -1. It
        arrives when that one has ended, a pause later, but not before its own arrival. Only policy
        "vllm" on one worker runs such requests; the instance of its run has the resulting
        arrivals.
    pauses
        Steps of those pauses; None means 0 each.
    clients
        Number of the client that sends each, for engines that learn from clients or are fair to
        them.

    Raises
    ------
    InstanceError
        If a value breaks one of the rules above; it names the first request at fault.

    Examples
    --------
    >>> from optsched import Instance
    >>> instance = Instance([63, 1, 1], [1, 2, 2], memory=64)
    >>> len(instance), instance.peaks
    (3, array([64,  3,  3]))
    >>> instance.take([0, 2]).labels
    ('0', '2')
    >>> Instance.from_json(instance.to_json()) == instance
    True
    """

    prompts: IntArray
    outputs: IntArray
    memory: int
    arrivals: IntArray
    weights: FloatArray | None
    deadlines: IntArray | None
    output_lower: IntArray | None
    output_upper: IntArray | None
    labels: tuple[str, ...] | None
    name: str
    seconds_per_step: float | None
    priorities: IntArray | None
    output_estimates: IntArray | None
    hash_ids: tuple[IntArray, ...] | None
    hash_block: int | None
    follows: IntArray | None
    pauses: IntArray | None
    clients: IntArray | None

    def __init__(
        self,
        prompts: npt.ArrayLike,
        outputs: npt.ArrayLike,
        memory: int,
        arrivals: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        deadlines: npt.ArrayLike | None = None,
        output_lower: npt.ArrayLike | None = None,
        output_upper: npt.ArrayLike | None = None,
        labels: Iterable[object] | None = None,
        name: str = "instance",
        seconds_per_step: float | None = None,
        priorities: npt.ArrayLike | None = None,
        output_estimates: npt.ArrayLike | None = None,
        hash_ids: Iterable[npt.ArrayLike] | None = None,
        hash_block: int | None = None,
        follows: npt.ArrayLike | None = None,
        pauses: npt.ArrayLike | None = None,
        clients: npt.ArrayLike | None = None,
    ) -> None:
        fields: dict[str, Any] = {"memory": checked_memory(memory)}
        numbers = (
            *(prompts, outputs, arrivals, deadlines),
            *(output_lower, output_upper, priorities, output_estimates),
            *(follows, pauses, clients),
        )
        for field, values in zip(INTEGER_FIELDS, numbers, strict=True):
            needed = field in ("prompts", "outputs") or values is not None
            fields[field] = as_integers(field, values) if needed else None
        if arrivals is None:
            fields["arrivals"] = frozen(np.zeros(len(fields["prompts"]), dtype=np.int64))
        fields["weights"] = None if weights is None else frozen(as_floats("weights", weights))
        require(name, str, "name", "a text", InstanceError)
        if labels is not None:
            require(labels, Iterable, "labels", "a list", InstanceError)
        named = None if labels is None else enumerate(labels)
        fields["labels"] = named and tuple(str(at if _is_no(each) else each) for at, each in named)
        fields |= {"name": name, "seconds_per_step": seconds_per_step, "hash_ids": None}
        if hash_ids is not None:
            require(hash_ids, Iterable, "hash_ids", "a list of lists", InstanceError)
            fields["hash_ids"] = tuple(as_integers("hash_ids", ids) for ids in hash_ids)
        fields["hash_block"] = None if hash_block is None else as_count("hash_block", hash_block)
        for field, value in fields.items():
            object.__setattr__(self, field, value)
        self._validate()

    def _validate(self) -> None:
        if len(self.prompts) == 0:
            raise InstanceError("there are no requests, but an instance needs at least one")
        for field in (*INTEGER_FIELDS, "weights", "labels", "hash_ids"):
            values = getattr(self, field)
            if values is not None and len(values) != len(self.prompts):
                raise InstanceError(
                    f"{field} has {len(values)} entries for {len(self.prompts)} requests",
                    column=field,
                )
        for rule in broken_rules(self.columns(), self.memory):
            index = int(np.argmax(rule.mask))
            label = f" ({self.labels[index]!r})" if self.labels is not None else ""
            reason = rule.describe(index)
            raise InstanceError(
                f"request {index}{label}: {reason}",
                column=rule.column,
                request=index,
                value=rule.values[index].item(),
                reason=reason,
            )
        if self.seconds_per_step is not None:
            checked_step(self.seconds_per_step)
        if self.pauses is not None and self.follows is None:
            raise InstanceError("pauses are given without follows; pass both, or follows alone")
        self._validate_hashes()

    def _validate_hashes(self) -> None:
        if (self.hash_ids is None) != (self.hash_block is None):
            missing = "hash_block" if self.hash_block is None else "hash_ids"
            raise InstanceError(f"{missing} is missing; pass hash_ids and hash_block, or neither")
        if self.hash_ids is None or self.hash_block is None:
            return
        lengths = np.fromiter(map(len, self.hash_ids), np.int64, len(self.hash_ids))
        most = -(-self.peaks // self.hash_block)
        if (longer := lengths > most).any():
            request = int(np.argmax(longer))
            raise InstanceError(
                f"request {self.label(request)}: hash_ids has {lengths[request]} entries, but "
                f"prompt and output are {most[request]} blocks of {self.hash_block} tokens",
                column="hash_ids",
                request=request,
            )

    def __len__(self) -> int:
        return len(self.prompts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Instance):
            return NotImplemented
        pairs = (
            (getattr(self, field.name), getattr(other, field.name))
            for field in dataclasses.fields(self)
        )
        return all(_equal(mine, its) for mine, its in pairs)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<Instance {self.name!r}: {len(self)} requests, memory {self.memory}>"

    def __str__(self) -> str:
        peak = int(self.peaks.max())
        lines = [f"{self.name}: {len(self):,} requests, memory {self.memory:,} tokens"]
        for title, values in (("prompt", self.prompts), ("output", self.outputs)):
            lines.append(
                f"  {title:<9} mean {values.mean():,.1f}, median {np.median(values):,.0f}, "
                f"max {values.max():,} tokens"
            )
        lines.append(
            f"  largest   {peak:,} tokens at completion ({peak / self.memory:.0%} of memory)"
        )
        first, last, step = int(self.arrivals[0]), int(self.arrivals[-1]), self.seconds_per_step
        if last == first:
            lines.append(f"  arrivals  all at step {first:,}")
        elif step is None or step >= _SHORTEST_BATCH:
            seconds = "" if step is None else f" of {step:g} s"
            lines.append(f"  arrivals  steps {first:,} .. {last:,}{seconds}")
            lines.append(f"  load      {self.load:.2f} of the memory-time of arrivals")
        else:
            lines.append(f"  arrivals  {first * step:,.6g} .. {last * step:,.6g} s")
        given = [field for field in OPTIONAL_FIELDS if getattr(self, field) is not None]
        if given:
            lines.append(f"  also      {', '.join(given)}")
        return "\n".join(lines)

    @property
    def peaks(self) -> IntArray:
        """Tokens held at completion, :math:`s_i + o_i`, shape (n,)."""
        return self.prompts + self.outputs

    @property
    def areas(self) -> IntArray:
        r"""Memory-time :math:`A_i = s_i o_i + o_i (o_i + 1) / 2` in token-steps, shape (n,)."""
        return self.prompts * self.outputs + self.outputs * (self.outputs + 1) // 2

    @property
    def load(self) -> float:
        """Memory-time of all requests over that from the first arrival to the last; or infinite."""
        offered = float(self.memory) * float(self.arrivals[-1] - self.arrivals[0])
        return float(self.areas.astype(np.float64).sum()) / offered if offered else float("inf")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides which schedules are feasible and what they cost."""
        digest = hashlib.sha256(f"optsched instance 1 memory {self.memory}".encode())
        for field in ("prompts", "outputs", "arrivals", "weights", "deadlines"):
            values = getattr(self, field)
            digest.update(field.encode())
            if values is not None:
                digest.update(values.tobytes())
        if self.follows is not None:
            digest.update(b"follows" + self.follows.tobytes())
            digest.update(b"" if self.pauses is None else self.pauses.tobytes())
        return digest.hexdigest()

    def label(self, request: int) -> str:
        """Return what to call a request: its label, with its index where others have it, too."""
        if self.labels is None:
            return str(request)
        label = self.labels[request]
        return f"{label} (request {request})" if label in self._shared_labels else label

    @cached_property
    def _shared_labels(self) -> set[str]:
        return {label for label, times in Counter(self.labels).items() if times > 1}

    def columns(self) -> dict[str, Any]:
        """Return the per-request arrays that are set, by field name."""
        return {
            field: values
            for field in (*INTEGER_FIELDS, "weights")
            if (values := getattr(self, field)) is not None
        }

    def replace(self, **changes: Any) -> Instance:
        """Return an instance with some fields changed, by name, and everything checked again."""
        return dataclasses.replace(self, **changes)

    def take(self, requests: Sequence[int] | IntArray) -> Instance:
        """Return an instance of the requests with these indices; they keep their labels.

        A request that goes on from one that is left out arrives at its own arrival.
        """
        index = as_integers("requests", requests)
        if not ((index >= -len(self)) & (index < len(self))).all():
            raise InstanceError(f"requests are {shown(requests)}, but there are {len(self)}")
        index = np.where(index < 0, index + len(self), index)
        names = self.labels or range(len(self))
        parts: dict[str, Any] = {field: values[index] for field, values in self.columns().items()}
        parts["labels"] = tuple(names[request] for request in index.tolist())
        if self.hash_ids is not None:
            parts["hash_ids"] = [self.hash_ids[request] for request in index.tolist()]
        if self.follows is not None:
            places = np.full(len(self) + 1, -1)  # the last one is that of no request
            places[index] = np.arange(len(index))
            parts["follows"] = places[parts["follows"]]
        return self.replace(**parts)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the instance as JSON, and write it to `path` if one is given."""
        content: dict[str, object] = {"format": "optsched-instance", "name": self.name}
        content["memory"] = self.memory
        if self.seconds_per_step is not None:
            content["seconds_per_step"] = self.seconds_per_step
        content |= {field: values.tolist() for field, values in self.columns().items()}
        if self.labels is not None:
            content["labels"] = list(self.labels)
        if self.hash_ids is not None:
            content["hash_ids"] = [ids.tolist() for ids in self.hash_ids]
            content["hash_block"] = self.hash_block
        return write_object(content, path)

    @classmethod
    def from_json(cls, source: str | Path) -> Instance:
        """Read an instance from a JSON file or from JSON text."""
        content, where = read_object(source, InstanceError, "prompts, outputs and memory")
        if content.pop("format", "optsched-instance") != "optsched-instance":
            raise InstanceError(f"{where} is not an optsched instance")
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(content) - known):
            raise InstanceError(
                f"{where}: unknown key {unknown[0]!r}; {nearest(unknown[0], known)}"
            )
        if missing := sorted({"prompts", "outputs", "memory"} - set(content)):
            raise InstanceError(f"{where}: the key {missing[0]!r} is missing")
        with named(where):
            return cls(**content)

    def to_csv(self, path: str | Path) -> None:
        """Write the requests, without memory and name, as a CSV trace for `read_trace`.

        Arrivals are written in seconds where the length of a step is known; read them with it.
        """
        columns = self._table()
        if (step := self.seconds_per_step) is not None:
            columns.pop("arrival", None)
            columns["arrival_s"] = [step * arrival for arrival in self.arrivals.tolist()]
        if self.hash_ids is not None:
            columns["hash_ids"] = [ids.tolist() for ids in self.hash_ids]
            columns["hash_block"] = [self.hash_block] * len(self)
        write_csv(path, columns)

    def to_pandas(self) -> pd.DataFrame:
        """Return the requests, without memory and name, with the columns of a CSV trace.

        Ids of blocks are a column, too; their size, and the length of a step, are in `attrs`.
        """
        ids = {} if self.hash_ids is None else {"hash_ids": self.hash_ids}
        frame = data_frame(self._table() | ids)
        frame.attrs = {name: value for name in _ATTRS if (value := getattr(self, name)) is not None}
        return frame

    @classmethod
    def from_pandas(cls, frame: pd.DataFrame, memory: int, name: str = "instance") -> Instance:
        """Read requests from a table with the columns of `to_pandas`; arrivals are in steps."""
        known = (*INTEGER_FIELDS, "weights", "labels", "hash_ids")
        fields = {_COLUMNS.get(each, each): each for each in known}
        columns = [str(column) for column in getattr(frame, "columns", ())]
        if unknown := [column for column in columns if column not in fields]:
            advice = instead(unknown[0], fields.keys() - set(columns))
            if unknown[0] == "arrival_s":
                advice = "write the table to a CSV file, whose seconds read_trace turns into steps"
            raise InstanceError(f"column {unknown[0]!r} is none of an instance; {advice}")
        for column in ("prompt_tokens", "output_tokens"):
            if column not in columns:
                raise InstanceError(f"the table has no column {column!r}; rename the one it is")
        arrays: dict[str, Any] = {fields[column]: frame[column].to_numpy() for column in columns}
        arrays |= {name: frame.attrs[name] for name in _ATTRS if name in frame.attrs}
        return cls(**arrays, memory=memory, name=name)

    def _table(self) -> JSON:
        """Return the columns of a CSV trace."""
        columns: JSON = {} if self.labels is None else {"label": self.labels}
        for field, values in self.columns().items():
            if field != "arrivals" or self.arrivals.any():
                columns[_COLUMNS.get(field, field)] = values.tolist()
        return columns


def _is_no(label: object) -> bool:
    """Whether a label is missing, as tables write it: None, nan, NaT or NA."""
    return label is None or type(label).__name__ in ("NAType", "NaTType") or label != label


def _equal(mine: object, its: npt.ArrayLike) -> bool:
    if isinstance(mine, tuple) and isinstance(its, tuple):
        return len(mine) == len(its) and all(map(_equal, mine, its))
    return bool(np.array_equal(mine, its) if isinstance(mine, np.ndarray) else mine == its)
