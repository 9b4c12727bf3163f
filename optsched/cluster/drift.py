"""How the load of a request changes with its age (BF-IO Definition 2 and beyond)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import as_integers
from optsched.errors import InstanceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.instance import Instance


@dataclass(frozen=True, eq=False)
class Profiles:
    r"""The load of each request at each of its steps, :math:`W_i = (w_i^{(1)}, ..., w_i^{(o_i)})`.

    Parameters
    ----------
    loads
        One sequence of whole numbers from 0 per request, as long as its output. What stands first
        is what the router sees of a waiting request, in the place of its prompt.

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


def gains_of(instance: Instance, drift: int | npt.ArrayLike | Profiles, horizon: int) -> Gains:
    r"""Tabulate :math:`w_i^{(j)}` by age."""
    if isinstance(drift, Profiles):
        return _profiles(instance, drift, horizon)
    steps = as_integers("drift", np.atleast_1d(np.asarray(drift)))
    if len(steps) == 0:
        raise InstanceError("drift is an empty sequence; pass at least one number")
    ages = max(int(instance.outputs.max()), int(_most_outputs(instance).max())) + horizon + 1
    gains = np.zeros(ages + 1, dtype=np.int64)
    gains[1:] = np.cumsum(np.pad(steps[:ages], (0, max(0, ages - len(steps))), mode="edge"))
    least = np.minimum.accumulate(gains)
    below = instance.prompts + least[instance.outputs - 1] < 0
    if below.any():
        request = int(np.argmax(below))
        raise InstanceError(
            f"request {request}: drift takes its load from {instance.prompts[request]} to "
            f"{instance.prompts[request] + least[instance.outputs[request] - 1]} tokens, below "
            "zero; use a drift that stops before",
            request=request,
        )
    n = len(instance)
    shared = np.zeros(n, dtype=np.int64)
    return Gains(instance.prompts, gains, shared, shared + ages, gains[: horizon + 1].copy())


def reservations(instance: Instance, gains: Gains) -> IntArray:
    """Return the most tokens that each request can come to hold, by what is known on admission."""
    most = np.empty(len(instance), dtype=np.int64)
    shared = not gains.first.any() and (gains.last == gains.last[0]).all()
    if shared:
        highest = np.maximum.accumulate(gains.gains)
        return gains.sizes + highest[_most_outputs(instance)]
    for request, (first, last) in enumerate(zip(gains.first, gains.last, strict=True)):
        most[request] = gains.gains[first : first + last + 1].max()
    return gains.sizes + most


def _most_outputs(instance: Instance) -> IntArray:
    return instance.outputs if instance.output_upper is None else instance.output_upper


def _profiles(instance: Instance, drift: Profiles, horizon: int) -> Gains:
    if len(drift.loads) != len(instance):
        raise InstanceError(
            f"there are {len(drift.loads)} profiles for {len(instance)} requests; pass one each"
        )
    loads = [as_integers("profile", profile) for profile in drift.loads]
    for request, (load, output) in enumerate(zip(loads, instance.outputs, strict=True)):
        if len(load) != output:
            raise InstanceError(
                f"request {request}: its profile has {len(load)} loads, but it makes {output} "
                "tokens; pass one load per token",
                request=request,
            )
        if load.min() < 0:
            raise InstanceError(
                f"request {request}: its profile falls to {load.min()}, below zero",
                request=request,
            )
    lengths = np.array([len(load) for load in loads], dtype=np.int64)
    sizes = np.array([load[0] for load in loads], dtype=np.int64)
    growth = np.zeros(horizon + 1, dtype=np.int64)
    for age in range(1, horizon + 1):
        alive = [int(load[age] - load[0]) for load in loads if len(load) > age]
        growth[age] = round(sum(alive) / len(alive)) if alive else growth[age - 1]
    return Gains(
        sizes,
        np.concatenate([load - load[0] for load in loads]),
        np.cumsum(lengths) - lengths,
        lengths - 1,
        growth,
    )
