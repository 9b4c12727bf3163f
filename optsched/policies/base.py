"""What a policy is and what it declares; orders of requests, and choices of batches of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from optsched._internal.arguments import checked, noted
from optsched._internal.compiled import compiled
from optsched.admission import NEVER, WINDOW_LENGTH, WINDOW_RATIO
from optsched.clock import UNIT, Clock, LinearClock
from optsched.errors import PolicyError, nearest
from optsched.problem.forecasts import told_by

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Knowledge

T = TypeVar("T")

#: What happens when a waiting request does not fit: none after it is tried at this step, the
#: others are, they may start only into room that no more urgent one is planned to use, or those
#: among the next ones that ask for hardly more than it are tried, as "window:RATIO,LENGTH" says.
Rule = str
RULES = ("prefix", "skip", "backfill", "window")
SWITCHES = ("fair", "gittins", "learned", "plan")  # of vllm, which stand in the place of a rule

_FORESEES: dict[str, Literal["intervals", "beliefs"]] = {  # by kind
    "plan": "intervals",
    "rolling": "intervals",
    "chance": "beliefs",
    "decision": "beliefs",
}


class Needs(NamedTuple):
    """What a policy requires: how it is run, what it knows, and whether rules apply to it.

    "hindsight" knows the outputs even beside policies that only know intervals.
    """

    kind: str  # names its runner (`optsched.simulate.runners`)
    knows: Literal["outputs", "hindsight", "intervals", "either"] = "either"
    rules: bool = False  # whether other rules of admission than the prefix rule may apply


class Policy:
    """What all policies have: a name, a description, a source, and what they need."""

    name: str
    description: str
    source: str
    needs: ClassVar[Needs]

    def checked_keys(
        self, keys: npt.ArrayLike, requests: Sequence[int] | IntArray, label: Callable[[int], str]
    ) -> npt.NDArray[np.number]:
        """Return keys of requests as an array; refuse what is not one number for each."""
        key = np.asarray(keys)
        self.require(
            key.shape == (len(requests),) and np.issubdtype(key.dtype, np.number),
            f"the key has shape {key.shape} and type {key.dtype}, but must be one number for each "
            f"of {len(requests)} requests",
        )
        if (unordered := np.isnan(key)).any():
            request = label(int(requests[int(np.argmax(unordered))]))
            raise PolicyError(f"policy {self.name!r}: the key of request {request} is not a number")
        return key

    def require(self, holds: bool | np.bool_, text: str) -> None:
        """Refuse a setting that does not hold what it must."""
        if not holds:
            raise PolicyError(f"policy {self.name!r}: {text}")

    def due(self, deadlines: FloatArray | None) -> FloatArray:
        """Return deadlines in the unit of a run; refuse requests that have none."""
        if deadlines is not None:
            return deadlines
        raise PolicyError(
            f"policy {self.name!r} goes by deadlines, which the requests do not have in the unit "
            "of the run; add them, on a clock with the length of a step (arrival_s, or "
            "seconds_per_step), or use another policy, such as area"
        )

    def linear(self, clock: Clock, instead: str) -> LinearClock:
        """Return a clock that is a weighted sum; refuse a function, which another policy takes."""
        if isinstance(clock, LinearClock):
            return clock
        raise PolicyError(
            f"policy {self.name!r} needs a clock that is a weighted sum of what is in a batch, but "
            f"{clock.name} is a function; use {instead}, or pass a LinearClock"
        )

    @property
    def foresees(self) -> Literal["nothing", "intervals", "beliefs"]:
        """What it looks at where outputs are unknown: nothing, or intervals, or what is likely."""
        return _FORESEES.get(self.needs.kind, "nothing")

    def knows(self, instance: Instance, intervals: str | None = None) -> Knowledge:
        """Return what it is told of an output of the instance before that request ends.

        A policy that plans memory with the outputs is told them, whatever its order looks at, as
        "fcfs" in steps is. `RunSettings.knows` counts the router, too.
        """
        if self.needs.knows in ("outputs", "hindsight"):
            return "outputs"
        return "nothing" if self.foresees == "nothing" else told_by(instance, intervals)

    def asks_for(self, beliefs: T) -> T | None:
        """Return beliefs, or nothing where it does not look at them."""
        return beliefs if self.foresees == "beliefs" else None

    def seeded(self, seed: int) -> Policy:
        """Return the policy that draws from a seed: itself, unless it is random in itself."""
        return self

    def parsed(self, parameters: str) -> Policy:
        """Return the policy with the parameters that stand after the colon of its name."""
        raise PolicyError(f"policy {self.name!r} has no parameters; leave ':{parameters}' out")

    def with_options(self, names: str) -> Policy:
        """Return the policy that plans, learns or is fair, as engines with such options do."""
        raise PolicyError(
            f"policy {self.name!r} has no rule {names!r}, which is for vllm; leave it out"
        )


AnyPolicy = TypeVar("AnyPolicy", bound=Policy)


@dataclass(frozen=True)
class NamedPolicy(Policy):
    """What a policy is called, in tables and on the command line."""

    name: str
    description: str
    source: str = field(default="", kw_only=True)


@checked(PolicyError)
@dataclass(frozen=True)
class PriorityPolicy(NamedPolicy):
    """Admit waiting requests by ascending key; equal keys in order of arrival.

    Parameters
    ----------
    name, description, source
        For tables and the command line, as in all policies.
    key
        Returns one number per request, shape (n,); smaller is more urgent.
    rule
        What happens when a request does not fit: "prefix", "skip", "backfill" or "window".
    reads
        What the key looks at, "outputs" or "nothing" of them; None: what it is seen to read of an
        instance. It counts inside an engine; alone the policy plans memory with the outputs in any
        case.

    Examples
    --------
    >>> from optsched import Instance, PriorityPolicy, run
    >>> longest_first = PriorityPolicy("longest", "longest output first", lambda i: -i.outputs)
    >>> run(Instance([1, 1], [2, 3], memory=4), longest_first).schedule.starts
    array([3, 0])
    """

    key: Callable[[Instance], npt.NDArray[np.number]]
    rule: Rule = "prefix"
    reads: Literal["outputs", "nothing"] | None = field(default=None, kw_only=True)
    needs: ClassVar[Needs] = Needs("order", "outputs", rules=True)

    def order(self, instance: Instance, clock: Clock = UNIT) -> IntArray:
        """Return all request indices, most urgent first; the clock counts where keys are work."""
        key = self.checked_keys(self.keys(instance, clock), range(len(instance)), instance.label)
        return np.argsort(key, kind="stable").astype(np.int64)

    def looks_at_outputs(self, instance: Instance, clock: Clock = UNIT) -> bool:
        """Whether keys follow from outputs: as the author says, or as they are seen to be read."""
        if self.reads is not None:
            return self.reads == "outputs"
        shown, read = noted(instance, ("outputs",))
        self.keys(shown, clock)
        return bool(read)

    def keys(self, instance: Instance, clock: Clock) -> npt.NDArray[np.number]:
        """Return one number per request; smaller is more urgent."""
        return self.key(instance)


class BatchSelector(Protocol):
    """Chooses batches of waiting requests, to be admitted one after another."""

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        ...

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting: indices in the order of admission."""
        ...


