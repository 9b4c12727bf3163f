"""What a runner is asked to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.clock import Clock
    from optsched.forecasts import Beliefs
    from optsched.instance import Instance


class Task(NamedTuple):
    """A policy to run on an instance."""

    instance: Instance
    policy: Any
    clock: Clock
    intervals: str | None
    seed: int
    patience: int
    until: float
    on_progress: Callable[[int, int], None] | None = None
    beliefs: Beliefs | Instance | None = None
