"""What a claim assumes, what a run did, and whether the one covers the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: From when on the token that a batch makes takes memory. The papers count it in that batch; an
#: engine stores its keys and values when the next batch has it as input.
Storage = Literal["at-once", "next-batch"]
#: What becomes of a request that is stopped, if any is: it starts anew; its tokens are kept and
#: computed again; its keys and values are kept elsewhere.
Preemption = Literal["none", "restarted", "recomputed", "resumed"]
#: What is told of an output before its request ends: itself, or an interval or another estimate.
Knowledge = Literal["outputs", "forecast", "nothing"]
TOLD: dict[Knowledge, str] = {
    "outputs": "every true output",
    "forecast": "a forecast of the outputs",
    "nothing": "nothing of an output before it ends",
}
KNOWLEDGE = tuple(TOLD)
STORAGES: tuple[Storage, ...] = get_args(Storage)
PREEMPTIONS: tuple[Preemption, ...] = get_args(Preemption)


@dataclass(frozen=True)
class World:
    """What a claim assumes of a run, or what is true of one.

    A premise on storage or preemption also allows the values listed before its own.
    """

    fingerprint: str = field(repr=False)  # of the instance, and of workers that differ
    workers: int | None = 1  # independent of each other; None: those of the fingerprint
    clock: tuple[float, ...] | None = None  # the coefficients; None: steps; empty: a function
    step: float = 1.0  # of arrivals, in the unit of the clock
    storage: Storage = "at-once"
    preemption: Preemption = "none"
    max_num_seqs: int | None = None  # requests of a batch at most; None: as many as fit
    restricted: bool = False  # to what meets all deadlines, or ends by a horizon
    unfinished: int = 0  # requests that a run left
    cached: bool = False  # tokens were found in a prefix cache, a request's own ones among them
    objective: str = "total-latency"

    def to_dict(self) -> dict[str, object]:
        """Return what JSON says of the premises of a bound."""
        return {
            "time": "steps" if self.clock is None else "clock",
            "storage": self.storage,
            "preemption": self.preemption,
            "workers": self.workers,
            "max_num_seqs": self.max_num_seqs,
            "objective": self.objective,
        }

    def says(self, value: str, unit: str) -> str:
        """Say what a bound claims under these premises."""
        count = "" if self.workers is None else f" {self.workers}"
        on = "" if self.workers == 1 else f" on these{count} workers"
        within = f" with at most {self.max_num_seqs} requests in a batch"
        within *= self.max_num_seqs is not None
        if self.storage != "at-once":
            within += " whose tokens take memory one batch later"
        within += " that meets all deadlines and the horizon" * self.restricted
        if self.objective == "late-requests":
            return f"no schedule{on}{within} has fewer than {value} late requests"
        cost = self.objective.replace("-", " ")
        return f"no schedule{on}{within} has a {cost} below {value} {unit}"


def deployable(
    ranked: Sequence[tuple[str, Knowledge | None, float]],
    write: Callable[[float], str],
    what: str = "policies",
    measure: str = "mean latency",
) -> list[str]:
    """Say which is the best that can be deployed, and what true outputs would give beyond it."""
    told, able = ([each for each in ranked if (each[1] == "outputs") == knows] for knows in (1, 0))
    if not able:
        return [
            f"All {what} here are told every true output, which no server is: none can be deployed."
        ]
    name, knows, value = able[0]
    if knows is None:  # not of `optsched.run`
        return []
    said = f"Of the {what} that can be deployed, {name} has the least {measure}, {write(value)}"
    found = [f"{said}; it is told {TOLD[knows]}."]
    if told:
        other, _, least = told[0]
        share = least / value - 1 if value else 0.0
        less = f": {abs(share):.1%} {'more' if share > 0 else 'less'}" if share else ", too"
        found.append(f"{other}, told {TOLD['outputs']}, has {write(least)}{less}.")
    return found


class Claim(Protocol):
    """A proven lower bound."""

    @property
    def value(self) -> float:
        """The bound."""

    @property
    def premises(self) -> World:
        """Of which runs it holds."""


NOWHERE = World("")  # covers no run
AnyClaim = TypeVar("AnyClaim", bound=Claim)


def uncovered(premises: World, facts: World) -> str | None:
    """Return in a clause why what is proven under the premises says nothing of a run; else None."""
    if facts.unfinished:
        return "requests are unfinished"
    alike = premises.clock is None or premises.workers == facts.workers
    if premises.fingerprint != facts.fingerprint or not alike:
        return "the bound is of another instance, or of other workers"
    if premises.restricted and not facts.restricted:
        return "the bound holds only for schedules that meet all deadlines and the horizon"
    if premises.objective != facts.objective:
        return f"the bound is on the {premises.objective}, not on the {facts.objective}"
    if (premises.clock is None) != (facts.clock is None):
        return "of bound and run one counts in steps and the other runs on a clock"
    if premises.clock is not None and facts.clock is not None:
        pairs = zip(premises.clock, facts.clock, strict=False)
        if not facts.clock or premises.step != facts.step or any(a > b for a, b in pairs):
            return "batches may take less time than on the clock of the bound"
    if STORAGES.index(facts.storage) > STORAGES.index(premises.storage):
        return "tokens are stored one batch later than the bound counts them"
    if PREEMPTIONS.index(facts.preemption) > PREEMPTIONS.index(premises.preemption):
        return (
            f"requests that are stopped are {facts.preemption}, which the bound does not allow for"
        )
    if facts.cached and not premises.cached:
        return "tokens were found in a prefix cache, which the bound counts as computed"
    limit = premises.max_num_seqs
    if limit is not None and (facts.max_num_seqs is None or facts.max_num_seqs > limit):
        return f"batches may have more than {limit} requests"
    return None


def strongest(claims: Iterable[AnyClaim], facts: World) -> tuple[AnyClaim | None, str | None]:
    """Return the largest bound that covers a run; or None, and why the first one does not."""
    listed = list(claims)
    reasons = [uncovered(claim.premises, facts) for claim in listed]
    covering = [claim for claim, reason in zip(listed, reasons, strict=True) if reason is None]
    if covering:
        return max(covering, key=lambda claim: claim.value), None
    return None, reasons[0] if reasons else "there is no bound on this clock"
