"""What a runner is asked to do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.clock import Clock
    from optsched.problem.forecasts import Beliefs
    from optsched.problem.instance import Instance
    from optsched.simulate.settings import RunSettings


class Task(NamedTuple):
    """A policy to run on an instance, on one worker."""

    instance: Instance
    policy: Any
    settings: RunSettings
    on_progress: Callable[[int, int], None] | None = None

    @property
    def clock(self) -> Clock:
        """How long batches take; in steps that of the unit clock."""
        return self.settings.batch_clock

    def on(self, clock: Clock) -> Task:
        """Return the same on another clock, if the settings have one at all."""
        if self.settings.clock is None or clock == self.settings.clock:
            return self
        return self._replace(settings=replace(self.settings, clock=clock))

    @property
    def intervals(self) -> str | None:
        """What the policy may know of the outputs."""
        return self.settings.intervals

    @property
    def beliefs(self) -> Beliefs | Instance | None:
        """Which outputs in them are likely."""
        return self.settings.beliefs

    @property
    def seed(self) -> int:
        """Of all randomness in the policy."""
        return self.settings.seed

    @property
    def until(self) -> float:
        """Time from which no batch is formed."""
        return self.settings.until

    @property
    def patience(self) -> int:
        """Steps without a completion or an arrival after which the run is given up."""
        given = self.settings.patience
        return max(10_000, 100 * int(self.instance.outputs.max())) if given is None else given
