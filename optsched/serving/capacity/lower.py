"""At least: how many workers objectives need, whoever schedules, with a certificate."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.bounds.on_clock import PARTS, least_work
from optsched.certificates.capacity import CapacityCertificate, Goal
from optsched.clock import UNIT
from optsched.problem.work import step_of
from optsched.serving.capacity.demand import Charging, Demand
from optsched.serving.capacity.slo import ROUNDING
from optsched.serving.capacity.windows import Proof, best_proof

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.clock import LinearClock
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Storage
    from optsched.serving.capacity.slo import Slo

_MAX_SETS = 3  # objectives of which all combinations are tried


@dataclass(frozen=True)
class AtLeast:
    """What is proven for some objectives.

    Attributes
    ----------
    workers
        No scheduler meets the objectives with fewer; 1 where nothing more is proven.
    slos
        The objectives that the proof is about.
    certificate
        What proves it; None for objectives about which nothing is known, such as a mean of TPOT.
    why
        The proof in a clause.
    """

    workers: int
    slos: tuple[Slo, ...]
    certificate: CapacityCertificate | None = None
    why: str = "one worker is needed by anyone"


@dataclass(frozen=True)
class Bounded:
    """What the proofs are about: requests, batches, and what engines may do."""

    instance: Instance
    clock: LinearClock
    max_num_seqs: int = 0
    storage: Storage = "at-once"
    shared: bool = False
    timed: bool = False  # whether batches are formed on a clock; else requests run in steps

    def certificate(
        self, workers: int, slos: Sequence[Slo], demand: Demand, proof: Proof
    ) -> CapacityCertificate:
        """Return a certificate about some objectives."""
        goals = tuple(
            Goal(
                slo.limits,
                None if slo.share is None else slo.misses(int(slo.asked(self.instance).sum())),
                slo.tenant,
            )
            for slo in slos
        )
        return CapacityCertificate(
            workers,
            goals,
            self.instance.fingerprint,
            tuple(self.clock.coefficients.tolist()),
            step_of(self.instance, self.clock) or 1.0,
            self.clock.unit,
            proof.windows,
            self.max_num_seqs,
            *demand.charging,
            self.storage,
            self.shared,
            proof.price,
            tuple(demand.offsets.tolist()),
            tuple(demand.multipliers.tolist()) if demand.charging.by_time else (),
        )

    @property
    def needed(self) -> Instance:
        """The requests with what each of them needs, whatever others leave in a prefix cache."""
        instance = self.instance
        if not self.shared or instance.hash_ids is None or instance.hash_block is None:
            return instance
        times = Counter(
            itertools.chain.from_iterable(set(ids.tolist()) for ids in instance.hash_ids)
        )
        found = [sum(times[key] > 1 for key in ids.tolist()) for ids in instance.hash_ids]
        left = instance.prompts - np.array(found) * instance.hash_block
        return instance.replace(
            prompts=np.maximum(0, left),
            outputs=np.maximum(1, instance.outputs + np.minimum(0, left)),
            hash_ids=None,
            hash_block=None,
        )


def late_alone(world: Bounded, slo: Slo) -> tuple[IntArray, bool]:
    """Return requests that miss an objective even alone, and whether no workers can meet it."""
    instance = world.needed
    work, asked = least_work(instance, world.clock), slo.asked(instance)
    first = work.first + work.constant
    decoding = np.where(work.decodes > 0, (work.own - first) / np.maximum(work.decodes, 1), 0.0)
    alone = {"latency": work.own, "ttft": first, "tpot": decoding}
    late: BoolArray = np.zeros(len(instance), dtype=np.bool_)
    rounding = 1 if world.clock is UNIT else 1 + ROUNDING
    for metric, limit in slo.limits.items():
        late |= asked & (alone[metric] * (1 - 2.0**-40) > limit * rounding)
    if slo.share is not None:
        return np.flatnonzero(late), int(late.sum()) > slo.misses(int(asked.sum()))
    ((metric, limit),) = slo.limits.items()
    least = math.fsum(alone[metric][asked]) * (1 - 2.0**-40)
    hopeless = least > limit * rounding * int(asked.sum())
    return np.flatnonzero(late & hopeless), hopeless


def at_least(world: Bounded, slos: Sequence[Slo]) -> AtLeast:
    """Return the largest number of workers that is proven to be needed."""
    best = AtLeast(1, tuple(slos))
    means = [(slo,) for slo in slos if slo.share is None and "tpot" not in slo.limits]
    for some in [*_sets_of(slos), *means]:
        demand, proof = _best_windows(world, some)
        workers = max(1, math.ceil(proof.value))
        if best.certificate is None or workers > best.workers:
            certificate = world.certificate(workers, some, demand, proof)
            why = _said(proof, world.clock.unit) if workers > 1 else best.why
            best = AtLeast(workers, some, certificate, why)
    return best


def _said(proof: Proof, unit: str) -> str:
    """Return a proof in a clause."""
    begin, end, _ = max(proof.windows, key=lambda window: window[2] * (window[1] - window[0]))
    when = f"from {begin:,.6g} to {end:,.6g} {unit} after the first arrival"
    takes = f"takes {proof.value:,.3f} workers"
    if len(proof.windows) == 1:
        return f"what must be done {when} {takes}"
    return f"what must be done in {len(proof.windows)} windows, mainly {when}, {takes}"


def _sets_of(slos: Sequence[Slo]) -> list[tuple[Slo, ...]]:
    """Return sets of objectives about shares of the requests that are looked at together."""
    shares = [slo for slo in slos if slo.share is not None]
    sizes = range(1, len(shares) + 1) if len(shares) <= _MAX_SETS else (1, len(shares))
    return [some for size in sizes for some in itertools.combinations(shares, size)]


def _best_windows(world: Bounded, slos: Sequence[Slo]) -> tuple[Demand, Proof]:
    """Return the demand that proves most, however constants are charged, and in which windows."""
    half = PARTS // 2
    ways = [Charging(), Charging(0, half), Charging(0, PARTS)]
    if world.max_num_seqs:
        ways += [Charging(PARTS, 0), Charging(half, half), Charging(half, 0)]
    if slos[0].share is None:
        ways = [way for way in ways if way.by_time != half]
    if not any(world.clock.coefficients[1:]):
        ways = [way for way in ways if not way.by_time]
    limits = world.max_num_seqs, world.storage, world.shared
    demands = (Demand(world.needed, world.clock, slos, way, *limits) for way in ways)
    found = [(demand, best_proof(demand)) for demand in demands]
    return max(found, key=lambda each: each[1].value)
