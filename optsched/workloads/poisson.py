"""Requests of given types that arrive in Poisson processes, as the fluid model has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import InstanceError
from optsched.instance import Instance

if TYPE_CHECKING:
    from optsched.workloads.request_types import RequestTypes

_STEP = 1e-6  # seconds; arrivals are rounded down to it


def poisson_requests(
    types: RequestTypes, seconds: float, memory: int, *, seed: int = 0
) -> Instance:
    r"""Draw the requests that arrive in a time, each type in a Poisson process of its own.

    Parameters
    ----------
    types
        Lengths and rates. Where their prefill makes no token, as in the paper, a request of type
        :math:`(l, l')` gets :math:`l - 1` prompt and :math:`l' + 1` output tokens: so it takes
        :math:`l' + 1` batches and holds :math:`l, l + 1, \dots, l + l'` tokens in them.
    seconds
        How long requests arrive.
    memory
        Tokens that the worker holds at most.
    seed
        Seed of the random generator.

    Returns
    -------
    Instance
        The requests by time of arrival, in steps of a microsecond.

    Raises
    ------
    InstanceError
        If the time is not positive, no request arrives in it, or a type without prompt tokens has a
        prefill that makes no token.

    Examples
    --------
    >>> from optsched import RequestTypes
    >>> types = RequestTypes([10, 10], [10, 20], [100, 100])
    >>> requests = poisson_requests(types, 1.0, memory=10_000, seed=1)
    >>> len(requests), set(requests.prompts.tolist()), set(requests.outputs.tolist())
    (194, {9}, {11, 21})
    """
    if not 0 < seconds < np.inf:
        raise InstanceError(f"seconds is {seconds}, but must be a number above 0")
    shift = 1 - types.first_stage
    if (types.prompts < shift).any():
        raise InstanceError(
            "a type has no prompt tokens, so that its prefill holds none and makes none; give "
            "it one, or set prefill_makes_token"
        )
    rng = np.random.default_rng(seed)
    counts = rng.poisson(types.rates * seconds)
    if counts.sum() == 0:
        raise InstanceError(f"no request arrives in {seconds:g} s; pass more time, or higher rates")
    kinds = np.repeat(np.arange(len(types)), counts)
    arrivals = np.floor(rng.random(len(kinds)) * (seconds / _STEP)).astype(np.int64)
    order = np.argsort(arrivals, kind="stable")
    return Instance(
        types.prompts[kinds[order]] - shift,
        types.outputs[kinds[order]] + shift,
        memory,
        arrivals[order],
        name=f"{len(types)} types, Poisson",
        seconds_per_step=_STEP,
    )
