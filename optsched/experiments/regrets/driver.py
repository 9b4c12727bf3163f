"""`regret`: policies x loads x horizons x seeds, one instance after another."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from optsched._internal.jobs import map_unordered
from optsched.comparison.steps import load_kernels
from optsched.errors import OptschedError, is_interrupt
from optsched.experiments.regrets.cell import Task, perform
from optsched.experiments.regrets.result import Regret
from optsched.experiments.regrets.source import read_source
from optsched.policies import get_policies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from optsched.experiments.regrets.cell import Cell
    from optsched.instance import Instance
    from optsched.policies import Policy

_TOLERANCE = 0.05  # of the mean output


def regret(
    source: str | Path | Instance = "family:equal-prompts",
    policies: Sequence[str | Policy] = ("mc-sf", "area"),
    loads: Sequence[float] = (0.8, 1.2),
    horizons: Sequence[int] | None = None,
    seeds: int = 5,
    *,
    memory: int | None = None,
    time_limit: float = 0.0,
    tolerance: float | None = None,
    workers: int | None = 1,
    seed: int = 0,
    on_cell: Callable[[Cell, int, int], object] | None = None,
) -> Regret:
    """Enclose the regret of policies between the best schedule known and a proven bound.

    The regret of an instance is the policy's mean latency minus the least possible one, which
    Jaillet Def. 5.1 takes the expectation of. All policies see the same instances, and instances of
    different horizons share no request.

    Parameters
    ----------
    source
        ``family:NAME,key=number,...``, a trace or an instance. The lengths of a trace are drawn
        with replacement, and its requests arrive by a Poisson process.
    policies
        Names or policy objects; they know the outputs.
    loads
        Memory-time that arrives per step over the memory: rate times mean :math:`A_i` over
        :math:`M`.
    horizons
        Numbers of steps in which requests arrive. The runs go on until all are completed. None
        takes 100, 1,000 and 10,000, or ten times as many until the first brings enough requests.
    seeds
        Instances per load and horizon; bands need two, and more make them narrower.
    memory
        Tokens that the worker holds; None means as many as the family or the trace has.
    time_limit
        Seconds of `optsched.hindsight` per instance, which is asked in instances of up to 20,000
        requests. With 0 the result does not depend on the clock.
    tolerance
        Growth of regret per tenfold horizon, in steps, that does not count; None means 5 % of the
        mean output.
    workers
        Processes of this machine; None takes as many as there are cores.
    seed
        The first seed; seeds count upwards from here.
    on_cell
        Called with each finished instance, how many are finished, and how many there are.

    Returns
    -------
    Regret
        Intervals, bands, growth. After Ctrl-C what was finished by then, with the status
        "interrupted".

    Raises
    ------
    OptschedError
        If an argument makes no sense.
    PolicyError
        If there is no policy of a name, or one does not complete all requests.

    Examples
    --------
    Outputs that are all the same: waves of ten cost `mc-sf` a multiple of what is possible.

    >>> import optsched
    >>> result = optsched.regret(
    ...     "family:equal-prompts,output_least=10", ["mc-sf"], [1.2], [100, 1000], seeds=3)
    >>> result.growth("mc-sf", 1.2).verdict
    'grows'
    """
    chosen = tuple(get_policies(policies))
    drawn = read_source(source, memory)
    if horizons is None:
        horizons = drawn.horizons(min(map(drawn.rate, loads), default=1.0))
    for name, values in (("loads", loads), ("horizons", horizons)):
        if not values:
            raise OptschedError(f"{name} is empty; give at least one")
        if len(set(values)) < len(values):
            raise OptschedError(f"one of the {name} is given twice")
    if seeds < 1 or seed < 0:
        raise OptschedError(f"seeds is {seeds} and seed {seed}; give at least 1 and 0")
    if not time_limit >= 0:
        raise OptschedError(f"time_limit is {time_limit}, but cannot be negative")
    if workers is not None and workers < 1:
        raise OptschedError(f"workers is {workers}, but must be at least 1")
    if tolerance is None:
        tolerance = _TOLERANCE * drawn.mean_output
    elif not tolerance > 0:
        raise OptschedError(f"tolerance is {tolerance}, but must be positive")
    tasks = [
        (Task(drawn, chosen, load, drawn.rate(load), horizon, each, time_limit),)
        for horizon in sorted(horizons)  # the quick ones first
        for each in range(seed, seed + seeds)
        for load in sorted(loads)
    ]
    for (task,) in tasks[: len(loads)]:
        drawn.check(task.rate, task.horizon)
    load_kernels(chosen)
    cells: list[Cell] = []
    status = "complete"
    try:
        with closing(map_unordered(perform, tasks, workers)) as results:
            for _, cell in results:
                cells.append(cell)
                if on_cell is not None:
                    on_cell(cell, len(cells), len(tasks))
    except (KeyboardInterrupt, SystemError) as stop:
        if not is_interrupt(stop):
            raise
        if not cells:
            raise KeyboardInterrupt from stop
        status = "interrupted"
    names = tuple(policy.name for policy in chosen)
    cells.sort(key=lambda cell: (cell.load, cell.horizon, cell.seed))
    return Regret(drawn.name, drawn.memory_tokens, names, tuple(cells), float(tolerance), status)
