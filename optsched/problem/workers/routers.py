"""Which worker a request goes to when it arrives, for workers that each run on their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.extras import imported, names_module
from optsched.errors import PolicyError, nearest, require_distinct, require_known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.premises import Knowledge


class Load(NamedTuple):
    """What is on workers when a request arrives, one number per worker."""

    waiting: Any  # requests that were sent to the worker and do not run
    running: Any  # requests in its batch, until that ends
    held: Any  # tokens in its KV cache, those of the batch in progress included
    waiting_prompts: Any  # prompt tokens of the requests that wait
    work: Any  # memory-time that its requests have still to take, which needs their outputs


#: Of these a worker twice as large takes twice as much.
_BY_MEMORY = ("held", "waiting_prompts", "work")


@dataclass(frozen=True, slots=True, eq=False)
class RouterState:
    """What a router of your own may look at when a request arrives.

    Attributes
    ----------
    time
        When it arrives, in steps, or on a clock in seconds.
    request, prompt
        Index of the request, and its prompt tokens.
    workers
        The workers that can hold it, ascending; the answer is one of them.
    memories, waiting, running, held, waiting_prompts, work
        Memory and `Load` of all workers, shape (workers,) each.
    """

    time: float
    request: int
    prompt: int
    workers: IntArray
    memories: IntArray
    waiting: IntArray
    running: IntArray
    held: IntArray
    waiting_prompts: IntArray
    work: IntArray


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
        """Return the weights of `Load` in the score of each worker, shape (workers, 5)."""
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
            "the worker with least 4 x waiting + running requests",
            {"waiting": 4, "running": 1},
            source="vLLM, its load balancing between data-parallel engines",
        ),
        Router(
            "vllm-dp-tokens",
            "the worker with least 4 x waiting prompt tokens + tokens held",
            {"waiting_prompts": 4, "held": 1},
            source="the form of vllm-dp that counts tokens",
        ),
    )
}
_SHIPPED = dict(ROUTERS)


def is_shipped(router: Any) -> bool:
    """Say whether a router is a name that means the same in every process."""
    plain = router.partition(":")[0] if isinstance(router, str) else ""
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
    name, colon, choices = router.partition(":")
    require_known("router", name, ROUTERS, PolicyError)
    found = ROUTERS[name]
    if not colon:
        return found
    if name != "power-of-d" or not choices.isdecimal():
        raise PolicyError(
            f"the router {router!r} has no such parameter; only power-of-d has one, the number of "
            "workers that it draws, as in power-of-d:3"
        )
    return replace(found, name=router, choices=int(choices))


def get_routers(routers: Iterable[str | Router | Callable[[RouterState], int]]) -> list[Router]:
    """Return routers by name, each at most once."""
    found = [get_router(router) for router in ([routers] if isinstance(routers, str) else routers)]
    require_distinct("router", [router.name for router in found], ROUTERS)
    return found
