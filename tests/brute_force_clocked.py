"""The least total latency on a clock over all sequences of batches there are, for tiny instances.

Before each batch any request may lose its KV cache; in it each request that has arrived sits out,
prefills any number of its missing tokens, or decodes. A request that lost its cache prefills its
prompt and tokens again, and goes on. The worker may wait for the next arrival. The number of
requests that take part in a batch may be limited. A token takes memory in the batch that makes it
or, where tokens are stored later, from the next batch of its request on.
"""

import functools
import heapq
import itertools

import numpy as np

from optsched import Instance
from optsched.certificates.on_clock import ClockCertificate
from optsched.clock import BatchContent, LinearClock

EXACT = 1e-9  # brute force adds floats


def drawn(rng, most=3):
    """Draw a tiny instance, its weights and a clock, on which recomputing may be cheap."""
    count = int(rng.integers(1, most + 1))
    late = count < 3 and rng.random() < 0.5
    memory, longest = int(rng.integers(3, 8)), 3 if late or count > 2 else 4  # exclusive
    outputs = rng.integers(1, min(memory, longest), count)
    prompts = np.minimum(rng.integers(0, longest, count), memory - outputs)
    arrivals = np.sort(rng.integers(0, 6, count)) * int(late)
    weights = rng.choice([0.5, 1.0, 3.0], count)
    numbers = rng.choice([0.0, 0.01, 0.1, 0.3, 1.0], 6)
    numbers[0] = rng.choice([0.05, 0.2, 1.0])
    instance = Instance(prompts, outputs, memory, arrivals, weights=weights, seconds_per_step=0.37)
    return instance, LinearClock("drawn", *numbers.tolist())


def certificate_of(instance, clock, **fields):
    """Return a certificate of what the machine proves."""
    return ClockCertificate(
        tuple(clock.coefficients.tolist()),
        instance.seconds_per_step,
        instance.fingerprint,
        **{"origin": int(instance.arrivals[0]), **fields},
    )


def least_latency(
    instance,
    clock,
    arrivals,
    weights=None,
    max_num_seqs=99,
    storage="at-once",
    preemption="recomputed",
    makespan=False,
):
    """Return the least weighted latency, or makespan: the shortest path through states and times.

    Where requests are resumed, only those that take part in a batch take memory, and what others
    hold is kept elsewhere for nothing.
    """
    requests = list(zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True))
    weights = [1.0] * len(requests) if weights is None else list(weights)

    @functools.cache
    def batches(state, here):
        """Return what each batch of some requests takes, and the state it leaves; all once."""
        found = set()
        for choice in itertools.product(*(moves(*requests[i], *state[i]) for i in here)):
            took = [i for i, (_, own) in zip(here, choice, strict=True) if any(own)]
            if not 0 < len(took) <= max_num_seqs:
                continue
            after = list(state)
            for i, (new, _) in zip(here, choice, strict=True):
                after[i] = new
            stored = sum(after[i][0] for i in (took if preemption == "resumed" else range(count)))
            if storage == "next-batch":
                newest = zip(after, requests, strict=True)
                stored -= sum(
                    made and held == prompt + made for (held, made), (prompt, _) in newest
                )
            if stored > instance.memory:
                continue
            done = [
                (0, made) if made == output else (held, made)
                for (held, made), (_, output) in zip(after, requests, strict=True)
            ]
            content = map(sum, zip(*(own for _, own in choice), strict=True))
            found.add((clock(BatchContent(*content)), tuple(done)))
        return found

    count = len(requests)
    paid = [(0.0, 0.0, ((0, 0),) * count)]  # cost, time, and tokens held and made
    settled = set()
    while paid:
        cost, now, state = heapq.heappop(paid)
        if all(made == output for (_, made), (_, output) in zip(state, requests, strict=True)):
            return cost
        left = [i for i, (_, output) in enumerate(requests) if state[i][1] < output]
        here = tuple(i for i in left if arrivals[i] <= now)
        later = [arrivals[i] for i in left if arrivals[i] > now]
        key = (now if later else None, state)  # once all are here, what follows knows no time
        if key in settled:
            continue
        settled.add(key)

        def cost_until(end, now=now, left=left):
            """Return what waiting adds: a request pays while it is here and not complete."""
            if makespan:
                return end - now
            return sum(weights[i] * max(0.0, end - max(now, arrivals[i])) for i in left)

        if later:
            heapq.heappush(paid, (cost + cost_until(min(later)), min(later), state))
        for seconds, after in batches(state, here):
            heapq.heappush(paid, (cost + cost_until(now + seconds), now + seconds, after))
    raise AssertionError("no sequence of batches serves all requests")


def moves(prompt, output, held, made):
    """Yield what a request may do in a batch: its tokens held and made, what it adds to it."""
    for kept in {held, 0}:
        yield (kept, made), (0, 0, 0, 0, 0)
        if prompt + made == 0:
            yield (1, 1), (0, 0, 0, 0, 1)
        if made and kept == prompt + made:
            yield (kept + 1, made + 1), (0, 1, kept, 0, kept + 1)
            continue
        for after in range(kept + 1, prompt + made + 1):
            whole = after == prompt + made
            now = after + whole
            added = (after - kept, 0, 0, after**2 - kept**2, now)
            yield (now, made + whole), added


def least_latency_of_pool(instance, clock, arrivals, workers, weights=None, storage="at-once"):
    """Return the least over all ways to place the requests on equal workers."""
    weights = [1.0] * len(instance) if weights is None else list(weights)
    subsets = {}
    for chosen in itertools.product((False, True), repeat=len(instance)):
        kept = [i for i, taken in enumerate(chosen) if taken]
        subsets[chosen] = (
            0.0
            if not kept
            else least_latency(
                instance.take(kept),
                clock,
                [arrivals[i] for i in kept],
                [weights[i] for i in kept],
                storage=storage,
            )
        )
    best = {(False,) * len(instance): 0.0}
    for _ in range(workers):
        grown = dict(best)
        for done, cost in best.items():
            for chosen, more in subsets.items():
                if not any(a and b for a, b in zip(done, chosen, strict=True)):
                    both = tuple(a or b for a, b in zip(done, chosen, strict=True))
                    grown[both] = min(grown.get(both, float("inf")), cost + more)
        best = grown
    return best[(True,) * len(instance)]
