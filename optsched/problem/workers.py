"""Several workers that run independently, and which of them a request goes to when it arrives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from optsched._internal.arguments import MAX_TOKENS, as_count, as_number, checked
from optsched._internal.arrays import BoolArray, FloatArray, IntArray, checked_memory, frozen
from optsched._internal.imports import imported, names_module
from optsched.errors import InstanceError, PolicyError, nearest, require_distinct, require_known
from optsched.problem.routing import Load, RouterState, by_cost, vllm_dp

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched.problem.instance import Instance
    from optsched.problem.premises import Knowledge

MAX_WORKERS = 4096

_ADVICE = "pass a number of workers, such as 8, or their memories, such as 16492x2,4096x8"


@checked(InstanceError)
@dataclass(frozen=True, eq=False, init=False)
class Workers:
    """Independent workers, each with a memory of its own.

    A request is placed on one worker and never moved. It may run wherever its peak
    :math:`s_i + o_i` fits, and where `eligible` allows it.

    Parameters
    ----------
    memories
        Tokens :math:`M_g` that each worker can hold.
    eligible
        Whether each request may run on each worker, shape (n, G), beyond fitting there; None
        allows everything.

    Examples
    --------
    >>> from optsched import Instance, Workers
    >>> workers = Workers([100, 50, 50])
    >>> len(workers), workers.total, workers.classes
    (3, 200, array([0, 1, 1]))
    >>> Workers.parse("100,50x2").memories
    (100, 50, 50)
    >>> Workers([9, 5]).allowed(Instance([6, 1], [2, 2], memory=9)).tolist()
    [[True, False], [True, True]]
    """

    memories: tuple[int, ...]
    eligible: BoolArray | None

    def __init__(self, memories: Sequence[int], eligible: npt.ArrayLike | None = None) -> None:
        if not len(memories):
            raise InstanceError(f"there are no workers; {_ADVICE}")
        if len(memories) > MAX_WORKERS:
            raise InstanceError(f"there are {len(memories):,} workers, but at most {MAX_WORKERS:,}")
        object.__setattr__(self, "memories", tuple(checked_memory(size) for size in memories))
        allowed = None if eligible is None else frozen(np.asarray(eligible, dtype=np.bool_))
        if allowed is not None and (allowed.ndim != 2 or allowed.shape[1] != len(memories)):
            raise InstanceError(
                f"eligible has the shape {allowed.shape}, but must have a row for each request and "
                f"a column for each of the {len(memories)} workers"
            )
        object.__setattr__(self, "eligible", allowed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Workers):
            return NotImplemented
        return self.memories == other.memories and np.array_equal(
            np.array(self.eligible), np.array(other.eligible)
        )

    def __hash__(self) -> int:
        return hash(self.memories)

    def __len__(self) -> int:
        return len(self.memories)

    def __str__(self) -> str:
        """Write the memories as `parse` reads them."""
        runs = [(size, len([*alike])) for size, alike in groupby(self.memories)]
        return ",".join(f"{size}x{count}" if count > 1 else str(size) for size, count in runs)

    @classmethod
    @checked(InstanceError)
    def parse(cls, text: str, memory: int | None = None) -> Workers:
        """Read a number of workers with `memory` each, as "8", or memories, as "16492x2,4096x8"."""
        parts = [part.split("x") for part in text.replace(" ", "").split(",")]
        if not all(len(part) <= 2 and all(word.isdecimal() for word in part) for part in parts):
            raise InstanceError(f"workers are {text!r}; {_ADVICE}")
        numbers = [[int(word) for word in part] for part in parts]
        if len(numbers) == 1 and len(numbers[0]) == 1:
            if memory is None:
                raise InstanceError(f"{text} workers have no memory; pass the memory of each")
            return cls(_copies(numbers[0][0], memory))
        if memory is not None:
            raise InstanceError(
                f"workers {text} have memories already; leave out the memory of {memory}"
            )
        counts = [part[1] if len(part) == 2 else 1 for part in numbers]
        if sum(counts) > MAX_WORKERS:
            raise InstanceError(f"there are {sum(counts):,} workers, but at most {MAX_WORKERS:,}")
        sizes = [part[0] for part in numbers]
        return cls([size for size, n in zip(sizes, counts, strict=True) for _ in range(n)])

    @property
    def total(self) -> int:
        """Tokens that all workers hold together."""
        return sum(self.memories)

    def pool(self, instance: Instance) -> Instance:
        """Return the requests on one worker that holds as much as all together."""
        if self.total > MAX_TOKENS:
            raise InstanceError(
                f"the workers hold {self.total:,} tokens together, but at most {MAX_TOKENS:,} can "
                "be counted; count prompts, outputs and memories in units of some tokens"
            )
        return instance.replace(memory=self.total)

    @cached_property
    def classes(self) -> IntArray:
        """Class of each worker, in order of appearance; its members can be exchanged."""
        keys: dict[tuple[int, bytes], int] = {}
        columns = [b""] * len(self)
        if self.eligible is not None:
            columns = [self.eligible[:, worker].tobytes() for worker in range(len(self))]
        found = [
            keys.setdefault(key, len(keys)) for key in zip(self.memories, columns, strict=True)
        ]
        return frozen(np.array(found, dtype=np.int64))

    @property
    def equal(self) -> bool:
        """Whether any two workers can be exchanged."""
        return not self.classes.any()

    def fingerprint(self, instance: Instance) -> str:
        """Return a SHA-256 of requests, memories and eligibility, which certificates hold."""
        pool = self.pool(instance).fingerprint
        digest = hashlib.sha256(f"optsched workers 1 {self.memories} {pool}".encode())
        if self.eligible is not None:
            digest.update(self.eligible.tobytes())
        return digest.hexdigest()

    def kinds(self, instance: Instance) -> tuple[BoolArray, IntArray]:
        """Return where each kind of request may run, shape (kinds, G), and the kind of each."""
        allowed = self.allowed(instance)
        packed = np.packbits(allowed, axis=1)
        keys = packed.view([("", packed.dtype)] * packed.shape[1]).reshape(-1)
        _, first, kind = np.unique(keys, return_index=True, return_inverse=True)
        return allowed[first], kind.reshape(-1)

    def allowed(self, instance: Instance) -> BoolArray:
        """Return whether each request may run on each worker, shape (n, G); each must somewhere."""
        fits: BoolArray = instance.peaks[:, None] <= np.array(self.memories)
        if self.eligible is not None:
            if len(self.eligible) != len(instance):
                raise InstanceError(
                    f"eligible has {len(self.eligible)} rows for {len(instance)} requests"
                )
            fits = fits & self.eligible
        if not (somewhere := fits.any(axis=1)).all():
            request = int(np.argmin(somewhere))
            peak = int(instance.peaks[request])
            places = "any worker" if self.eligible is None else "any worker where it may run"
            raise InstanceError(
                f"request {instance.label(request)} holds {peak} tokens in the end, more than fit "
                f"on {places}; leave the request out or raise a memory to {peak}",
                request=request,
            )
        return fits


def as_workers(workers: int | str | Sequence[int] | Workers, instance: Instance) -> Workers:
    """Turn a number of workers, their memories or a text into workers that suit an instance."""
    if isinstance(workers, Workers):
        made = workers
    elif isinstance(workers, str):
        made = Workers.parse(workers, instance.memory if workers.isdecimal() else None)
    else:
        several = isinstance(workers, Sequence) or getattr(workers, "ndim", 0) > 0
        made = Workers(
            cast("Sequence[int]", workers) if several else _copies(workers, instance.memory)
        )
    made.allowed(instance)
    return made


def _copies(count: object, memory: int) -> list[int]:
    return [memory] * as_count("workers", count, 1, MAX_WORKERS)


#: Of these a worker twice as large takes twice as much.
_BY_MEMORY = ("held", "waiting_prompts", "work")


@checked(PolicyError)
@dataclass(frozen=True)
class Router:
    """Send a request to the worker with the least score, once and for all.

    Parameters
    ----------
    name, description, source
        For tables and the command line.
    weights
        The score: names of `Load`, each with its weight. A score that looks at tokens is divided by
        the memory of the worker.
    choices
        Number of workers that are drawn at random and compared; None compares all.
    function
        Instead of weights: takes a `RouterState` and returns the worker.
    reads
        What the function looks at: "outputs", or "nothing" of them, and then it sees no work.
    age
        On a clock in seconds, workers report their counts every so many seconds, first as the first
        request arrives. Between two reports the router adds what it sends itself, as waiting.
        0: it always sees them.

    Raises
    ------
    PolicyError
        If a weight is for something that a router cannot see, or no worker would be drawn.

    Examples
    --------
    >>> from optsched import Instance, run
    >>> instance = Instance([5, 1, 1, 1], [3, 3, 3, 3], memory=8)
    >>> run(instance, "fcfs", workers=2, router="least-kv").placement
    array([0, 0, 0, 0])
    >>> mine = Router("mine", "fewest waiting prompt tokens", {"waiting_prompts": 1})
    >>> run(instance, "fcfs", workers=2, router=mine).placement
    array([0, 1, 1, 1])
    """

    name: str
    description: str
    weights: dict[str, float] = field(default_factory=dict)
    choices: int | None = None
    function: Callable[[RouterState], int] | None = None
    source: str = ""
    reads: Literal["outputs", "nothing"] = "outputs"
    age: float = 0.0

    def __post_init__(self) -> None:
        require_known("reads", self.reads, ("outputs", "nothing"), PolicyError)
        for name in self.weights:
            if name not in Load._fields:
                raise PolicyError(
                    f"router {self.name!r} weighs {name!r}: {nearest(name, Load._fields)}"
                )
        if self.choices is not None and self.choices < 1:
            raise PolicyError(
                f"router {self.name!r} compares {self.choices} workers, but must draw at least 1"
            )
        wish = "a number of seconds from 0"
        as_number("age", self.age, lambda number: number >= 0, wish, PolicyError)

    @property
    def looks(self) -> bool:
        """Whether it looks at the workers at all."""
        return bool(self.weights) or self.function is not None

    @property
    def knows(self) -> Knowledge:
        """What it is told of an output before the request ends: all where it looks at work."""
        told = self.reads == "outputs" if self.function else "work" in self.weights
        return "outputs" if told else "nothing"

    def coefficients(self, memories: IntArray) -> FloatArray:
        """Return the weights of `Load` in the score of each worker, shape (workers, 6)."""
        weights = np.array([self.weights.get(name, 0.0) for name in Load._fields])
        scale = np.ones(len(memories))
        if any(name in _BY_MEMORY for name in self.weights):
            scale = memories.max() / memories
        return np.asarray(scale[:, None] * weights)


#: All routers by the name that the command line knows; each has a description.
ROUTERS: dict[str, Router] = {
    router.name: router
    for router in (
        Router("round-robin", "the next worker in turn"),
        Router("random", "any worker", choices=1),
        Router("jsq", "the worker with fewest requests", {"waiting": 1, "running": 1}),
        Router(
            "power-of-d",
            "the worker with fewer requests of two drawn at random (power-of-d:3: of three)",
            {"waiting": 1, "running": 1},
            choices=2,
            source="Mitzenmacher 2001",
        ),
        Router("least-kv", "the worker whose KV cache holds the smallest share", {"held": 1}),
        Router(
            "least-tokens",
            "the worker with fewest tokens held and waiting to be prefilled",
            {"held": 1, "waiting_prompts": 1},
        ),
        Router("least-work", "the worker with least memory-time left (knows outputs)", {"work": 1}),
        Router(
            "vllm-dp",
            "where vLLM 0.33 sends a request: fewest in flight, fewer waiting where memory is full",
            function=vllm_dp,
            source="vLLM, its load balancing between data-parallel engines",
            reads="nothing",
            age=0.1,
        ),
        Router(
            "by-cost",
            "where latencies are predicted to grow least, its own and those of the others",
            function=by_cost,
            reads="nothing",
        ),
        Router("by-cost-known", "by-cost, told the outputs", function=by_cost),
        Router(
            "vllm-dp-tokens",
            "the worker with least 4 x waiting prompt tokens + tokens held",
            {"waiting_prompts": 4, "held": 1},
            source="vLLM before 0.32, but in tokens",
        ),
    )
}
_SHIPPED = dict(ROUTERS)


def is_shipped(router: object) -> bool:
    """Say whether a router is a name that means the same in every process."""
    plain = router.partition("@")[0].partition(":")[0] if isinstance(router, str) else ""
    return plain in _SHIPPED and ROUTERS.get(plain) is _SHIPPED[plain]


def get_router(router: str | Router | Callable[[RouterState], int]) -> Router:
    """Return a router by name or "module:name"; an object is passed through, a function wrapped."""
    if isinstance(router, str) and names_module(router, ROUTERS):
        router = imported(router, "router", ROUTERS)
    if isinstance(router, Router):
        return router
    if callable(router) and not isinstance(router, type):
        name = getattr(router, "__name__", type(router).__name__)
        return Router(name, "a function of the state", function=router)
    if not isinstance(router, str):
        raise PolicyError(
            f"{router!r} is no router: name one, such as 'least-tokens', or pass a Router or a "
            "function of a state"
        )
    known, at, age = router.partition("@")
    name, colon, choices = known.partition(":")
    require_known("router", name, ROUTERS, PolicyError)
    found = ROUTERS[name]
    if at:
        found = replace(found, name=router, age=_seconds(age, router))
    if not colon:
        return found
    if name != "power-of-d" or not choices.isdecimal():
        raise PolicyError(
            f"the router {router!r} has no such parameter; only power-of-d has one, the number of "
            "workers that it draws, as in power-of-d:3"
        )
    return replace(found, name=router, choices=int(choices))


def _seconds(age: str, router: str) -> float:
    try:
        return float(age)
    except ValueError:
        raise PolicyError(
            f"the router {router!r} sees counts of the age {age!r}, which is no number of seconds; "
            "write it as in jsq@0.1"
        ) from None


def get_routers(routers: Iterable[str | Router | Callable[[RouterState], int]]) -> list[Router]:
    """Return routers by name, each at most once."""
    found = [get_router(router) for router in ([routers] if isinstance(routers, str) else routers)]
    require_distinct("router", [router.name for router in found], ROUTERS)
    return found


_MOST_TOGETHER = 1 << 20  # workers behind one barrier


@checked(InstanceError)
@dataclass(frozen=True)
class PowerLaw:
    r"""Power of one worker by its utilisation (BF-IO Eq. 11, D46).

    :math:`P(u) = P_\text{idle} + (P_\text{max} - P_\text{idle}) (u / u_\text{sat})^\gamma`, where
    the model FLOPs utilisation :math:`u` is either

    - "load": :math:`u_g = u_\text{sat} L_g / \max_h L_h`, the share of the step that the worker
      computes; :math:`u_\text{sat}` cancels. With it the printed 396, 386 and 383 kJ come out.
    - "throughput": :math:`u_g =` tokens per second of the worker times 6 times the parameters over
      the peak FLOP/s (D44, D45), at most :math:`u_\text{sat}`. It cannot give the printed ratios.

    Parameters
    ----------
    idle_watt, peak_watt, exponent, saturation
        :math:`P_\text{idle}`, :math:`P_\text{max}`, :math:`\gamma` and :math:`u_\text{sat}`.
    utilisation
        Which of the two forms.
    parameters, peak_flops
        Of model and worker, for "throughput"; 312e12 FLOP/s is an A100 at 16 bits.

    Examples
    --------
    >>> PowerLaw().watt(np.array([[3, 3]]), np.array([[1, 1]]), np.array([1.0])).tolist()
    [800.0]
    """

    idle_watt: float = 100.0
    peak_watt: float = 400.0
    exponent: float = 0.7
    saturation: float = 0.45
    utilisation: Literal["load", "throughput"] = "load"
    parameters: float = 7e9
    peak_flops: float = 312e12

    def __post_init__(self) -> None:
        if self.utilisation not in ("load", "throughput"):
            raise InstanceError(
                f"utilisation is {self.utilisation!r}, but must be 'load' or 'throughput'"
            )
        if not 0 <= self.idle_watt <= self.peak_watt < np.inf:
            raise InstanceError(
                f"idle_watt is {self.idle_watt} and peak_watt {self.peak_watt}, but a worker "
                "draws at least nothing idle, and no less at its peak"
            )
        for name in ("exponent", "saturation", "parameters", "peak_flops"):
            as_number(name, getattr(self, name), lambda number: number > 0, "positive")

    def watt(self, work: IntArray, active: IntArray, seconds: FloatArray) -> FloatArray:
        """Return the power of all workers together, shape (steps,) (summands of D47).

        The work is load times slowness, and active requests make a token each, both of shape
        (steps, workers); seconds are the length of each step.
        """
        if self.utilisation == "load":
            most = np.maximum(work.max(axis=1), 1)
            share = work / most[:, None]
        else:
            flops = 6 * self.parameters * active / seconds[:, None]
            share = np.minimum(flops / self.peak_flops / self.saturation, 1)
        spread = self.peak_watt - self.idle_watt
        total: FloatArray = (self.idle_watt + spread * share**self.exponent).sum(axis=1)
        return total


@checked(InstanceError)
@dataclass(frozen=True)
class Cluster:
    r"""Workers that wait for the slowest at every step (BF-IO Section 3 and Eq. 6).

    A step takes :math:`C + t_\ell \max_g a_g L_g` seconds, where :math:`L_g` is the load of worker
    :math:`g` in tokens and :math:`a_g` its slowness. A request stays where it was put, and is
    never interrupted. Slots, slowness and memory are one number or one per worker.

    Parameters
    ----------
    workers
        Number of workers :math:`G`.
    slots
        Maximum number of requests :math:`B` that run on a worker at once.
    overhead_s, seconds_per_token
        :math:`C` and :math:`t_\ell` in seconds.
    slowness
        Whole numbers :math:`a_g`: slowness 2 takes twice as long per token as slowness 1.
    memory
        Tokens that a worker can hold. A request reserves on admission the most it may come to hold:
        prompt and output, or prompt and upper bound of the output where the instance has one. None
        means that slots are the only limit.
    power
        What a worker draws.

    Examples
    --------
    >>> print(Cluster(workers=16, slots=72))
    16 workers of 72 slots; a step takes 5 ms and 92 ns per token of the heaviest
    >>> Cluster(workers=2, slots=[3, 4]).per_worker("slots")
    array([3, 4])
    """

    workers: int
    slots: int | Sequence[int] = 72
    overhead_s: float = 5e-3
    seconds_per_token: float = 9.2e-8
    slowness: int | Sequence[int] = 1
    memory: int | Sequence[int] | None = None
    power: PowerLaw = PowerLaw()

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", as_count("workers", self.workers, 1, _MOST_TOGETHER))
        for name in ("slots", "slowness", "memory"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, self._checked(name, value))
        for name in ("overhead_s", "seconds_per_token"):
            wish = "a number of seconds from 0"
            value = as_number(name, getattr(self, name), lambda number: number >= 0, wish)
            object.__setattr__(self, name, value)
        if self.overhead_s == self.seconds_per_token == 0:
            raise InstanceError(
                "overhead_s and seconds_per_token are both 0: time would stand still"
            )

    def _checked(self, name: str, value: object) -> int | tuple[int, ...]:
        if not isinstance(value, Iterable):
            return as_count(name, value)
        values = list(value)
        if len(values) != self.workers:
            raise InstanceError(f"{name} has {len(values)} entries for {self.workers} workers")
        return tuple(as_count(f"{name} of worker {at}", each) for at, each in enumerate(values))

    def __str__(self) -> str:
        def text(value: int | Sequence[int]) -> str:
            if isinstance(value, int):
                return f"{value:,}"
            return f"{min(value):,} to {max(value):,}"

        workers = "1 worker" if self.workers == 1 else f"{self.workers:,} workers"
        slots = "1 slot" if self.slots == 1 else f"{text(self.slots)} slots"
        memory = "" if self.memory is None else f" and {text(self.memory)} tokens"
        slow = "" if self.slowness == 1 else f", of slowness {text(self.slowness)}"
        return (
            f"{workers} of {slots}{memory}{slow}; a step takes {self.overhead_s * 1e3:g} ms and "
            f"{self.seconds_per_token * 1e9:g} ns per token of the heaviest"
        )

    def per_worker(self, name: Literal["slots", "slowness", "memory"]) -> IntArray:
        """Return a field as one number per worker, shape (workers,)."""
        value = getattr(self, name)
        if value is None:
            value = np.iinfo(np.int64).max // 4
        return np.broadcast_to(np.asarray(value, dtype=np.int64), self.workers).copy()

    def to_dict(self) -> dict[str, object]:
        """Return the facts as plain data, ready for JSON."""
        return vars(self) | {"power": dict(vars(self.power))}
