"""A slow, literal twin of routing: all workers side by side, from one event to the next."""

import math

from optsched.clock import BatchContent
from optsched.problem.workers import ROUTERS


class Worker:
    """A worker that admits in the order of a key, and goes from batch to batch."""

    def __init__(self, instance, memory, key, clock, skips):
        self.prompts, self.outputs = instance.prompts.tolist(), instance.outputs.tolist()
        self.memory, self.key, self.clock, self.skips = memory, key, clock, skips
        self.waiting, self.made, self.begun, self.tokens = [], {}, {}, 0
        self.batch, self.ends = [], None  # requests in the batch in progress, and its end

    def fits(self, requests):
        """Look at every batch to come, one by one."""
        left = {i: self.outputs[i] - self.made.get(i, 0) for i in requests}
        for ahead in range(1, max(left.values(), default=0) + 1):
            tokens = [
                self.prompts[i] + self.made.get(i, 0) + ahead for i in left if left[i] >= ahead
            ]
            if sum(tokens) > self.memory:
                return False
        return True

    def end_batch(self, now):
        """Take the batch that ends now off the worker."""
        if self.ends == now:
            self.made = {i: made for i, made in self.made.items() if made < self.outputs[i]}
            self.batch, self.ends = [], None

    def begin_batch(self, now):
        """Admit, and begin a batch if there is anything to do."""
        if self.ends is not None:
            return
        new = []
        for i in sorted(self.waiting, key=lambda i: (self.key[i], i)):
            if self.fits([*self.made, *new, i]):
                new.append(i)
            elif not self.skips:
                break
        prompts = [self.prompts[i] for i in new if self.prompts[i]]
        old = [*self.made, *(i for i in new if not self.prompts[i])]
        resident = sum(self.prompts[i] + self.made.get(i, 0) for i in old)
        for i in new:
            self.waiting.remove(i)
            self.begun[i], self.made[i] = now, 0
        if not self.made:
            return
        self.made = {i: made + 1 for i, made in self.made.items()}
        self.tokens += len(self.made)
        held = sum(self.prompts[i] + made for i, made in self.made.items())
        squares = sum(prompt**2 for prompt in prompts)
        content = BatchContent(sum(prompts), len(old), resident, squares, held)
        self.ends = now + self.clock(content)

    def load(self):
        """Count what is on the worker."""

        def area(i, made):
            return sum(self.prompts[i] + token for token in range(1, made + 1))

        to_come = [*self.waiting, *self.made]
        return {
            "waiting": len(self.waiting),
            "running": len(self.made),
            "held": sum(self.prompts[i] + made for i, made in self.made.items()),
            "waiting_prompts": sum(self.prompts[i] for i in self.waiting),
            "work": sum(area(i, self.outputs[i]) - area(i, self.made.get(i, 0)) for i in to_come),
            "made": self.tokens,
        }


class Weighted:
    """The worker with the least weighted sum of what is on it, tokens by its memory."""

    def __init__(self, weights):
        self.weights = weights

    def choose(self, fitting, loads, memories, **_):
        """Return a worker out of those where the request fits."""
        tokens = {"held", "waiting_prompts", "work"} & set(self.weights)

        def score(g):
            scale = max(memories) / memories[g] if tokens else 1
            return sum(scale * weight * loads[g][name] for name, weight in self.weights.items())

        return min(fitting, key=lambda g: (score(g), g))


class DataParallel:
    """The client of vLLM's data-parallel engines: it scans them from a start that moves on."""

    def __init__(self):
        self.start = 0

    def choose(self, fitting, loads, memories, now, **_):
        """Return the first engine with the least score."""
        least, chosen = None, None
        for place in range(len(memories)):
            g = (self.start + place) % len(memories)
            if g not in fitting:
                continue
            score = now[g]["waiting"] + now[g]["running"]  # those in flight
            if loads[g]["waiting"] + loads[g]["running"] > score:
                score = loads[g]["waiting"] + loads[g]["running"]
            usage = loads[g]["held"] / memories[g]
            if usage > 0.5:
                score += loads[g]["waiting"] * 6.0 * (usage - 0.5)
            if least is None or score < least:
                least, chosen = score, g
        self.start = (self.start + 1) % len(memories)
        return chosen


