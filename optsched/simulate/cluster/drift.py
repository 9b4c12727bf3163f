"""How the load of a request changes with its age (BF-IO Definition 2 and beyond)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arrays import MAX_TOKENS, as_integers
from optsched._internal.room import require_room
from optsched.errors import InstanceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance


@dataclass(frozen=True, eq=False)
class Profiles:
    """The load of each request at each of its steps, :math:`W_i = (w_i^{(1)}, ..., w_i^{(o_i)})`.

    Parameters
    ----------
    loads
        One sequence of whole numbers from 0 per request, as long as its output. The first is what
        the router sees of a waiting request instead of its prompt.

    Examples
    --------
    A prompt that is pruned while the request runs:

    >>> from optsched import Cluster, Instance, run
    >>> shrinking = Profiles([[9, 5, 2], [4, 4]])
    >>> cluster = Cluster(1, 2)
    >>> run(Instance([9, 4], [3, 2], 99), "fcfs", cluster=cluster, drift=shrinking).total_load
    array([13,  9,  2])
    """

    loads: Sequence[npt.ArrayLike]


class Gains(NamedTuple):
    """The tokens that requests have gained by their age, in one array."""

    sizes: IntArray
    gains: IntArray
    first: IntArray
    last: IntArray
    growth: IntArray
    reserved: IntArray  # the most that each can come to hold, by what is known on admission


def gains_of(instance: Instance, drift: float | npt.ArrayLike | Profiles, horizon: int) -> Gains:
    r"""Tabulate :math:`w_i^{(j)}` by age."""
    if isinstance(drift, Profiles):
        return _profiles(instance, drift, horizon)
    outputs = instance.outputs
    longest = outputs if instance.output_upper is None else instance.output_upper
    ages = int(max(outputs.max(), longest.max())) + horizon + 1
    require_room(ages, 64, "ages of requests", "take shorter outputs or windows", InstanceError)
    gains = _summed(np.atleast_1d(np.asarray(drift)), ages)
    least = instance.prompts + np.minimum.accumulate(gains)[outputs - 1]
    if least.min() < 0:
        request = int(np.argmax(least < 0))
        raise InstanceError(
            f"request {request}: drift takes its load from {instance.prompts[request]} to "
            f"{least[request]} tokens, below zero; use a drift that stops before",
            request=request,
        )
    return Gains(
        instance.prompts,
        gains,
        first=np.zeros_like(outputs),
        last=np.full_like(outputs, ages),
        growth=gains[: horizon + 1].copy(),
        reserved=instance.prompts + np.maximum.accumulate(gains)[longest],
    )


def _summed(drift: npt.NDArray[Any], ages: int) -> IntArray:
    """Sum a drift up by age, in whole tokens: what is less than one is not gained yet."""
    if len(drift) == 0:
        raise InstanceError("drift is an empty sequence; pass at least one number")
    scale = 1
    if drift.dtype.kind == "f" and np.isfinite(drift).all():
        # Each number is the decimal that it is written as, so that ten times 0.1 is one token.
        shares = [Fraction(str(step)) for step in drift.tolist()]
        scale = math.lcm(*(share.denominator for share in shares))
        if max(abs(share) for share in shares) * scale * ages > MAX_TOKENS:
            raise InstanceError(f"drift is {drift.tolist()}, with too many digits; round it")
        drift = np.array([int(share * scale) for share in shares])
    steps = as_integers("drift", drift)
    gains = np.zeros(ages + 1, dtype=np.int64)
    gains[1:] = np.cumsum(np.pad(steps[:ages], (0, max(0, ages - len(steps))), mode="edge"))
    return gains // scale


def _profiles(instance: Instance, drift: Profiles, horizon: int) -> Gains:
    if len(drift.loads) != len(instance):
        raise InstanceError(
            f"there are {len(drift.loads)} profiles for {len(instance)} requests; pass one each"
        )
    loads = [as_integers("profile", profile) for profile in drift.loads]
    for request, (load, output) in enumerate(zip(loads, instance.outputs, strict=True)):
        wrong = ""
        if len(load) != output:
            wrong = f"has {len(load)} loads, but it makes {output} tokens; pass one load per token"
        elif load.min() < 0:
            wrong = f"falls to {load.min()}, below zero"
        if wrong:
            raise InstanceError(f"request {request}: its profile {wrong}", request=request)
    lengths = np.array([len(load) for load in loads])
    growth = np.zeros(horizon + 1, dtype=np.int64)
    for age in range(1, horizon + 1):
        alive = [int(load[age] - load[0]) for load in loads if len(load) > age]
        growth[age] = round(sum(alive) / len(alive)) if alive else growth[age - 1]
    return Gains(
        sizes=np.array([load[0] for load in loads]),
        gains=np.concatenate([load - load[0] for load in loads]),
        first=np.cumsum(lengths) - lengths,
        last=lengths - 1,
        growth=growth,
        reserved=np.array([load.max() for load in loads]),
    )
