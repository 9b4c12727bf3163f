"""Deadlines, tenants and energy of a cluster's requests, in the terms of its step program."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.errors import InstanceError, PolicyError

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.cluster import Cluster
    from optsched.problem.instance import Instance


class Tenants(NamedTuple):
    """Who sent the requests: names, the number of each request's tenant, and weights."""

    names: tuple[str, ...]
    number: IntArray
    weights: FloatArray


def tenants_of(instance: Instance) -> Tenants | None:
    """Read tenants and their mean weights from labels such as acme/17; None unless all name one."""
    labels = instance.labels
    if labels is None or not all("/" in label for label in labels):
        return None
    owners = [label.partition("/")[0] for label in labels]
    names, number = np.unique(owners, return_inverse=True)
    weights = np.ones(len(instance)) if instance.weights is None else instance.weights
    means = np.bincount(number, weights) / np.bincount(number)
    return Tenants(tuple(names.tolist()), number.astype(np.int64), means)


def require_tenants(instance: Instance) -> Tenants:
    """Return the tenants, or say what is missing."""
    tenants = tenants_of(instance)
    if tenants is None:
        raise InstanceError(
            "tenants are read from labels such as acme/17, but not every request has one; add a "
            "column label",
            column="labels",
        )
    return tenants


def require_deadlines(instance: Instance) -> IntArray:
    """Return the latest completions, or say what is missing."""
    if instance.deadlines is None:
        raise InstanceError(
            "the requests have no deadlines; add a column deadline", column="deadlines"
        )
    return instance.deadlines


def longest_outputs(instance: Instance) -> IntArray:
    """Return the outputs that requests are planned with: upper bounds where there are any."""
    return instance.outputs if instance.output_upper is None else instance.output_upper


def fair_slots(weights: FloatArray, demands: IntArray, slots: int) -> IntArray:
    """Divide slots max-min fair by weight, rounded down, to none more than it can use."""
    left = np.ones(len(weights), dtype=bool)
    shares = np.zeros(len(weights))
    free = float(slots)
    while left.any() and free > 0:
        even = free * weights / weights[left].sum()
        content = left & (demands <= even)
        if not content.any():
            shares[left] = even[left]
            break
        shares[content] = demands[content]
        free -= float(demands[content].sum())
        left &= ~content
    return np.floor(shares + 1e-9).astype(np.int64)


def slot_price(loads: IntArray, sizes: IntArray) -> int:
    """Return the tokens of imbalance that a slot is worth to the tenant worst off."""
    # The largest waiting request, on every worker and at every step of the window.
    return loads.size * int(sizes.max())


def jain(served: FloatArray, tenants: Tenants) -> float:
    """Return Jain's index of what each tenant got by weight: 1 is even, 1 / T all to one."""
    each = served / tenants.weights
    total = float(each.sum())
    return total**2 / (len(each) * float((each**2).sum())) if total > 0 else 1.0


def require_power(cluster: Cluster) -> None:
    """Refuse clusters whose energy has no linear form in the largest load and the sum."""
    power = cluster.power
    if power.utilisation != "load" or power.exponent > 1:
        raise PolicyError(
            "an energy price needs a power law by load with an exponent of at most 1, but the "
            f"cluster has utilisation={power.utilisation!r}, exponent={power.exponent:g}"
        )
    if len(np.unique(cluster.per_worker("slowness"))) > 1:
        raise PolicyError("an energy price needs workers of one slowness")


def energy_bonus(cluster: Cluster, loads: IntArray, tokens: IntArray, price: float) -> IntArray:
    """Return what small requests are worth when a joule costs price tokens of imbalance."""
    # At each step a token of load costs some tokens of imbalance (docs/cluster.md); a request is
    # worth what the costliest one costs more. loads: (G, H + 1); tokens: (R, H + 1).
    power, seconds = cluster.power, cluster.seconds_per_token
    spread = power.peak_watt - power.idle_watt
    slowness = int(cluster.per_worker("slowness")[0])
    peak = loads.max(axis=0) * slowness
    of_peak = seconds * (power.idle_watt + (1 - power.exponent) * spread)
    # Where nothing runs, the share of the load is 1 at most, and has no part in the sum.
    overhead = np.divide(cluster.overhead_s, peak, out=np.zeros(len(peak)), where=peak > 0)
    of_sum = power.exponent * spread * (seconds + overhead)
    kappa = price * (of_peak + of_sum) / (1 + price * of_peak)
    costs = slowness * tokens @ kappa
    return np.asarray(np.rint(costs.max(initial=0) - costs), dtype=np.int64)