class ByCost:
    """The worker where all latencies together are predicted to grow least."""

    def __init__(self, told):
        self.told = told

    def choose(self, fitting, loads, memories, now, request, prompt, output, clocks):
        """Return a worker, in turn where several cost as much."""
        there = [load["waiting"] + load["running"] for load in now]
        completed = request - sum(there)
        mean = max(1, sum(load["made"] for load in loads) / (completed or 1))
        tokens = output if self.told else mean

        def cost(g):
            def batch(prefilled, decodes, held):
                return clocks[g](
                    BatchContent(prefilled, decodes, held, prefilled**2, prefilled + decodes + held)
                )

            n, held, ahead = there[g], loads[g]["held"], loads[g]["waiting_prompts"]
            own = batch(0, n + 1, held + ahead + prompt + tokens / 2)
            waits = mean * max(0, held + ahead + prompt - memories[g]) / (held + ahead or 1)
            found = (waits + tokens) * own + batch(ahead + prompt, n + 1, held)
            if n:
                found += n * min(tokens, mean) * (own - batch(0, n, held + ahead))
            return found

        costs = {g: cost(g) for g in fitting}
        count = len(memories)
        return min(fitting, key=lambda g: (costs[g], (g - request) % count))


def chooser(name):
    """Return the twin of a router by name, its age left out."""
    name = name.partition("@")[0]
    return NAMED[name]() if name in NAMED else Weighted(ROUTERS[name].weights)


NAMED = {
    "vllm-dp": DataParallel,
    "by-cost": lambda: ByCost(False),
    "by-cost-known": lambda: ByCost(True),
}


def route(instance, memories, key, clock, arrivals, chooser, skips=False, age=0):
    """Send each request to a worker that is chosen; return placement and beginnings.

    Workers with clocks of their own are given lists of clocks and keys. With an age, what the
    chooser sees is as old as the last report, and what was sent since is added.
    """
    several = isinstance(clock, list)
    clocks, keys = (clock, key) if several else ([clock] * len(memories), [key] * len(memories))
    workers = [Worker(instance, *own, skips) for own in zip(memories, keys, clocks, strict=True)]
    peaks = (instance.prompts + instance.outputs).tolist()
    placement, now, count, reports = [], 0.0, len(instance), 0
    while True:
        for worker in workers:
            worker.end_batch(now)
        if age and now == arrivals[0] + reports * age:
            told, reports = [worker.load() for worker in workers], reports + 1
        while len(placement) < count and arrivals[len(placement)] == now:
            request = len(placement)
            fitting = [g for g, memory in enumerate(memories) if peaks[request] <= memory]
            loads = [worker.load() for worker in workers]
            prompt, output = instance.prompts[request].item(), instance.outputs[request].item()
            seen = {
                **{"loads": told if age else loads, "now": loads, "memories": memories},
                **{"request": request, "prompt": prompt, "output": output, "clocks": clocks},
            }
            chosen = chooser.choose(fitting, **seen)
            placement.append(chosen)
            workers[chosen].waiting.append(request)
            if age:
                told[chosen]["waiting"] += 1
                told[chosen]["waiting_prompts"] += prompt
                told[chosen]["work"] += instance.areas[request].item()
        for worker in workers:
            worker.begin_batch(now)
        events = [worker.ends for worker in workers if worker.ends is not None]
        events += arrivals[len(placement) : len(placement) + 1]
        if age and len(placement) < count:
            events.append(arrivals[0] + reports * age)
        now = min(events, default=math.inf)
        if now == math.inf:
            break
    begun = {i: when for worker in workers for i, when in worker.begun.items()}
    return placement, [begun[i] for i in range(count)]
