"""vLLM v1: one token budget for decodes and chunks of prompts, and blocks of KV cache."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import ranks_in
from optsched.errors import PolicyError, nearest
from optsched.policies.base import NamedPolicy, Needs
from optsched.policies.priorities import BY_KEY, DuePolicy, require_limits

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.policies.base import PriorityPolicy
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Knowledge

#: In what order requests are admitted.
SchedulingPolicy = Literal["fcfs", "priority"]
#: Whose scheduler it is.
Version = Literal["0.32", "0.33"]


class Ranks(NamedTuple):
    """In what order an engine admits waiting requests and preempts running ones, shape (n,)."""

    turns: IntArray  # the least of those waiting is admitted first; no two are equal
    levels: IntArray  # the largest of those running is preempted first, of equals the first


@checked(PolicyError)
@dataclass(frozen=True)
class VllmPolicy(NamedPolicy):
    """Form batches as the scheduler of vLLM 0.33.0, or 0.32.0, does; run on a clock.

    The options have vLLM's names, and its defaults. Outputs are unknown. A batch has one budget of
    tokens: running requests take what they lack in order of admission, then waiting ones are
    admitted, long prompts in chunks. A running request that finds no free block preempts the one
    that was admitted last or, by priority, that of the largest (priority, arrival), which loses its
    blocks, keeps its tokens, and goes to the front of the queue.

    Parameters
    ----------
    num_gpu_blocks, block_size
        Blocks of the KV cache, one of which vLLM does not use (None: as many as hold the memory of
        the instance), and the tokens of a block.
    max_num_seqs, max_num_active_seqs
        Maximum number of requests that run at once, the second where it is less.
    max_num_batched_tokens
        Maximum number of tokens in a batch.
    max_model_len
        Most tokens of a prompt and its output; longer requests are refused here, while vLLM cuts
        their outputs. None: as many as the memory holds.
    long_prefill_token_threshold, long_prefill_token_threshold_adaptive
        Most tokens of a request in a batch while there are other requests, 0 for no limit; adaptive
        never less than an equal share of the batch.
    prefill_schedule_interval
        Batches from one with prompts to the next, while others decode and nothing waits for long.
    enable_chunked_prefill
        Let a prompt be computed in parts.
    scheduling_policy
        "fcfs", or "priority": by (priority, arrival, label as text), with the `priorities` of the
        instance.
    watermark
        Share of all blocks that an admission leaves free while other requests run.
    scheduler_reserve_full_isl
        Admit a request only if its whole prompt fits, not only its first chunk.
    async_scheduling
        Form each batch while the one before it runs.
    enable_prefix_caching
        Let full blocks be found again: after a preemption, and by requests whose `hash_ids` say
        that they begin alike.
    order
        By whose keys priorities are set, and again at a preemption, for the tokens then expected.
        None: as `scheduling_policy` says.
    aging
        Seconds over which the keys of the order age (`optsched_serving.learning`), "load" for as
        fast as the load allows, or None.
    plan
        Admit a request only if, with the outputs that are expected, none will be preempted.
    learned
        Expect of outputs what completed requests of the run have shown: by prompt, `output_upper`,
        priority, turn and client, and by `output_estimates` as far as a client's earlier ones were
        right. The outputs and intervals of the run are not looked at. In an order, a preempted
        request goes on first.
    gittins
        Order by what all likely outputs of a request cost (`optsched_serving.learning.gittins`), in
        place of the key of their mean; beside `learned`.
    fair
        Serve `clients` in turn, by virtual counters of their tokens over `weights`, in place of an
        order; outputs are learned for that.
    deviations
        Standard deviations of the likely blocks that a plan leaves free where there are beliefs.
    version
        "0.32": by priority or an order, a request that preempts itself keeps those behind it out of
        the batch. In "0.33" they go on.

    Examples
    --------
    >>> from optsched import Instance, run
    >>> from optsched.policies import VllmPolicy
    >>> small = VllmPolicy("small", "two at a time", max_num_seqs=2, async_scheduling=False)
    >>> run(Instance([5] * 3, [2] * 3, memory=64), small, clock="unit").completions
    array([2., 2., 4.])
    """

    num_gpu_blocks: int | None = None
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_num_active_seqs: int | None = None
    max_model_len: int | None = None
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: int = 1
    enable_chunked_prefill: bool = True
    scheduling_policy: SchedulingPolicy = "fcfs"
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = True
    enable_prefix_caching: bool = True
    order: PriorityPolicy | None = None
    aging: float | Literal["load"] | None = None
    plan: bool = False
    learned: bool = False
    gittins: bool = False
    fair: bool = False
    deviations: float = 1.0
    version: Version = "0.33"
    needs: ClassVar[Needs] = Needs("vllm")

    def __post_init__(self) -> None:
        limits = self.max_num_seqs, self.max_num_batched_tokens
        require_limits(self, self.block_size, *limits, self.watermark)
        aging = self.aging
        number = not isinstance(aging, str | None) and 0 < aging < np.inf
        timeless = self.order is not None and not isinstance(self.order, DuePolicy)
        ages = aging is None or (timeless and (number or aging == "load"))
        beside = "a finite number above 0 or 'load', beside an order that is not by due dates"
        seqs = self.max_num_seqs
        for name, good, wish in (
            ("num_gpu_blocks", lambda count: count >= 2, "at least 2 (one of them is not used)"),
            (
                "max_num_active_seqs",
                lambda count: 1 <= count <= seqs,
                f"at least 1 and at most max_num_seqs, {seqs}",
            ),
            ("max_model_len", lambda count: count >= 2, "at least 2"),
            ("long_prefill_token_threshold", lambda count: count >= 0, "at least 0"),
            ("prefill_schedule_interval", lambda count: count >= 1, "at least 1"),
            ("deviations", lambda number: 0 <= number < np.inf, "a number of at least 0"),
            ("aging", lambda _: ages, beside),
            ("scheduling_policy", ("fcfs", "priority").__contains__, "fcfs or priority"),
            ("version", ("0.32", "0.33").__contains__, "0.32 or 0.33, whose schedulers are known"),
        ):
            value = getattr(self, name)
            said = f"{name} is {value!r}, but must be {wish}"
            self.require(value is None or good(value), said)
        self.require(
            not (self.fair and self.order is not None),
            "fair serves clients in turn, in place of an order; leave one of them out",
        )
        costs = self.order in BY_KEY and not isinstance(self.order, DuePolicy)
        self.require(
            not self.gittins or (self.learned and costs),
            "gittins weighs what learned outputs cost in an order of optsched that is not by due "
            "dates; add learned and such an order, as vllm:work+gittins+learned, or leave it out",
        )
        later = self.max_num_active_seqs is not None or self.prefill_schedule_interval > 1
        self.require(
            self.version == "0.33" or not (later or self.long_prefill_token_threshold),
            "limits on active requests and long prefills are known of version 0.33 only",
        )

    @property
    def foresees(self) -> Literal["nothing", "beliefs"]:
        """What it looks at: what is likely, where it has an order or a plan."""
        looks = not self.learns and (self.plan or self.order is not None)
        return "beliefs" if looks else "nothing"

    def knows(self, instance: Instance, intervals: str | None = None) -> Knowledge:
        """Return what it is told of an output of the instance before that request ends."""
        if self.learns:
            claims = instance.output_upper is not None or instance.output_estimates is not None
            return "forecast" if claims else "nothing"
        reads = self.order is not None and self.order.looks_at_outputs(instance)
        looks = self.plan or self.aging is not None or reads
        return super().knows(instance, intervals) if looks else "nothing"

    @property
    def learns(self) -> bool:
        """Whether it expects what the run has shown."""
        return self.learned or self.fair

    @property
    def reorders(self) -> bool:
        """Whether it has priorities of its own."""
        return self.fair or self.order is not None

    @property
    def is_told(self) -> bool:
        """Whether it goes by all that happens in the run."""
        return self.learns or self.aging is not None

    def parsed(self, parameters: str) -> VllmPolicy:
        """Return the policy with an order by name, as vllm:area; vllm:area,load ages."""
        orders = {order.name: order for order in BY_KEY}
        name, comma, scale = parameters.partition(",")
        if name not in orders:
            raise PolicyError(
                f"policy 'vllm:{parameters}' has no order {name!r}: {nearest(name, orders)}"
            )
        aging: Any = float(scale) if scale.replace(".", "", 1).isdecimal() else scale
        said = orders[name].description
        return replace(
            self,
            name=f"{self.name}:{parameters}",
            description=f"{self.description}; {said}{', aged' if comma else ''}",
            order=orders[name],
            aging=aging if comma else None,
        )

    def with_options(self, names: str) -> VllmPolicy:
        """Return the policy that plans, learns or is fair, by the names of these options."""
        switched: dict[str, Any] = dict.fromkeys(names.split("+"), True)
        said = f"{self.description}; {names.replace('+', ', ')}"
        return replace(self, name=f"{self.name}+{names}", description=said, **switched)

    def serving_options(self, clock: str | None = None, server: str = "vllm serve MODEL") -> str:
        """Say how to make a server serve so; a clock is for orders that depend on it."""
        if not (self.reorders or self.plan):
            return "Serve so with vLLM as it is."
        kind = "Planned" if self.plan else "Ordered"
        settings: dict[str, Any] = {"fair": True} if self.fair else {}
        if not self.fair:
            order = self.order and self.order.name
            settings = {"order": order, "aging": self.aging}
            settings |= {"gittins": True} if self.gittins else {}
            settings |= {"clock": clock} if order in ("work", "least-slack") else {}
        said = json.dumps({"optsched": settings})
        due = isinstance(self.order, DuePolicy)
        return (
            f"Serve so with {server} --scheduler-cls optsched.vllm.{kind}Scheduler "
            f"--additional-config '{said}'."
            + due
            * ' Say in the setting "objective", or in requests, how many seconds they have.'
        )

    def keys(self, instance: Instance, clock: Clock) -> FloatArray:
        """Return the keys of its order, or where there is none the priorities that it goes by."""
        if self.order is None:
            by_priority = self.scheduling_policy == "priority" and instance.priorities is not None
            given = instance.priorities if by_priority else np.zeros(len(instance))
            return np.array(given, dtype=np.float64)
        return np.asarray(self.order.keys(instance, clock), dtype=np.float64)

    def blocks(self, instance: Instance) -> int:
        """Return the blocks of the KV cache, refusing requests that would never fit."""
        size, memory = self.block_size, instance.memory
        count = memory // size + 1 if self.num_gpu_blocks is None else self.num_gpu_blocks
        usable = count - 1
        if usable * size > memory:
            raise PolicyError(
                f"policy {self.name!r}: num_gpu_blocks is {count}, of which {usable} hold "
                f"{usable * size} tokens, but the memory is {memory}; lower it, or raise the memory"
            )
        needed = -(-(instance.peaks - 1) // size)  # the last token is never stored
        wrong = (
            (instance.prompts < 1, "has no prompt, which vLLM refuses; leave it out"),
            (
                needed > usable,
                f"needs {int(needed.max())} blocks of {size} tokens, but there are {usable}; leave "
                "it out, or give more memory",
            ),
            (
                instance.peaks > (self.max_model_len or np.inf),
                f"is longer than max_model_len, {self.max_model_len}, at which vLLM cuts outputs; "
                "leave it out, or cut its output",
            ),
            (
                ~np.array(self.enable_chunked_prefill)
                & (instance.peaks - 1 > self.max_num_batched_tokens),
                f"may be longer than a batch of {self.max_num_batched_tokens} tokens, which needs "
                "chunks; raise max_num_batched_tokens, or set enable_chunked_prefill",
            ),
        )
        for mask, reason in wrong:
            if mask.any():
                index = int(np.argmax(needed if mask is wrong[1][0] else mask))
                raise PolicyError(f"policy {self.name!r}: request {instance.label(index)} {reason}")
        return count

    def ranks(self, instance: Instance) -> Ranks:
        """Return the order in which requests of equal keys are admitted and preempted."""
        count, levels = len(instance), instance.arrivals.copy()
        if self.scheduling_policy == "fcfs" and not self.reorders:
            return Ranks(np.arange(count), levels)
        labels = np.array(instance.labels or [str(request) for request in range(count)])
        known = levels if instance.follows is None else np.zeros_like(levels)
        return Ranks(ranks_in(np.lexsort((labels, known))), levels)


VLLM = VllmPolicy(
    "vllm",
    "decodes, then chunks of prompts, in blocks of KV cache",
    source="vLLM 0.33.0, its scheduler v1",
)
