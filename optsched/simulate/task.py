"""What a runner is asked to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.clock import Clock
    from optsched.instance import Instance


class Task(NamedTuple):
    """A policy to run on an instance.

    Attributes
    ----------
    instance
        The requests, with their true outputs.
    policy
        The policy, of the kind that the runner is for, under its rule of admission.
    clock
        How long batches take; `UNIT` in steps.
    intervals
        What the policy may know of the outputs.
    seed
        Of all randomness in the policy.
    patience
        Batches without a completion or an arrival after which a run is given up.
    until
        Form no batch at or after this time.
    on_progress
        Called now and then with the requests that run or are complete, and all.
    """

    instance: Instance
    policy: Any
    clock: Clock
    intervals: str | None
    seed: int
    patience: int
    until: float
    on_progress: Callable[[int, int], None] | None = None
