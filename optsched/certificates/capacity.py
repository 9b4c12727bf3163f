r"""Certificates that objectives need so many workers, and a verifier in exact integers.

**Windows.** Batches are charged as in `optsched.certificates.on_clock`: what a batch charges is at
most what it lasts. Each request has a time line of its own: the batches that it would have alone.
By the begin of a window it cannot be further along than the time since its arrival, and at the end
it is no further back than the time that is left until it is due: the batches in between charge
workers inside the window, of which :math:`G` serve at most :math:`G` times its length. With weights
on windows both sides are added up. A scheduler may let some requests miss their limits: those with
the largest demand are left out, and those that would be late even alone count among them.

Of a prompt that is cut by the begin of a window, in chunks, at least the part counts that is left
if the last chunk is as late as it can be: the constant of one batch is charged by share, what is
before it in full. The constant may also be charged by time: a request whose :math:`d` decodings
take at most :math:`V` seconds each, in the mean, is charged :math:`c_0 w / (V - c_0)` for each,
where :math:`w` is its least own time. For multipliers :math:`\mu_i` on :math:`\sum_b D_b \le V d`
and :math:`D = c_0 + W`, :math:`D (1 + \sum \mu) \ge W + c_0 \sum \mu + 2 \sqrt{c_0 W \sum \mu}`,
in which the root is at least :math:`\sum \sqrt{c_0 w_i \mu_i}`; the best :math:`\mu_i` gives that.

**Means.** A certificate of a bound for one worker less exceeds the limit times the requests. A mean
TTFT is bounded by requests that end with their first tokens.
"""

from __future__ import annotations

import bisect
import json
import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from optsched._internal.json import read_object, write_object
from optsched.certificates.fields import check_fingerprint, check_step, read_fields
from optsched.certificates.on_clock import PARTS, ChargedRequest, charged_request
from optsched.errors import CertificateError
from optsched.premises import STORAGES, Storage, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from optsched.instance import Instance

FORMAT = "optsched-capacity-certificate"
_METRICS = ("latency", "ttft", "tpot")
_ROUNDING = 1 + 1e-9  # limits are met up to this factor


class Goal(NamedTuple):
    """Limits of a tenant's requests, or all; how many may miss them, or None for the mean."""

    limits: Mapping[str, float]
    misses: int | None
    tenant: str | None = None

    def __str__(self) -> str:
        limits = " & ".join(f"{metric} <= {limit:g}" for metric, limit in self.limits.items())
        who = "" if self.tenant is None else f" of {self.tenant}"
        if self.misses is None:
            return f"mean {limits}{who}"
        return f"{limits} for all{f' but {self.misses:,}' if self.misses else ''} requests{who}"


