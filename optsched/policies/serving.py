"""First come, first served without knowing outputs: how serving engines form batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np

from optsched._internal.arguments import checked
from optsched.errors import PolicyError, require_known
from optsched.policies.base import NamedPolicy, Needs

if TYPE_CHECKING:
    from optsched.problem.instance import Instance

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
        0 <= watermark < 1,
        f"watermark is {watermark:g}, but must be a share from 0 to below 1",
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
