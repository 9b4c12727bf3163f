"""Windows of a rolling horizon: some of what waits, beside what runs and what comes behind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arrays import MAX_STEP, FloatArray, IntArray, require_room
from optsched._internal.small_kernels import PriceSums
from optsched.admission import admit_in_window
from optsched.errors import PolicyError
from optsched.models.hindsight import HindsightProgram
from optsched.policies.base import Rule, window_of
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule, Usage
from optsched.search.annealing import place_in_order, priced_cost

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched.models.program import Running
    from optsched.search.annealing import Usage as Held

    Plan = tuple[IntArray, bool]


WORK = 0.0015  # for one decision, unless a policy says otherwise
_PRICE = 2.0**-16  # unit of prices for a solver that knows whole numbers only


@dataclass(frozen=True, eq=False)
class Window:
    """What a model of a rolling horizon gets to see; step 0 is now."""

    prompts: IntArray
    outputs: IntArray
    memory: int
    running: Running
    prices: FloatArray
    order: IntArray
    hint: IntArray
    seconds: float
    seed: int
    rule: Rule = "prefix"
    method: str = "auto"
    work: float = WORK  # of the search, in seconds' worth

    def __len__(self) -> int:
        return len(self.prompts)

    @cached_property
    def load(self) -> IntArray:
        """Tokens that the running requests hold at steps 1, 2, ... until the last has completed."""
        return self.running.load(self.running.last_step)

    @cached_property
    def price_sums(self) -> PriceSums:
        """Sums of the prices, and of step times price, over the steps up to each one from 0 on."""
        return PriceSums.of(self.prices)

    def usage(self) -> Held:
        """Return tokens held from step 0 on by those running, with room for all relevant plans."""
        longest = int(self.outputs.max(initial=1))
        require_room(self.outputs.sum(), 8, "steps of a window", "take a smaller one", PolicyError)
        usage = np.zeros(len(self.load) + int(self.outputs.sum()) + longest + 4, dtype=np.int32)
        usage[1 : len(self.load) + 1] = self.load
        return usage

    def place(self, order: IntArray, *, prefix: bool = True) -> IntArray:
        """Start requests in an order, each as soon as it fits."""
        starts = np.zeros(len(self), dtype=np.int64)
        usage = self.usage()
        place_in_order(self.prompts, self.outputs, self.memory, usage, order, prefix, starts)
        return starts

    @cached_property
    def instance(self) -> Instance:
        """The requests, as if they all arrived now."""
        return Instance(self.prompts, self.outputs, self.memory)

    @cached_property
    def schedule(self) -> Schedule:
        """What the fallback would do: a schedule of the instance of `program` to start from."""
        if self.rule == "prefix":
            starts = self.place(self.order)
        else:
            ratio, length = window_of(self.rule)
            starts = admit_in_window(self.instance, self.order, ratio, length, self.load)
        return Schedule(self.instance, starts, "fallback")

    def cost(self, starts: IntArray) -> float:
        """Return the sum of the starts and of what their memory costs at the prices."""
        return float(priced_cost(self.prompts, self.outputs, self.price_sums, starts))

    def fits(self, starts: npt.ArrayLike) -> bool:
        """Tell whether starts are whole, not in the past, and within the memory at every step."""
        given = np.asarray(starts)
        if given.shape != (len(self),) or not np.issubdtype(given.dtype, np.integer):
            return False
        if len(given) == 0:
            return True
        if given.min() < 0 or given.max() > MAX_STEP:
            return False
        added = Usage(given.astype(np.int64), self.prompts, self.outputs)
        beside = added.at(np.arange(1, len(self.load) + 1))
        held = (self.load + beside)[beside > 0]
        return max(added.peak, int(held.max(initial=0))) <= self.memory

    def program(
        self, horizon: int | None = None, kind: type[HindsightProgram] = HindsightProgram
    ) -> HindsightProgram:
        """Write the window as a hindsight program with priced memory, one output longer."""
        if horizon is None:
            horizon = self.schedule.makespan + int(self.outputs.max())
        prices = self.prices
        if self.method == "cp-sat":  # which counts in whole units
            prices = np.round(prices / _PRICE) * _PRICE
        return kind(self.instance, horizon=horizon, running=self.running, memory_prices=prices)


def prices_of_rest(areas: IntArray, before: int, memory: int) -> FloatArray:
    r"""Price memory for requests that are served after others, all of the memory at a time."""
    if not len(areas):
        return np.zeros(0)
    ends = (before + np.cumsum(np.concatenate([[0], np.sort(areas)]))) / memory
    left = np.arange(len(areas), -1, -1) / memory
    require_room(ends[-1], 40, "prices of steps", "take a larger window", PolicyError)
    prices: FloatArray = np.interp(np.arange(1, int(np.ceil(ends[-1])) + 1), ends, left)
    return prices
