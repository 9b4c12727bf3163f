"""The net: all policies in all worlds, from the registries, and what must hold in each cell.

A run obeys a literal check of its own world, costs at least every bound that is shown beside it,
and equals its literal twin where there is one; or the combination is refused in one sentence.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from strategies import NAMES, SOLVED, drawn_policy, with_deadlines
from twins import twin_of

from optsched import Beliefs, Cluster, Execution, Instance, bound, compare, get_clock, run
from optsched.clock import LinearClock
from optsched.errors import OptschedError
from optsched.problem.premises import STORAGES, strongest
from optsched.problem.work import going_on_from_a_cache
from optsched.problem.workers import ROUTERS
from optsched.simulate.cluster.routing import ROUTINGS
from optsched.simulate.dispatch import RoutedRun
from optsched.simulate.seconds.execution import ClockedRun

EXACT = 1e-9  # relative: the simulators add floats
FILE = LinearClock(
    *("from a file", 0.5, 0.125, 0.25, 0.0625, 0.0, 0.03125),
    mixed_tokens=0.03125,
    hinges=((16, 0.25),),
    ramps=((8, 0.125),),
)
TIMES = ("steps", "unit", "llama-2-70b-2xa100", "llama-2-7b-a100", "file")
PLACES = ("one worker", "three workers", "barrier")
KNOWN = ("outputs", "intervals", "beliefs")


class Cell(NamedTuple):
    """A policy in a world."""

    policy: str
    time: str
    place: str
    arrivals: bool
    known: str


def cells():
    """List all policies in all worlds; behind a barrier those that route, and one that does not."""
    alone = sorted({*NAMES, *SOLVED, "rolling"})
    routing = [*ROUTINGS, "area"]
    return [
        Cell(policy, *world)
        for world in itertools.product(TIMES, PLACES, (False, True), KNOWN)
        for policy in (routing if world[1] == "barrier" else alone)
    ]


def some_cells(count):
    """Return cells drawn once and for all, of every policy as many as there is room for."""
    mixed = np.random.default_rng(29).permutation(np.array(cells(), dtype=object))
    seen, turns = {}, []
    for cell in (Cell(*row) for row in mixed):
        seen[cell.policy] = seen.get(cell.policy, 0) + 1
        turns.append((seen[cell.policy], cell))
    return [cell for _, cell in sorted(turns, key=lambda turn: turn[0])[:count]]


def drawn(cell, rng):
    """Draw requests that compete for memory, and the options that make the world of a cell."""
    count, memory = int(rng.integers(1, 9)), int(rng.integers(8, 40))
    outputs = rng.integers(1, min(memory - 1, 10) + 1, count)
    prompts = rng.integers(1, memory - outputs + 1)
    steps = np.cumsum(rng.integers(0, 5, count)) * cell.arrivals
    lower = np.maximum(1, outputs - rng.integers(0, 3, count))
    instance = Instance(
        prompts,
        outputs,
        memory,
        steps,
        output_lower=lower,
        output_upper=outputs + rng.integers(0, 3, count),
        seconds_per_step=float(rng.choice([0.01, 0.5])),
    )
    options = {"seed": int(rng.integers(99))}
    if cell.time != "steps":
        options["clock"] = FILE if cell.time == "file" else cell.time
    if cell.known != "outputs":
        options["intervals"] = str(rng.choice(["column", "common:1,12", "relative:0.5"]))
    if cell.known == "beliefs":
        options["beliefs"] = Beliefs(rng.integers(1, 9, (2, 20)), np.arange(count) % 2, 0.0)
    if cell.place == "barrier":
        return instance, cell.policy, options | {"cluster": Cluster(3, int(rng.integers(1, 4)))}
    if cell.place == "three workers":
        options |= {"workers": 3, "router": str(rng.choice(sorted(ROUTERS)))}
    policy = drawn_policy(cell.policy, rng)
    return with_deadlines(instance, policy), policy, options


def examine(cell, rng, *, twins=True, effort="auto"):
    """Run a cell; return what came of it, and what is wrong, in a sentence each."""
    instance, policy, options = drawn(cell, rng)
    try:
        found = run(instance, policy, **options)
    except OptschedError as error:
        return "refused", [] if "\n" not in str(error) else [f"not one sentence: {error}"]
    wrong = [f"check() says {each}" for each in found.check()] + literally(found)
    wrong += claimed(found, instance, policy, options, effort)
    if not twins or cell.place == "barrier":
        return "ran", wrong
    twin = twin_of(instance, policy, **options)
    if twin is None:
        return "ran", wrong
    return "equal to its twin", wrong + ([twin.differs(found)] if twin.differs(found) else [])


def literally(found):
    """Check a run against the rules of its own world, request by request and batch by batch."""
    if isinstance(found, Execution):
        return in_steps(found)
    if isinstance(found, ClockedRun):
        return on_clock(found)
    if isinstance(found, RoutedRun):
        parts = [part for part in found.runs if part is not None]
        served = sorted(itertools.chain.from_iterable(map(found.requests_on, range(3))))
        wrong = []
        if not found.unfinished:
            total = math.fsum(part.total_latency for part in parts)
            if not math.isclose(total, found.total_latency, rel_tol=EXACT, abs_tol=EXACT):
                wrong.append(f"total {found.total_latency} is not {total}")
        wrong += [] if served == list(range(len(found.instance))) else ["a request is lost"]
        return wrong + list(itertools.chain.from_iterable(map(literally, parts)))
    return behind_barrier(found)


def in_steps(found):
    """Add up the tokens of every attempt at every step."""
    instance, held, wrong = found.instance, {}, []
    ends = {}
    attempts = zip(
        found.starts.tolist(), found.requests.tolist(), found.tokens.tolist(), strict=True
    )
    complete = [0] * len(instance)
    for start, i, tokens in sorted(attempts):
        if start < max(ends.get(i, 0), int(instance.arrivals[i])):
            wrong.append(f"request {i} starts at {start}, too early")
        ends[i] = start + tokens
        complete[i] += tokens == instance.outputs[i]
        for u in range(1, tokens + 1):
            held[start + u] = held.get(start + u, 0) + int(instance.prompts[i]) + u
    if not found.unfinished and complete != [1] * len(instance):
        wrong.append(f"requests complete {complete} times")
    if max(held.values(), default=0) > instance.memory:
        wrong.append(f"{max(held.values())} tokens held of {instance.memory}")
    if not found.unfinished:
        total = sum(ends[i] - int(instance.arrivals[i]) for i in range(len(instance)))
        wrong += [] if total == found.total_latency else ["total latency is not that of the ends"]
    return wrong


def on_clock(found):
    """Go through all batches: their order, what they last, what they hold, whom they serve."""
    instance, wrong, now = found.instance, [], 0.0
    c = [*found.clock.coefficients.tolist()]
    made = 0
    for (begin, end), content, usage in zip(
        found.log.spans.tolist(), found.log.contents.tolist(), found.log.usage.tolist(), strict=True
    ):
        lasts = c[0] + sum(a * b for a, b in zip(c[1:], content, strict=True))
        lasts += sum(w * max(content[0] + content[1] - t, 0) for t, w in found.clock.hinges)
        lasts += sum(w * min(content[0] + content[1], t) for t, w in found.clock.ramps)
        lasts += found.clock.mixed_tokens * content[2] * (content[0] > 0)
        if begin < now - EXACT or not math.isclose(end - begin, lasts, rel_tol=1e-6, abs_tol=1e-9):
            wrong.append(f"a batch from {begin} to {end}, which lasts {lasts}, after {now}")
        if usage > instance.memory:
            wrong.append(f"{usage} tokens held of {instance.memory}")
        now, made = end, made + content[1]
    begins = [begin for begin, _ in found.log.spans.tolist()]
    for i, (first, last) in enumerate(
        zip(found.first_batch.tolist(), found.last_batch.tolist(), strict=True)
    ):
        if last < 0:
            wrong += [] if found.until < math.inf or found.loop or found.stall else ["unfinished"]
        elif last - first < instance.outputs[i] - 1:
            wrong.append(f"request {i} makes its tokens in too few batches")
        elif begins[first] < found.arrivals[i]:
            wrong.append(f"request {i} is served before it arrives")
    if not found.unfinished and made < int((instance.outputs - 1).sum()) - found.preemptions:
        wrong.append("fewer tokens were decoded than there are")
    return wrong


def behind_barrier(found):
    """Go through all steps: slots, arrivals, loads and the time of each step."""
    instance, cluster, wrong = found.instance, found.cluster, []
    slots = cluster.per_worker("slots").tolist()
    for step in range(found.steps):
        loads, counts = [0] * cluster.workers, [0] * cluster.workers
        for i, (start, g) in enumerate(
            zip(found.starts.tolist(), found.workers.tolist(), strict=True)
        ):
            if 0 <= start <= step < start + int(instance.outputs[i]):
                loads[g] += int(instance.prompts[i]) + step - start
                counts[g] += 1
        if any(a > b for a, b in zip(counts, slots, strict=True)):
            wrong.append(f"step {step} runs {counts} requests in slots {slots}")
        if max(loads) != found.max_work[step] or sum(loads) != found.total_load[step]:
            wrong.append(f"loads of step {step} are {loads}")
    return wrong


def claimed(found, instance, policy, options, effort):
    """Hold a run against every bound that is shown beside it, and against those it must obey."""
    wrong, clock = [], options.get("clock")
    if "cluster" in options:
        return wrong
    how = {} if clock is None else {"clock": get_clock(clock)}
    claims = []
    if getattr(found, "cached_tokens", 0) or isinstance(found, RoutedRun):  # its own ones
        how = {name: going_on_from_a_cache(each) for name, each in how.items()}
    for storage in STORAGES if how else ("at-once",):
        stored = {"storage": storage} if how else {}
        several = {"workers": 3} if "workers" in options else {}
        claims.append(bound(instance, effort, **how, **stored, **several))
        if not how:
            claims.append(bound(instance, "sawtooth", **several))
    covering, why = strongest(claims, found.facts)
    if (covering is None) != bool(found.unfinished):
        wrong.append(f"no bound covers the run: {why}")
    if covering is not None and found.total_latency < covering.value * (1 - EXACT):
        wrong.append(f"{found.total_latency} is below the bound {covering.value}")
    if "workers" not in options and not found.unfinished and effort == "auto":
        shown = compare(instance, policy, **options)
        gaps = [entry["gap"] for entry in shown.to_dict()["policies"]]
        wrong += [f"a gap of {gap}" for gap in gaps if gap is None or gap < -EXACT]
    return wrong
