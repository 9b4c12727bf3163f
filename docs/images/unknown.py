"""Draw what not knowing arrivals costs where it is exact: `python docs/images/unknown.py`.

At each of the first `STEPS` steps a request of either kind arrives, each with half a probability.
Two dynamic programs give the least mean latency: one that knows how likely arrivals are, and one
for every sequence that comes true. Policies run on all sequences.
"""

import itertools
from functools import cache
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import numpy as np
from matplotlib import pyplot

import optsched
from optsched.report.style import BLUE, LIMIT, REFERENCE, line_of, line_styles, prepare

STEPS, MEMORIES = 6, (8, 10, 12)
KINDS = (((1, 2), (4, 4)), ((2, 1), (2, 5)), ((1, 1), (3, 5)), ((1, 4), (5, 1)))
PROBABILITIES = (0.25, 0.5, 0.75, 1.0)
POLICIES = ("fcfs", "area", "area+backfill")
SEQUENCES = list(itertools.product((None, 0, 1), repeat=STEPS))  # which kind comes at each step


def least_latency(kinds, memory, coming):
    """Return the least expected total latency; `coming(step)` pairs kinds with their chances."""

    def fits(running):
        ahead = range(1, 1 + max((kinds[kind][1] - made for kind, made in running), default=0))
        return all(
            sum(
                kinds[kind][0] + made + after
                for kind, made in running
                if made + after <= kinds[kind][1]
            )
            <= memory
            for after in ahead
        )

    @cache
    def starts(running, waiting):
        """List what may run in the next step, with how many of each kind still wait."""
        found = []
        for chosen in itertools.product(*(range(count + 1) for count in waiting)):
            new = [(kind, 0) for kind, count in enumerate(chosen) for _ in range(count)]
            then = tuple(sorted([*running, *new]))
            if fits(then):
                found.append((then, (waiting[0] - chosen[0], waiting[1] - chosen[1])))
        return found

    @cache
    def cost(step, running, waiting):
        if step >= STEPS and not running and waiting == (0, 0):
            return 0.0
        least = np.inf
        for then, left in starts(running, waiting):
            if step >= STEPS and not then:
                continue  # nothing comes any more
            later = tuple((kind, made + 1) for kind, made in then if made + 1 < kinds[kind][1])
            here = len(then) + sum(left)
            least = min(least, here + arrive(step + 1, later, left))
        return least

    def arrive(step, running, waiting):
        expected = 0.0
        for kind, chance in coming(step) if step < STEPS else ((None, 1.0),):
            more = (waiting[0] + (kind == 0), waiting[1] + (kind == 1))
            expected += chance * cost(step, running, more) if chance else 0.0
        return expected

    return arrive(0, (), (0, 0))


def instance_of(sequence, kinds, memory):
    """Make the requests of a sequence."""
    arrivals = [step for step, kind in enumerate(sequence) if kind is not None]
    prompts, outputs = zip(*(kinds[sequence[step]] for step in arrivals), strict=True)
    return optsched.Instance(prompts, outputs, memory, arrivals)


def above_hindsight(kinds, memory):
    """Return by how much the online optimum and the policies are above hindsight, in percent.

    The shape is (probabilities, one more than policies).
    """
    hindsight = [
        least_latency(kinds, memory, lambda step, s=sequence: ((s[step], 1.0),))
        for sequence in SEQUENCES
    ]
    totals = np.zeros((len(POLICIES), len(SEQUENCES)))
    for at, sequence in enumerate(SEQUENCES):
        if any(kind is not None for kind in sequence):
            instance = instance_of(sequence, kinds, memory)
            for row, policy in enumerate(POLICIES):
                totals[row, at] = optsched.run(instance, policy).schedule.total_latency
    present = np.array([sum(kind is not None for kind in sequence) for sequence in SEQUENCES])
    rows = []
    for probability in PROBABILITIES:
        each = ((None, 1 - probability), (0, probability / 2), (1, probability / 2))
        weights = (probability / 2) ** present * (1 - probability) ** (STEPS - present)
        online = least_latency(kinds, memory, lambda _, each=each: each)
        rows.append(np.array([online, *(totals @ weights)]) / (weights @ hindsight))
    return 100 * (np.array(rows) - 1)


def draw_unknown(path: Path) -> None:
    """Draw means over all settings, and the best policy of each beside the online optimum."""
    settings = itertools.product(KINDS, MEMORIES)
    found = np.array([above_hindsight(*setting) for setting in settings])
    online, best = found[..., 0], found[..., 1:].min(axis=2)
    for name, values in (("online optimum", online), ("best policy", best)):
        print(f"{name}: {values.mean():.2f} % in the mean, {values.max():.2f} % at most")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for ax in (left, right):
        prepare(ax)
    optimum, *means = found.mean(axis=0).T
    left.plot(PROBABILITIES, optimum, color=LIMIT, linewidth=2, label="online optimum")
    for name, look, values in zip(POLICIES, line_styles(POLICIES), means, strict=True):
        left.plot(PROBABILITIES, values, **line_of(look), marker=look.marker, label=name)
    left.set(
        xlabel="probability of an arrival", ylabel="latency above hindsight (%)", ylim=(0, None)
    )
    left.legend(frameon=False)
    right.axline((0, 0), slope=1, **REFERENCE)
    right.plot(online.ravel(), best.ravel(), "o", color=BLUE, markersize=4)
    right.set(xlabel="online optimum above hindsight (%)", ylabel="best policy above hindsight (%)")
    figure.savefig(path, dpi=140, metadata={"Software": None})


if __name__ == "__main__":
    draw_unknown(Path(__file__).parent / "unknown.png")
