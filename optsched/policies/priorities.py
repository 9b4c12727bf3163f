"""Orders by a key, selected batches, and the orders of serving engines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np

from optsched._internal.arguments import checked
from optsched.bounds.lagrangian import expected_starts
from optsched.bounds.on_clock import PARTS, best_share
from optsched.errors import PolicyError, require_known
from optsched.policies.base import BatchPolicy, NamedPolicy, Needs, PriorityPolicy
from optsched.problem.work import due_times, time_alone, work_on_clock
from optsched.solvers.selection import BatchMethod, LocalSwap, fill, select_batch

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.models.batch import Fit
    from optsched.problem.instance import Instance

_SMITH = "Smith's rule for the relaxation behind the closed-form bound"

PRIORITIES = tuple(
    PriorityPolicy(
        name,
        description,
        attrgetter(key),
        source=source,
        reads="nothing" if key == "arrivals" else "outputs",
    )
    for name, description, key, source in (
        ("fcfs", "first come, first served", "arrivals", "the order of arrival"),
        ("mc-sf", "shortest output first", "outputs", "Jaillet Alg. 1"),
        ("mc-sf-total", "smallest prompt + output first", "peaks", "Sorted-F Section 2.1"),
        ("area", "smallest memory-time first", "areas", _SMITH),
    )
)


@dataclass(frozen=True)
class WorkPolicy(PriorityPolicy):
    """Least work on the clock first: own seconds, and the share of batches that proves most."""

    weighted: bool = False  # least work over weight first
    max_num_seqs: int = 0  # 0 without a limit

    def parsed(self, parameters: str) -> WorkPolicy:
        """Return the order for weights, for a limit of requests per batch, or for both."""
        first, _, second = parameters.partition(",")
        weighted = first == "weighted"
        limit = second if weighted else parameters
        if not (limit.isascii() and limit.isdigit() and int(limit)) and (limit or not weighted):
            raise PolicyError(
                f"policy 'work:{parameters}' should read work:weighted, work:B or work:weighted,B "
                "with the most requests B of a batch, such as work:256"
            )
        return replace(
            self, name=f"{self.name}:{parameters}", weighted=weighted, max_num_seqs=int(limit or 0)
        )

    def keys(self, instance: Instance, clock: Clock) -> FloatArray:
        """Return the work of each request, or the work over its weight."""
        timed = self.linear(clock, "area")
        weights = np.ones(len(instance))
        if self.weighted and instance.weights is not None:
            weights = instance.weights
        share = best_share(instance, timed, weights, max_num_seqs=self.max_num_seqs)
        parts = work_on_clock(instance, timed)
        part = share.by_requests / PARTS
        shared = (1 - part) * instance.areas / instance.memory
        if part:
            shared += part * instance.outputs / share.max_num_seqs
        work: FloatArray = parts.prefill + parts.decode + timed.constant * shared
        return work / weights


WORK = WorkPolicy(
    "work",
    "smallest work on the clock first",
    attrgetter("areas"),
    source="Smith's rule for the bound on a clock",
    reads="outputs",
)


@dataclass(frozen=True)
class DuePolicy(PriorityPolicy):
    """Least time until the deadline first; if it reads outputs, less the time a request takes."""

    def keys(self, instance: Instance, clock: Clock) -> FloatArray:
        """Return by when each request is due, or has to start; both are the same at any time."""
        return self.due(due_times(instance, clock)) - self.taking(instance, clock)

    def taking(self, instance: Instance, clock: Clock) -> FloatArray:
        """Return how long each request takes alone; nothing where outputs are not read."""
        if self.reads == "nothing":
            return np.zeros(len(instance))
        return time_alone(instance.prompts, instance.outputs, self.linear(clock, "edf"))


EDF = DuePolicy(
    "edf",
    "earliest deadline first",
    attrgetter("deadlines"),
    source="Jackson 1955, for the largest lateness",
    reads="nothing",
)
LEAST_SLACK = DuePolicy(
    "least-slack",
    "least slack first: the deadline less the time that a request takes",
    attrgetter("deadlines"),
    source="Conway, Maxwell and Miller 1967",
    reads="outputs",
)
DUE = (EDF, LEAST_SLACK)
BY_KEY = (*PRIORITIES, WORK, *DUE)


class _Waiting:
    """Requests of an instance that were released and are in no batch yet."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.waiting = np.zeros(0, dtype=np.int64)

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        self.waiting = np.concatenate([self.waiting, requests])