@dataclass(frozen=True)
class BatchPolicy(NamedPolicy):
    """Choose a batch among the waiting requests, admit it in order, then choose the next.

    `selector` makes the selector of an instance: its `release` is told of requests that have
    arrived, and its `next_batch` returns some of them.
    """

    selector: Callable[[Instance], BatchSelector]
    rule: Rule = "prefix"
    needs: ClassVar[Needs] = Needs("batch", "outputs", rules=True)

    def batches(self, instance: Instance) -> BatchSelector:
        """Return a selector that raises PolicyError at a batch that cannot be admitted."""
        return _Checked(self, instance)


class _Checked:
    def __init__(self, policy: BatchPolicy, instance: Instance) -> None:
        self._selector = policy.selector(instance)
        self._name, self._instance = policy.name, instance
        self._waiting = np.zeros(len(instance), dtype=bool)

    def release(self, requests: IntArray) -> None:
        self._waiting[requests] = True
        self._selector.release(requests)

    def next_batch(self) -> IntArray:
        batch = np.asarray(self._selector.next_batch())
        if not len(batch):
            raise PolicyError(
                f"policy {self._name!r} returns an empty batch although requests wait"
            )
        if not np.issubdtype(batch.dtype, np.integer):
            raise PolicyError(
                f"policy {self._name!r} returns a batch of {batch.dtype}, not indices"
            )
        batch = batch.astype(np.int64, copy=False)
        place = _take(batch, self._waiting)
        if place == len(batch):
            return batch
        request = int(batch[place])
        if not 0 <= request < len(self._waiting):
            raise PolicyError(
                f"policy {self._name!r} returns the request {request}, but there are only 0 to "
                f"{len(self._waiting) - 1}"
            )
        raise PolicyError(
            f"policy {self._name!r} returns the request {self._instance.label(request)}, which "
            "does not wait: it has not arrived, or was in a batch before"
        )


