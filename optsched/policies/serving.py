"""First come, first served without knowing outputs: how serving engines form batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optsched.errors import PolicyError

#: How prompts and decodes share batches.
Batching = Literal["mixed", "prefill-first", "chunked"]


@dataclass(frozen=True)
class EnginePolicy:
    """Admit in order of arrival while prompts fit beside what is held now; run on a clock.

    Outputs are unknown, so the memory may run out: then the request admitted last gives up its KV
    cache and waits again, keeping its tokens as part of the prompt to be prefilled anew.

    Parameters
    ----------
    name
        Short name for tables and the command line.
    title
        What the policy does, in a few words.
    batching
        "mixed": all decodes with whole prompts beside them. "prefill-first": prompts alone while
        any can be admitted, else all decodes. "chunked": all decodes, and prompt tokens up to the
        token limit.
    requests_most
        Requests admitted at a time at most.
    tokens_most
        Tokens of a batch at most: those prefilled, and one for each decode. A longer prompt is the
        only one in its batch, unless it is chunked.

    Raises
    ------
    PolicyError
        If a limit is below 1, or tokens do not suffice for a decode of each request.

    Examples
    --------
    >>> from optsched import Instance, execute
    >>> small = EnginePolicy("small", "two at a time", requests_most=2)
    >>> execute(Instance([5] * 3, [2] * 3, memory=50), small, clock="unit").completions
    array([2., 2., 4.])
    """

    name: str
    title: str
    batching: Batching = "mixed"
    requests_most: int = 256
    tokens_most: int = 2048

    def __post_init__(self) -> None:
        if self.requests_most < 1:
            raise PolicyError(
                f"policy {self.name!r}: requests_most is {self.requests_most}, but at least 1 "
                "request must be served at a time"
            )
        if self.tokens_most < self.requests_most:
            raise PolicyError(
                f"policy {self.name!r}: tokens_most is {self.tokens_most}, below requests_most, "
                f"{self.requests_most}, each of which may decode; raise it"
            )


ENGINES = (
    EnginePolicy("mixed", "first come, first served, decodes and whole prompts in one batch"),
    EnginePolicy("vllm", "first come, first served, prompts before decodes", "prefill-first"),
    EnginePolicy("sarathi", "first come, first served, decodes and chunks of prompts", "chunked"),
)