class Selected(_Waiting):
    """Batch selection among the requests released so far."""

    def __init__(self, instance: Instance, method: BatchMethod, fit: Fit, seed: int) -> None:
        super().__init__(instance)
        self._method, self._fit, self._seed = method, fit, seed

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting, by ascending output."""
        waiting = self.waiting
        left = self._instance.take(waiting)
        batch = select_batch(left, self._method, self._fit, seed=self._seed).requests
        self.waiting = np.delete(waiting, batch)
        return waiting[batch]


def sorted_f(method: BatchMethod, fit: Fit = "peak", seed: int = 0) -> BatchPolicy:
    """Return Sorted-F with a selection of batches of its own."""
    profile = "-profile" if fit == "profile" else ""
    where = "at every step" if profile else "by their peaks"
    how, source = _METHODS.get(method, (method, ""))
    name = "mip" if method == "highs" else method  # that of the paper
    return BatchPolicy(
        f"sorted-f-{name}{profile}",
        f"batches of least F that fit {where}, {how}",
        lambda instance: Selected(instance, method, fit, seed),
        source=source,
    )


_METHODS = {
    "dp": ("by exact dynamic program", "after Sorted-F Alg. 2"),
    "scaled-dp": ("within 10 % by scaled dynamic program", "after Sorted-F Alg. 3"),
    "swap": ("by local swap", "Sorted-F Alg. 4"),
    "quantile": ("by quantiles of a sample", "Sorted-F Alg. 5"),
    "highs": ("by integer programs", "Sorted-F Section 5"),
}

SORTED_F = BatchPolicy(
    "sorted-f", "batches of least F, by local swap", LocalSwap, source="Sorted-F Alg. 1 and 4"
)
SELECTED = (
    sorted_f("dp"),
    sorted_f("scaled-dp"),
    sorted_f("quantile"),
    sorted_f("highs"),
    sorted_f("highs", fit="profile"),
)


class SortedLP(_Waiting):
    """Batches by ascending expected start among the requests released so far."""

    _sorted = True

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        super().release(requests)
        self._sorted = False

    def order(self) -> IntArray:
        """Return the waiting requests in order; new ones make the relaxation be solved again."""
        if not self._sorted:
            waiting = np.sort(self.waiting)
            starts: FloatArray = expected_starts(self._instance.take(waiting))
            self.waiting = waiting[np.argsort(starts, kind="stable")]
            self._sorted = True
        return self.waiting

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting, by ascending expected start."""
        order, memory = self.order(), self._instance.memory
        held = np.cumsum(self._instance.peaks[order[:memory]])
        size = int(np.searchsorted(held, memory, side="right"))
        self.waiting = order[size:]
        return order[:size]


class LPSwap(LocalSwap):
    """Batches filled by ascending expected start and improved by Alg. 4."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        self._expected = SortedLP(instance)

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        super().release(requests)
        self._expected.release(requests)

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting, by ascending output."""
        order = self._expected.order()
        chosen = np.zeros(len(self._rank), dtype=np.bool_)
        fill(self._peaks, self._rank[order], self._memory, chosen)
        batch = self.improve(self.take(np.flatnonzero(chosen)))
        self._expected.waiting = order[~np.isin(order, batch)]
        return batch


SORTED_LP = (
    BatchPolicy(
        "sorted-lp",
        "smallest expected start in the linear relaxation first",
        SortedLP,
        source="Sorted-F Alg. 6",
    ),
    BatchPolicy(
        "lp-swap",
        "batches by expected start, improved by local swap",
        LPSwap,
        source="Sorted-F Alg. 7",
    ),
)


#: How prompts and decodes share batches.
Batching = Literal["mixed", "prefill-first", "chunked"]


@checked(PolicyError)
@dataclass(frozen=True)
class EnginePolicy(NamedPolicy):
    """Admit in order of arrival while prompts fit into the free memory; run on a clock.

    Outputs are unknown, so the memory may run out: then the request admitted last is preempted. It
    gives up its KV cache and waits again, keeping its tokens as part of the prompt to prefill.

    Parameters
    ----------
    batching
        "mixed": all decodes with whole prompts beside them. "prefill-first": prompts alone while
        any can be admitted, else all decodes. "chunked": all decodes, and prompt tokens up to the
        token limit.
    max_num_seqs
        Maximum number of requests that run at once.
    max_num_batched_tokens
        Maximum number of tokens in a batch: those prefilled, and one for each decode. A longer
        prompt is the only one in its batch, unless it is chunked.
    watermark
        Share of the memory that an admission leaves free while other requests run.
    block_size
        Tokens of a block of KV cache; a request holds whole blocks.

    Examples
    --------
    >>> from optsched import Instance, run
    >>> small = EnginePolicy("small", "two at a time", max_num_seqs=2)
    >>> run(Instance([5] * 3, [2] * 3, memory=50), small, clock="unit").completions
    array([2., 2., 4.])
    """

    batching: Batching = "mixed"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    watermark: float = 0.0
    block_size: int = 1
    needs: ClassVar[Needs] = Needs("engine")

    def __post_init__(self) -> None:
        require_known("batching", self.batching, get_args(Batching), PolicyError)
        limits = self.max_num_seqs, self.max_num_batched_tokens
        require_limits(self, self.block_size, *limits, self.watermark)

    def blocks(self, instance: Instance) -> int:
        """Return the blocks that the memory holds, refusing requests that would never fit."""
        blocks = instance.memory // self.block_size
        needed = -(-instance.peaks // self.block_size)
        self.require(
            needed.max() <= blocks,
            f"request {instance.label(int(np.argmax(needed)))} needs {needed.max()} blocks of "
            f"{self.block_size} tokens, but the memory holds {blocks}; give more memory or smaller "
            "blocks",
        )
        return int(blocks)


def require_limits(
    policy: NamedPolicy, block_size: int, seqs: int, tokens: int, watermark: float
) -> None:
    """Refuse limits with which no engine runs."""
    for option, value in (("block_size", block_size), ("max_num_seqs", seqs)):
        policy.require(value >= 1, f"{option} is {value}, but must be at least 1")
    policy.require(
        tokens >= seqs,
        f"max_num_batched_tokens is {tokens}, below max_num_seqs, {seqs}, each of which may "
        "decode; raise it",
    )
    policy.require(
        0 <= watermark < 1, f"watermark is {watermark:g}, but must be a share from 0 to below 1"
    )


ENGINES = (
    EnginePolicy(
        "mixed",
        "first come, first served, decodes and whole prompts in one batch",
        source="the engine of the papers' simulations",
    ),
    EnginePolicy(
        "vllm-v0",
        "first come, first served, prompts before decodes",
        "prefill-first",
        source="vLLM before its version 1, Kwon et al. 2023",
    ),
    EnginePolicy(
        "sarathi",
        "first come, first served, decodes and chunks of prompts",
        "chunked",
        source="Sarathi-Serve, Agrawal et al. 2024",
    ),
)