@compiled
def _take(batch: IntArray, waiting: BoolArray) -> int:
    """Take requests out of those waiting; return the place of the first not among them."""
    for place in range(len(batch)):
        request = batch[place]
        if request < 0 or request >= len(waiting) or not waiting[request]:
            return place
        waiting[request] = False
    return len(batch)


def with_rule(policy: AnyPolicy, rule: Rule) -> AnyPolicy:
    """Return a policy under another rule of admission, named "policy+rule".

    At each step the waiting requests are tried in order. "prefix": the first that does not fit
    ends the step. "skip": the others are tried all the same, so that a large request may wait
    forever. "backfill": all are planned, each at its earliest feasible start given what runs and
    what was planned before, and whatever is planned for this step starts. "window": those of the
    first 128 are tried whose memory-time is at most 1.6 times that of the first that did not fit;
    "window:1.4,64" sets the ratio and the number.

    >>> from optsched.policies import get_policy
    >>> with_rule(get_policy("area"), "backfill").name
    'area+backfill'
    """
    name = str(rule).partition(":")[0]
    if name not in RULES or (":" in rule and name != "window"):
        known = SWITCHES if policy.needs.kind == "vllm" else RULES
        if known is SWITCHES:
            name = rule = next((part for part in rule.split("+") if part not in known), rule)
        raise PolicyError(f"unknown rule {rule!r}: {nearest(name, known)}")
    if name == "window":
        window_of(rule)
    if rule == "prefix":
        return policy
    if not policy.needs.rules:
        raise PolicyError(
            f"policy {policy.name!r} has its own rules of admission; the rule {rule!r} is for "
            "policies that order requests by their outputs"
        )
    ordered: Any = policy
    if ordered.rule == rule:
        return policy
    if ordered.rule != "prefix":
        raise PolicyError(f"the policy {policy.name!r} has a rule already; leave {rule!r} out")
    return cast("AnyPolicy", replace(ordered, name=f"{policy.name}+{rule}", rule=rule))


def window_of(rule: Rule) -> tuple[float, int]:
    """Return ratio and length of the window that a rule is.

    >>> window_of("window"), window_of("window:1.4,64")
    ((1.6, 128), (1.4, 64))
    >>> window_of("prefix"), window_of("skip")
    ((1.0, 1), (inf, 9223372036854775807))
    """
    if rule == "prefix":
        return 1.0, 1
    if rule == "skip":
        return np.inf, NEVER
    _, colon, text = rule.partition(":")
    if not colon:
        return WINDOW_RATIO, WINDOW_LENGTH
    first, comma, second = text.partition(",")
    try:
        ratio, length = float(first), int(second) if comma else WINDOW_LENGTH
    except ValueError:
        raise PolicyError(
            f"the rule {rule!r} should read window:RATIO or window:RATIO,LENGTH, such as "
            "window:1.4,64"
        ) from None
    if not ratio >= 1:
        raise PolicyError(
            f"the rule {rule!r} has the ratio {first}, but no request could start under a ratio "
            "below 1; use 1 or more, such as 1.4"
        )
    if length < 1:
        raise PolicyError(
            f"the rule {rule!r} has a window of {length} requests, but must try at least 1; with 1 "
            "it is the prefix rule"
        )
    return ratio, length
