"""Several workers without a barrier: their memories, and which requests may run where."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from optsched._internal.arguments import as_count, checked
from optsched._internal.arrays import MAX_TOKENS, checked_memory, frozen
from optsched.errors import InstanceError

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.problem.instance import Instance

MAX_WORKERS = 4096

_ADVICE = "pass a number of workers, such as 8, or their memories, such as 16492x2,4096x8"


@checked(InstanceError)
@dataclass(frozen=True, eq=False, init=False)
class Workers:
    """Independent workers, each with a memory of its own.

    A request is placed on one worker and never moved. It may run wherever its peak
    :math:`s_i + o_i` fits, and where `eligible` allows it.

    Parameters
    ----------
    memories
        Tokens :math:`M_g` that each worker can hold.
    eligible
        Whether each request may run on each worker, shape (n, G), beyond fitting there; None
        allows everything.

    Examples
    --------
    >>> from optsched import Instance, Workers
    >>> workers = Workers([100, 50, 50])
    >>> len(workers), workers.total, workers.classes
    (3, 200, array([0, 1, 1]))
    >>> Workers.parse("100,50x2").memories
    (100, 50, 50)
    >>> Workers([9, 5]).allowed(Instance([6, 1], [2, 2], memory=9)).tolist()
    [[True, False], [True, True]]
    """

    memories: tuple[int, ...]
    eligible: BoolArray | None

    def __init__(self, memories: Sequence[int], eligible: npt.ArrayLike | None = None) -> None:
        if not len(memories):
            raise InstanceError(f"there are no workers; {_ADVICE}")
        if len(memories) > MAX_WORKERS:
            raise InstanceError(f"there are {len(memories):,} workers, but at most {MAX_WORKERS:,}")
        object.__setattr__(self, "memories", tuple(checked_memory(size) for size in memories))
        allowed = None if eligible is None else frozen(np.asarray(eligible, dtype=np.bool_))
        if allowed is not None and (allowed.ndim != 2 or allowed.shape[1] != len(memories)):
            raise InstanceError(
                f"eligible has the shape {allowed.shape}, but must have a row for each request and "
                f"a column for each of the {len(memories)} workers"
            )
        object.__setattr__(self, "eligible", allowed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Workers):
            return NotImplemented
        return self.memories == other.memories and np.array_equal(
            np.array(self.eligible), np.array(other.eligible)
        )

    def __hash__(self) -> int:
        return hash(self.memories)

    def __len__(self) -> int:
        return len(self.memories)

    def __str__(self) -> str:
        """Write the memories as `parse` reads them."""
        runs: list[list[int]] = []
        for memory in self.memories:
            if runs and runs[-1][0] == memory:
                runs[-1][1] += 1
            else:
                runs.append([memory, 1])
        return ",".join(f"{size}x{count}" if count > 1 else str(size) for size, count in runs)

    @classmethod
    @checked(InstanceError)
    def parse(cls, text: str, memory: int | None = None) -> Workers:
        """Read a number of workers with `memory` each, as "8", or memories, as "16492x2,4096x8"."""
        parts = [part.split("x") for part in text.replace(" ", "").split(",")]
        if not all(len(part) <= 2 and all(word.isdecimal() for word in part) for part in parts):
            raise InstanceError(f"workers are {text!r}; {_ADVICE}")
        numbers = [[int(word) for word in part] for part in parts]
        if len(numbers) == 1 and len(numbers[0]) == 1:
            if memory is None:
                raise InstanceError(f"{text} workers have no memory; pass the memory of each")
            return cls(_copies(numbers[0][0], memory))
        if memory is not None:
            raise InstanceError(
                f"workers {text} have memories already; leave out the memory of {memory}"
            )
        counts = [part[1] if len(part) == 2 else 1 for part in numbers]
        if sum(counts) > MAX_WORKERS:
            raise InstanceError(f"there are {sum(counts):,} workers, but at most {MAX_WORKERS:,}")
        sizes = [part[0] for part in numbers]
        return cls([size for size, n in zip(sizes, counts, strict=True) for _ in range(n)])

    @property
    def total(self) -> int:
        """Tokens that all workers hold together."""
        return sum(self.memories)

    def pool(self, instance: Instance) -> Instance:
        """Return the requests on one worker that holds as much as all together."""
        if self.total > MAX_TOKENS:
            raise InstanceError(
                f"the workers hold {self.total:,} tokens together, but at most {MAX_TOKENS:,} can "
                "be counted; count prompts, outputs and memories in units of some tokens"
            )
        return instance.replace(memory=self.total)

    @cached_property
    def classes(self) -> IntArray:
        """Class of each worker, in order of appearance; its members can be exchanged."""
        keys: dict[tuple[int, bytes], int] = {}
        columns = [b""] * len(self)
        if self.eligible is not None:
            columns = [self.eligible[:, worker].tobytes() for worker in range(len(self))]
        found = [
            keys.setdefault(key, len(keys)) for key in zip(self.memories, columns, strict=True)
        ]
        return frozen(np.array(found, dtype=np.int64))

    @property
    def equal(self) -> bool:
        """Whether any two workers can be exchanged."""
        return not self.classes.any()

    def fingerprint(self, instance: Instance) -> str:
        """Return a SHA-256 of requests, memories and eligibility, which certificates hold."""
        pool = self.pool(instance).fingerprint
        digest = hashlib.sha256(f"optsched workers 1 {self.memories} {pool}".encode())
        if self.eligible is not None:
            digest.update(self.eligible.tobytes())
        return digest.hexdigest()

    def kinds(self, instance: Instance) -> tuple[BoolArray, IntArray]:
        """Return where each kind of request may run, shape (kinds, G), and the kind of each."""
        allowed = self.allowed(instance)
        packed = np.packbits(allowed, axis=1)
        keys = packed.view([("", packed.dtype)] * packed.shape[1]).reshape(-1)
        _, first, kind = np.unique(keys, return_index=True, return_inverse=True)
        return allowed[first], kind.reshape(-1)

    def allowed(self, instance: Instance) -> BoolArray:
        """Return whether each request may run on each worker, shape (n, G); each must somewhere."""
        fits: BoolArray = instance.peaks[:, None] <= np.array(self.memories)
        if self.eligible is not None:
            if len(self.eligible) != len(instance):
                raise InstanceError(
                    f"eligible has {len(self.eligible)} rows for {len(instance)} requests"
                )
            fits = fits & self.eligible
        if not (somewhere := fits.any(axis=1)).all():
            request = int(np.argmin(somewhere))
            peak = int(instance.peaks[request])
            places = "any worker" if self.eligible is None else "any worker where it may run"
            raise InstanceError(
                f"request {instance.label(request)} holds {peak} tokens in the end, more than fit "
                f"on {places}; leave the request out or raise a memory to {peak}",
                request=request,
            )
        return fits


def as_workers(workers: int | str | Sequence[int] | Workers, instance: Instance) -> Workers:
    """Turn a number of workers, their memories or a text into workers that suit an instance."""
    if isinstance(workers, Workers):
        made = workers
    elif isinstance(workers, str):
        made = Workers.parse(workers, instance.memory if workers.isdecimal() else None)
    else:
        several = isinstance(workers, Sequence) or getattr(workers, "ndim", 0) > 0
        made = Workers(cast("Any", workers) if several else _copies(workers, instance.memory))
    made.allowed(instance)
    return made


def _copies(count: object, memory: int) -> list[int]:
    return [memory] * as_count("workers", count, 1, MAX_WORKERS)