@dataclass(frozen=True)
class CapacityCertificate:
    """Proof that goals take at least so many workers."""

    workers: int
    goals: tuple[Goal, ...]
    fingerprint: str
    clock: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # a constant and five coefficients
    seconds_per_step: float = 1.0
    unit: str = "steps"
    windows: tuple[tuple[float, float, float], ...] = ()  # begin, end, weight
    max_num_seqs: int = 0  # 0: no limit of requests per batch
    by_requests: int = 0  # sixteenths of the constant that are charged by number,
    by_time: int = 0  # and by time; the others by memory
    storage: Storage = "at-once"
    shared: bool = False  # whether requests may share the blocks of their hash_ids
    mean: Any = None  # the certificate of a bound for one worker less

    def __post_init__(self) -> None:
        every = (*self.clock, self.seconds_per_step, *(n for w in self.windows for n in w))
        limits = (limit for goal in self.goals for limit in goal.limits.values())
        if len(self.clock) != 6 or not all(0 <= n < math.inf for n in (*self.clock, *limits)):
            raise CertificateError("clock and limits must be numbers, none negative or infinite")
        if not all(map(math.isfinite, every)) or any(
            end <= begin or weight < 0 for begin, end, weight in self.windows
        ):
            raise CertificateError("a window must end after it begins, with a weight of at least 0")
        parts = (self.by_requests, self.by_time, PARTS - self.by_requests - self.by_time)
        if min(parts) < 0 or self.max_num_seqs < 0 or (self.by_requests and not self.max_num_seqs):
            raise CertificateError("the constant of batches is not shared as it can be")
        if self.storage not in STORAGES or self.unit not in ("s", "steps") or self.workers < 1:
            raise CertificateError("storage, unit or workers are none that there are")
        if not {metric for goal in self.goals for metric in goal.limits} <= set(_METRICS):
            raise CertificateError(f"goals limit {', '.join(_METRICS[:2])} and {_METRICS[2]} only")

    @property
    def premises(self) -> World:
        """Of which runs it proves anything."""
        return World(
            self.fingerprint,
            None,
            None if self.unit == "steps" and not any(self.clock[1:]) else self.clock,
            self.seconds_per_step,
            self.storage,
            "resumed",
            self.max_num_seqs or None,
            cached=self.shared,
            objective="workers",
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """Write the certificate as JSON."""
        mean = None if self.mean is None else json.loads(self.mean.to_json())
        goals = [goal._asdict() for goal in self.goals]
        content = {"format": FORMAT, **vars(self), "goals": goals, "mean": mean}
        return write_object(content, path)

    @classmethod
    def from_json(cls, source: str | Path, read: Callable[[str], Any]) -> CapacityCertificate:
        """Read a certificate from a JSON file or text; `read` reads the one in it."""
        content, where = read_object(source, CertificateError, "goals and windows")
        counts = ("workers", "max_num_seqs", "by_requests", "by_time")
        fields = read_fields(content, where, **dict.fromkeys(counts, 0))
        del fields["value"]
        try:
            goals = tuple(
                Goal({m: float(v) for m, v in goal["limits"].items()}, *map(goal.get, _REST))
                for goal in content["goals"]
            )
            windows = tuple((float(b), float(e), float(w)) for b, e, w in content["windows"])
            clock = tuple(float(number) for number in content["clock"])
            step, mean = float(content["seconds_per_step"]), content["mean"]
            words: dict[str, Any] = {name: str(content[name]) for name in ("unit", "storage")}
            if not all(goal.misses is None or type(goal.misses) is int for goal in goals):
                raise TypeError
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise CertificateError(f"{where}: goals, windows or clock cannot be read") from None
        return cls(
            goals=goals,
            clock=clock,
            seconds_per_step=step,
            windows=windows,
            shared=content.get("shared") is True,
            mean=None if mean is None else read(json.dumps(mean)),
            **words,
            **fields,
        )


_REST = ("misses", "tenant")


def verify_capacity(
    certificate: CapacityCertificate, instance: Instance, verify: Callable[..., Fraction]
) -> Fraction:
    """Find how many workers a certificate proves to be needed; `verify` checks the one in it."""
    if certificate.mean is not None:
        return _mean(certificate, _needed(certificate, instance), verify)
    return max(Fraction(1), _in_windows(certificate, instance))


def _needed(certificate: CapacityCertificate, instance: Instance) -> Instance:
    """Return the requests that a certificate is about, if it belongs to the instance."""
    check_fingerprint(certificate.fingerprint, instance)
    check_step(certificate.seconds_per_step, certificate.unit, instance)
    return _unshared(instance) if certificate.shared else instance


def _unshared(instance: Instance) -> Instance:
    """Return the requests with only those of their tokens that no other request has."""
    if instance.hash_ids is None or instance.hash_block is None:
        return instance
    owners = Counter(key for ids in instance.hash_ids for key in set(ids.tolist()))
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    for place, ids in enumerate(instance.hash_ids):
        shared = sum(owners[key] > 1 for key in ids.tolist()) * instance.hash_block
        outputs[place] = max(1, outputs[place] - max(0, shared - prompts[place]))
        prompts[place] = max(0, prompts[place] - shared)
    return instance.replace(prompts=prompts, outputs=outputs, hash_ids=None, hash_block=None)


def _belongs(instance: Instance, tenant: str | None) -> list[bool]:
    if tenant is None:
        return [True] * len(instance)
    return [label.startswith(f"{tenant}/") for label in instance.labels or [""] * len(instance)]


def _mean(
    certificate: CapacityCertificate, instance: Instance, verify: Callable[..., Fraction]
) -> Fraction:
    """Check that one worker less exceeds a mean."""
    if len(certificate.goals) != 1 or len(certificate.goals[0].limits) != 1:
        raise CertificateError("the certificate of a mean must have one goal with one limit")
    (goal,) = certificate.goals
    ((metric, limit),) = goal.limits.items()
    if metric == "tpot" or goal.misses is not None:
        raise CertificateError("only the means of latency and ttft have certificates")
    some = [i for i, asked in enumerate(_belongs(instance, goal.tenant)) if asked]
    instance = instance.take(some)
    if metric == "ttft":
        instance = instance.replace(outputs=[1] * len(instance), hash_ids=None, hash_block=None)
    nested = certificate.mean
    told = getattr(nested, "workers", certificate.workers - 1)
    world = (getattr(nested, name, None) for name in ("clock", "objective"))
    clock, objective = world
    if objective != "total-latency" or told != certificate.workers - 1:
        raise CertificateError("the certificate in it is of another objective or other workers")
    if clock not in (None, certificate.clock):
        raise CertificateError("the certificate in it is for another clock")
    several = None if clock is not None else certificate.workers - 1
    proven = verify(nested, instance, several)
    enough = proven > Fraction(limit * _ROUNDING) * len(instance)
    return Fraction(certificate.workers if enough else 1)


class _Due(NamedTuple):
    """A request with its limits, in whole units of time."""

    request: ChargedRequest
    constant: int
    decodes: int
    ttft: int | None  # when its first token is due, after the arrival
    due: int  # when its last token, or the only one that has a date, is due
    extra: int  # charged by time, times `whole`, if a window holds all of it

    def lasts(self, decodes: int) -> int:
        """Return the time until so many decodings are done, if nothing else runs."""
        r = self.request
        growing = r.growth * (decodes * (decodes - 1) // 2)
        return self.constant + r.first + (self.constant + r.decode) * decodes + growing

    def charge(self, begin: int, end: int, whole: int) -> int:
        """Return what it must charge inside a window, times `whole`."""
        r, constant = self.request, self.constant
        done, late = begin - r.arrival, r.arrival + self.due - end
        if self.due <= done or r.arrival >= end:
            return 0
        early = self.decodes
        if late > 0:
            reached = self.lasts(self.decodes) - late
            early = bisect.bisect_right(range(self.decodes + 1), reached, key=self.lasts) - 1
        if early < 0 and self.ttft is not None and r.arrival + self.ttft <= end:
            early = 0
        if early < 0:
            return 0
        if done <= 0:
            after, first = 0, whole * r.first + constant * r.share
        else:
            after = bisect.bisect_left(range(self.decodes), done, key=self.lasts)
            left = max(0, self.lasts(0) - done)
            first = r.share * min(left, constant) + whole * max(0, left - constant)
        total = first + max(0, self._decoding(early, whole) - self._decoding(after, whole))
        return total + (self.extra if done <= 0 and late <= 0 else 0)

    def _decoding(self, count: int, whole: int) -> int:
        """Return what the first so many decodings charge."""
        r = self.request
        own = r.decode * count + r.growth * (count * (count - 1) // 2)
        return whole * own + self.constant * (
            r.share * count + r.sharing * (count * (count + 1) // 2)
        )


def _in_windows(certificate: CapacityCertificate, instance: Instance) -> Fraction:
    demands, scale, length = demands_in(certificate, instance)
    known = sorted(demand for demand in demands if demand is not None)
    allowed = sum(goal.misses or 0 for goal in certificate.goals) - (len(demands) - len(known))
    if allowed < 0:
        raise CertificateError("more requests would be late even alone than may miss their limits")
    kept = known[: max(0, len(known) - allowed)]
    return Fraction(sum(kept), scale) / length if length else Fraction(0)


def demands_in(
    certificate: CapacityCertificate, instance: Instance
) -> tuple[list[int | None], int, Fraction]:
    """Return what each request demands in the windows, times a scale, and their weighted length.

    None stands for a request that would be late even alone.
    """
    instance = _needed(certificate, instance)
    step = certificate.seconds_per_step
    numbers = [Fraction(number) for number in certificate.clock]
    arrivals = [Fraction(float(arrival) * step) for arrival in instance.arrivals.tolist()]
    windows = [tuple(map(Fraction, window)) for window in certificate.windows]
    goals = [
        (
            _belongs(instance, goal.tenant),
            {m: Fraction(v * _ROUNDING) for m, v in goal.limits.items()},
        )
        for goal in certificate.goals
    ]
    limits = [limit for _, each in goals for limit in each.values()]
    unit = math.lcm(
        *(n.denominator for n in (*numbers, *arrivals, *limits)),
        *(n.denominator for window in windows for n in window[:2]),
    )
    c0, *own = (int(number * unit) for number in numbers)
    most, parts = max(1, certificate.max_num_seqs), certificate.by_requests
    whole = PARTS * instance.memory * most
    sharing = (PARTS - parts - certificate.by_time) * most
    later = certificate.storage == "next-batch"
    shares = parts * instance.memory - later * sharing, sharing
    weigh = math.lcm(*(weight.denominator for _, _, weight in windows))
    spans = [(int(b * unit), int(e * unit), int(w * weigh)) for b, e, w in windows]
    if any(goal.misses is None for goal in certificate.goals):
        raise CertificateError("windows prove nothing about a mean")
    demands: list[int | None] = []
    for index, (prompt, output) in enumerate(
        zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True)
    ):
        mine: dict[str, int] = {}
        for belongs, each in goals:
            for metric, limit in each.items() if belongs[index] else ():
                mine[metric] = min(mine.get(metric, int(limit * unit)), int(limit * unit))
        arrival = int(arrivals[index] * unit)
        request = charged_request(prompt, output, arrival, Fraction(1), own, shares)
        timed = _timed(request, prompt, c0, own, mine, certificate, whole, unit)
        charged = (w * due.charge(b, e, whole) for due in timed or () for b, e, w in spans)
        demands.append(None if timed is None else sum(charged))
    length = sum(weight * (end - begin) for begin, end, weight in spans)
    return demands, whole * unit * weigh, Fraction(length, unit * weigh)


def _timed(
    request: ChargedRequest,
    prompt: int,
    c0: int,
    own: list[int],
    limits: dict[str, int],
    certificate: CapacityCertificate,
    whole: int,
    unit: int,
) -> tuple[()] | tuple[_Due] | None:
    """Return a request with its due dates, nothing without one; None if it is late alone."""
    d, first = request.decodes, c0 + request.first
    ttft, due = limits.get("ttft"), limits.get("latency")
    paced = limits["tpot"] * d if "tpot" in limits else None
    if ttft is not None and (paced is not None or not d):
        both = ttft + (paced or 0)
        due = both if due is None else min(due, both)
    if certificate.unit == "steps" and not any(own):  # all times are whole steps
        ttft, due = (None if t is None else t // unit * unit for t in (ttft, due))
    decoding = request.decoding(c0)
    late = (ttft is not None and first > ttft) or (due is not None and first + decoding > due)
    if late or (d and paced is not None and decoding > paced):
        return None
    if due is None:
        return () if ttft is None else (_Due(request, c0, 0, ttft, ttft, 0),)
    extra = 0
    if d and certificate.by_time:
        pace = Fraction(due - first, d)
        if paced is not None:
            pace = min(pace, Fraction(paced, d))
        prefill, decode, resident, squared, _ = own
        if pace > c0:
            ratio, held = Fraction(c0) / (pace - c0), prompt + 1
            again = prefill * held + squared * held * held
            if prefill >= resident and again >= (
                decode + resident * held + 2 * ratio * request.decode
            ):
                part = ratio * request.decode * d * certificate.by_time
                extra = math.floor(part * whole / PARTS)
    return (_Due(request, c0, d, ttft, due, extra),)
