"""What is known of a cluster: workers, slots, speeds, memory, the clock and the power."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optsched._internal.arguments import as_count, as_number, checked
from optsched.errors import InstanceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched._internal.arrays import FloatArray, IntArray

MAX_WORKERS = 1 << 20


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
    >>> Cluster(workers=0, slots=72)
    Traceback (most recent call last):
        ...
    optsched.errors.InstanceError: workers is 0, but must be a whole number from 1 to 1048576
    """

    workers: int
    slots: int | Sequence[int] = 72
    overhead_s: float = 5e-3
    seconds_per_token: float = 9.2e-8
    slowness: int | Sequence[int] = 1
    memory: int | Sequence[int] | None = None
    power: PowerLaw = PowerLaw()

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", as_count("workers", self.workers, 1, MAX_WORKERS))
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

    def _checked(self, name: str, value: Any) -> int | tuple[int, ...]:
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

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain data, ready for JSON."""
        return vars(self) | {"power": dict(vars(self.power))}
