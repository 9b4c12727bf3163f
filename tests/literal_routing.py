"""A slow, literal twin of routing: all workers side by side, from one event to the next."""

import math

from optsched.clock import BatchContent


class Worker:
    """A worker that admits in the order of a key, and goes from batch to batch."""

    def __init__(self, instance, memory, key, clock, skips):
        self.prompts, self.outputs = instance.prompts.tolist(), instance.outputs.tolist()
        self.memory, self.key, self.clock, self.skips = memory, key, clock, skips
        self.waiting, self.made, self.begun = [], {}, {}
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
        }


def route(instance, memories, key, clock, arrivals, weights, skips=False):
    """Send each request to the worker with the least score; return placement and beginnings.

    Workers with clocks of their own are given lists of clocks and keys.
    """
    several = isinstance(clock, list)
    clocks, keys = (clock, key) if several else ([clock] * len(memories), [key] * len(memories))
    workers = [Worker(instance, *own, skips) for own in zip(memories, keys, clocks, strict=True)]
    scale = [max(memories) / memory for memory in memories]
    if not {"held", "waiting_prompts", "work"} & set(weights):
        scale = [1] * len(memories)
    peaks = (instance.prompts + instance.outputs).tolist()
    placement, now, count = [], 0.0, len(instance)
    while True:
        for worker in workers:
            worker.end_batch(now)
        while len(placement) < count and arrivals[len(placement)] == now:
            request = len(placement)
            fitting = [g for g, memory in enumerate(memories) if peaks[request] <= memory]
            loads = [worker.load() for worker in workers]

            def score(g, loads=loads):
                return sum(scale[g] * weight * loads[g][name] for name, weight in weights.items())

            placement.append(min(fitting, key=lambda g: (score(g), g)))
            workers[placement[-1]].waiting.append(request)
        for worker in workers:
            worker.begin_batch(now)
        events = [worker.ends for worker in workers if worker.ends is not None]
        now = min([*events, *arrivals[len(placement) : len(placement) + 1]], default=math.inf)
        if now == math.inf:
            break
    begun = {i: when for worker in workers for i, when in worker.begun.items()}
    return placement, [begun[i] for i in range(count)]
