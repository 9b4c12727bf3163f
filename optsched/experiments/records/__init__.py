"""The library: named instances, by recipes, with the best schedules and bounds that are known."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import resources
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from optsched import errors
from optsched._internal.arguments import checked
from optsched._internal.files import JSON, read_object
from optsched._internal.numbers import percent, proven, round_down
from optsched.certificates.prices import read_certificate, verify
from optsched.clock import LinearClock, get_clock
from optsched.problem.premises import World, uncovered
from optsched.problem.schedule import Schedule
from optsched.problem.work import arrival_times, step_of
from optsched.problem.workers import Workers
from optsched.workloads import read_trace

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.certificates.prices import AnyCertificate
    from optsched.problem.instance import Instance
    from optsched.simulate.dispatch import RoutedRun
    from optsched.simulate.seconds.execution import ClockedRun


#: The certificate as JSON without its long lists, and how the names of these begin.
PROOF = "proof"


def unpack(content: bytes) -> tuple[dict[str, IntArray], AnyCertificate]:
    """Return the lists of whole numbers and the certificate that an .npz file holds."""
    with np.load(BytesIO(content)) as archive:
        files: dict[str, npt.NDArray[np.uint8]] = dict(archive)
    proof: JSON = json.loads(files.pop(PROOF).tobytes())
    numbers: dict[str, IntArray] = {}
    for key, planes in files.items():
        name, _, order = key.rpartition(" ")  # how often differences were taken
        numbers[name] = _from_bytes(planes)
        for _ in range(int(order)):
            numbers[name] = np.cumsum(numbers[name])
    for name in [name for name in numbers if name.startswith(PROOF)]:
        key, values = name.removeprefix(PROOF), numbers.pop(name).tolist()
        if (lengths := proof[key]) is not None:  # of a list of lists
            ends = np.cumsum([0, *lengths]).tolist()
            values = [values[begin:end] for begin, end in pairwise(ends)]
        proof[key] = values
    return numbers, read_certificate(json.dumps(proof))


def _from_bytes(planes: npt.NDArray[np.uint8]) -> IntArray:
    """Return numbers of which the lowest bytes come first, and the sign is the lowest bit."""
    every = np.zeros((planes.shape[1], 8), dtype=np.uint8)
    every[:, : len(planes)] = planes.T
    unsigned = every.view("<u8").reshape(-1)
    halves, signs = (unsigned >> np.uint64(1)).astype(np.int64), unsigned & np.uint64(1)
    values: IntArray = halves ^ -signs.astype(np.int64)
    return values


_ROUNDING = 1e-9  # relative, of times that are added up in another order


def in_batches(run: ClockedRun | RoutedRun) -> Schedule:
    """Return the starts of a run in batches; no request may be stopped, or prefilled in chunks.

    A batch begins when the one before has ended and all that start in it have arrived.

    Examples
    --------
    >>> import optsched
    >>> timed = optsched.Instance([62, 62], [2, 1], memory=64)
    >>> in_batches(optsched.run(timed, "fcfs", clock="affine:0.01,0.001")).starts
    array([0, 2])
    """
    untimed, made = run.instance.replace(arrivals=None, deadlines=None), cast("Any", run)
    if getattr(run.clock, "coefficients", None) is None:
        raise errors.ScheduleError(f"the run of {run.policy} is on no clock that is a weighted sum")
    several = {"workers": made.workers, "placement": made.placement} if hasattr(run, "runs") else {}
    starts = np.zeros(len(untimed), dtype=np.int64)
    for worker, each in enumerate(getattr(run, "runs", (run,))):
        if each is not None:
            own = made.requests_on(worker) if several else slice(None)
            starts[own] = each.last_batch - each.instance.outputs + 1
    plan = Schedule(untimed, starts, run.policy, **several)
    late = latency_on(made.clock, plan, run.instance) > run.total_latency * (1 + _ROUNDING)
    if run.unfinished or run.preemptions or plan.check() or late:
        raise errors.ScheduleError(
            f"the run of {run.policy} leaves requests unfinished, stops them, or takes prompts in "
            "chunks, which starts cannot say; take the run of an order, such as work"
        )
    return plan


def latency_on(clock: LinearClock, plan: Schedule, instance: Instance) -> float:
    """Return the total latency of starts in batches, in the unit of the clock."""
    arrivals, total = arrival_times(instance, clock), []
    for worker in np.unique(plan.placement).tolist():
        requests = plan.requests_on(worker)
        ends = _ends(clock, plan.on(worker), arrivals[requests])
        total += (ends[plan.completions[requests] - 1] - arrivals[requests]).tolist()
    return math.fsum(total)


def _ends(clock: LinearClock, plan: Schedule, arrivals: FloatArray) -> FloatArray:
    starts, prompts, batches = plan.starts, plan.instance.prompts, plan.makespan

    def count(at: IntArray, what: IntArray | None = None) -> FloatArray:
        return np.bincount(at, what, batches + 1)[:batches].astype(np.float64)

    held = plan.memory_profile()[1:].astype(np.float64)  # when each batch ends
    active = np.cumsum(count(starts) - count(plan.completions))
    prefilled, decodes = count(starts, prompts), active - count(starts[prompts > 0])
    resident = held - active - prefilled
    contents = [prefilled, decodes, resident, count(starts, prompts * prompts), held]
    lasts = clock.coefficients @ np.array([np.ones(batches), *contents])
    lasts += clock.mixed_tokens * resident * (prefilled > 0)
    for tokens, slope in clock.hinges:
        lasts += slope * np.maximum(prefilled + decodes - tokens, 0)
    for tokens, slope in clock.ramps:
        lasts += slope * np.minimum(prefilled + decodes, tokens)
    lasts[active == 0] = 0.0  # there is no such batch
    ready = np.zeros(batches)
    np.maximum.at(ready, starts, arrivals)
    passed = np.cumsum(lasts)
    ends: FloatArray = passed + np.maximum.accumulate(ready - (passed - lasts))
    return ends


#: Public traces, by the names that recipes give them.
TRACES = {
    "azure-conversation-2023": "AzureLLMInferenceTrace_conv.csv of Azure's public traces",
    "azure-code-2023": "AzureLLMInferenceTrace_code.csv of Azure's public traces",
    "arxiv-summarization": "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv of Vidur",
}


class Finder(NamedTuple):
    """How a schedule or a bound was found."""

    method: str
    version: str  # of optsched
    cpu_seconds: float
    date: str = ""  # such as 2026-11-28

    def __str__(self) -> str:
        when = ", ".join(filter(None, [f"optsched {self.version}", self.date]))
        return f"{self.method} ({when}, {self.cpu_seconds:,.3g} CPU s)"


_NOBODY = Finder("nothing", "", 0.0)


@dataclass(frozen=True)
class Record:
    """A named instance, and what is known of the least total latency or makespan of its schedules.

    Attributes
    ----------
    trace, memory, seconds_per_step
        What `read_trace` makes the requests of: a family, or a public trace, whose file you pass.
    fingerprint
        `Instance.fingerprint` of the requests.
    workers, clock
        As the commands take them; None: in steps.
    offline
        Whether all requests are there at step 0, whatever the trace says.
    criterion
        What is least: "total-latency" or, in steps, "makespan".
    objective, bound, schedule_by, bound_by
        That of the best schedule, the best proven lower bound, and how they were found; in steps or
        in the unit of the clock.

    Examples
    --------
    >>> import optsched
    >>> record = optsched.library()["uniform-8"]
    >>> record.schedule(record.instance()).total_latency == record.objective
    True
    """

    name: str
    trace: str
    memory: int
    requests: int
    fingerprint: str
    workers: str = "1"
    clock: str | None = None
    seconds_per_step: float = 0.05
    offline: bool = False
    criterion: str = "total-latency"
    objective: float = math.inf
    bound: float = 0.0
    schedule_by: Finder = _NOBODY
    bound_by: Finder = _NOBODY

    @property
    def gap(self) -> float:
        """Share of the objective that the bound does not account for."""
        if math.isinf(self.objective):
            return 1.0
        return (self.objective - self.bound) / self.objective

    @property
    def standing(self) -> str:
        """The gap, or that the schedule is proven to be optimal."""
        return "optimal" if self.gap == 0 else percent(self.gap, 2)

    @property
    def memories(self) -> Workers:
        """The workers."""
        return Workers.parse(self.workers, self.memory if self.workers.isdecimal() else None)

    @property
    def recipe(self) -> str:
        """What commands are told of it."""
        words = [self.trace, "" if self.trace.startswith("family:") else f"--limit {self.requests}"]
        words.append(f"--memory {self.memory}" if self.workers.isdecimal() else "")
        words.append("" if self.workers == "1" else f"--workers {self.workers}")
        words.append("" if self.clock is None else f"--clock {self.clock}")
        words.append("" if self.criterion == "total-latency" else f"--objective {self.criterion}")
        return " ".join(filter(None, words)) + (", all at step 0" if self.offline else "")

    @checked(errors.OptschedError)
    def instance(self, trace: str | Path | None = None) -> Instance:
        """Make the requests, from the file of a public trace where they are made of one."""
        public = TRACES.get(self.trace)
        if (trace is None) != (public is None):
            advice = f"pass its file (--trace FILE): {public}" if public else "leave the trace out"
            raise errors.InstanceError(f"{self.name} is made of {self.trace}; {advice}")
        source, step = self.trace if trace is None else trace, self.seconds_per_step
        made = read_trace(source, self.memory, limit=self.requests, seconds_per_step=step)
        made = made.replace(name=self.name, **({"arrivals": None} if self.offline else {}))
        if made.fingerprint != self.fingerprint:
            advice = f"pass {public}" if public else f"NumPy {np.__version__} may draw others"
            raise errors.InstanceError(
                f"{source} does not give the requests of {self.name}; {advice}"
            )
        return made

    @cached_property
    def _stored(self) -> tuple[dict[str, IntArray], AnyCertificate]:
        file = resources.files(__name__).joinpath("arrays", f"{self.name}.npz")
        return unpack(file.read_bytes())

    @property
    def certificate(self) -> AnyCertificate:
        """The proof of the bound, or of the best one where two solvers proved more."""
        return self._stored[1]

    def schedule(self, instance: Instance) -> Schedule:
        """Return the best known schedule; on a clock its starts count batches (`in_batches`)."""
        numbers, starts = self._stored[0], np.empty(self.requests, dtype=np.int64)
        starts[np.argsort(instance.areas, kind="stable")] = numbers["waits"]
        counted = self.counted(instance)
        starts += counted.arrivals
        places = numbers.get("placement", np.zeros_like(starts))
        method = self.schedule_by.method
        return Schedule(counted, starts, method, workers=self.memories, placement=places)

    def counted(self, instance: Instance) -> Instance:
        """Return what its schedules are of: on a clock requests without arrivals."""
        return instance if self.clock is None else instance.replace(arrivals=None)

    def cost(self, schedule: Schedule, instance: Instance) -> float:
        """Verify a schedule of `counted(instance)`, and return its total latency or makespan."""
        wanted = self.counted(instance).fingerprint, self.memories
        if (schedule.instance.fingerprint, schedule.workers) != wanted:
            raise errors.ScheduleError(
                f"the schedule is of other requests or workers than {self.name}"
            )
        if violations := schedule.check():
            raise errors.InfeasibleError(f"the schedule is infeasible: {violations[0]}")
        if self.clock is None:
            return schedule.makespan if self.criterion == "makespan" else schedule.total_latency
        return latency_on(cast("LinearClock", get_clock(self.clock)), schedule, instance)

    def proven(self, certificate: AnyCertificate, instance: Instance) -> float:
        """Verify a certificate, and return the bound that it proves."""
        workers = self.memories if self.clock is None and self.workers != "1" else None
        fingerprint = instance.fingerprint if workers is None else workers.fingerprint(instance)
        facts = World(fingerprint, len(self.memories), objective=self.criterion)
        if self.clock is not None:
            clock = cast("LinearClock", get_clock(self.clock))
            coefficients, step = tuple(clock.coefficients.tolist()), step_of(instance, clock)
            facts = replace(facts, clock=coefficients, step=step)
        value = verify(certificate, instance, workers)
        if (why := uncovered(certificate.premises, facts)) is not None:
            raise errors.CertificateError(f"the certificate proves nothing of {self.name}: {why}")
        return round_down(value) if self.clock else math.ceil(value)  # steps are whole

    def verified(self, file: Path, instance: Instance) -> tuple[str, float]:
        """Verify a schedule or a certificate; return which field it is a value of, and that."""
        content, _ = read_object(file, errors.OptschedError, "a schedule or a certificate")
        if "starts" not in content:
            return "bound", self.proven(read_certificate(file), instance)
        plan = Schedule.from_json(file, self.counted(instance), self.memories)
        return "objective", self.cost(plan, instance)

    def to_dict(self) -> JSON:
        """Return what is known as plain data, ready for JSON."""
        found = asdict(self) | {"gap": self.gap, "recipe": self.recipe}
        for name in ("schedule_by", "bound_by"):
            found[name] = getattr(self, name)._asdict()
        return found | {"workers": len(self.memories), "method": self.schedule_by.method}

    def __str__(self) -> str:
        unit = "steps" if self.clock is None else "s"
        return (
            f"{self.name}: {self.requests:,} requests, {self.recipe}\n"
            f"  best known  {self.objective:,.10g} {unit} by {self.schedule_by}\n"
            f"  bound       {proven(self.bound, digits=10)} {unit} by {self.bound_by}\n"
            f"  gap         {self.standing}"
        )


class _Library(dict[str, Record]):
    def __missing__(self, name: str) -> Record:
        raise errors.OptschedError(f"the library has no {name!r}; {errors.nearest(name, self)}")


def library() -> dict[str, Record]:
    """Return the instances of the library by name, with the best that is known of each.

    Examples
    --------
    >>> import optsched
    >>> record = optsched.library()["uniform-8"]
    >>> record.gap, len(record.instance())
    (0.0, 8)
    """
    rows = json.loads(resources.files(__name__).joinpath("index.json").read_text("utf-8"))
    for row in rows.values():
        for key in ("schedule_by", "bound_by"):
            row[key] = Finder(*row.get(key, _NOBODY))
    return _Library({name: Record(name, **row) for name, row in rows.items()})
