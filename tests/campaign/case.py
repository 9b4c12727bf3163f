"""What a case of the campaign gives back, and how long it may take."""

import contextlib
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

#: By how much longer than usual a case may take: much while kernels are compiled.
PATIENCE = 1
#: Whether kernels are compiled, so that what cases begin with needs to compile none.
COMPILED = False


class HangError(Exception):
    """A case that has not ended in time."""


@dataclass
class Outcome:
    """What came of one case or, added up, of many.

    Attributes
    ----------
    inputs
        Files, command lines, models or certificates tried.
    faults
        Kills, limits, interrupts and refused writes injected.
    findings
        What should not have happened, one line each.
    notes
        How often something happened that is worth counting.
    wall, cpu
        Seconds of the process, and of the processor with what it started.
    """

    inputs: int = 0
    faults: int = 0
    findings: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    wall: float = 0.0
    cpu: float = 0.0

    def add(self, other):
        """Add the outcome of another case."""
        self.inputs += other.inputs
        self.faults += other.faults
        self.findings += other.findings
        self.wall += other.wall
        self.cpu += other.cpu
        for note, count in other.notes.items():
            self.note(note, count)

    def note(self, what, count=1):
        """Count something."""
        self.notes[what] = self.notes.get(what, 0) + count

    def check(self, good, *what):
        """Keep a finding unless all is well."""
        if not good:
            self.findings.append(" ".join(map(str, what)).replace("\n", " ")[:600])


@dataclass(frozen=True)
class Part:
    """One kind of abuse: what a case does, and how much there is to be."""

    case: Callable[[int, Path], Outcome]
    goal: int
    batch: int  # cases
    unit: str = "inputs"  # what the goal counts: inputs, faults or a note
    warm: tuple[Callable[[], None], ...] | None = None  # what compiles its kernels; None: a batch

    def reached(self, total):
        """Return how much there is."""
        return getattr(total, self.unit, None) or total.notes.get(self.unit, 0)


def one_of(kinds, rng, limit, *arguments):
    """Carry out a case of a kind drawn by its weight; what it raises is a finding."""
    outcome = Outcome(inputs=1)
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    outcome.note(kind.__name__.strip("_").replace("_", " "))
    try:
        with limit:
            kind(*arguments, outcome)
    except Exception as error:
        outcome.check(False, f"{kind.__name__}: {type(error).__name__}: {error}")
    return outcome


def one_sentence(error):
    """Whether a message is one line that says something."""
    return "\n" not in str(error) and len(str(error)) > 5


@contextlib.contextmanager
def within(seconds, how=HangError):
    """End what takes longer, again and again until it does."""

    def ring(number, frame):
        raise how

    def report(unraisable):
        # Raised inside a callback from C (numba's, say) it is lost; the next one ends the case.
        if not issubclass(unraisable.exc_type, how):
            hook(unraisable)

    hook, sys.unraisablehook = sys.unraisablehook, report
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds, 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook


@contextlib.contextmanager
def address_space(gigabytes):
    """Let this process have so much more memory, so that a bad input cannot take all there is."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limit = used + int(gigabytes * 2**30)
    if before[1] != resource.RLIM_INFINITY:
        limit = min(limit, before[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
