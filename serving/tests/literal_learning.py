"""vLLM's scheduler that learns outputs and is fair to clients, told of events one by one."""

import math

import literal_vllm

from optsched_serving.learning import OutputLearner, TokenCounters


def literal_learner(seen, order, plan, fair):
    """Return the literal scheduler that learns, told of events one by one."""
    learner, counters, expected = OutputLearner(), TokenCounters(), {}

    class Learning(literal_vllm.Scheduler):
        def left(self, request):
            first = expected[request.index][0].planned(0)
            return max(1, first - request.made - request.in_flight)

        def rank(self, request):
            found, tag = expected[request.index]
            left, prompt = found.left(request.made), request.prompt + request.made
            if fair:
                request.priority = tag
            elif order == "area":
                request.priority = prompt * left + left * (left + 1) / 2

        def add(self, request):
            found = learner.expect(seen[request.index])
            tag = counters.tag(seen[request.index], found.left(0))
            expected[request.index] = found, tag
            self.rank(request)
            super().add(request)

        def put_back(self, request):
            if order is not None and not fair:
                request.priority = -math.inf  # it goes on first
            super().put_back(request)

        def reuse(self, request, cached):
            counters.serve(expected[request.index][1])

        def release(self, request):
            super().release(request)
            if request.last is not None:
                found = expected[request.index][0]
                learner.learn(request.made, found)
                counters.settle(found.seen, found.left(0), request.made)

        def is_planned(self, request):
            group = [*self.running, request]
            if len(group) == 1 or not plan:
                return True
            lag = int(self.settings.async_scheduling)
            for ahead in {self.left(r) + lag for r in group}:
                rest = [r for r in group if self.left(r) + lag >= ahead]
                stored = (r.known + r.in_flight + min(ahead, self.left(r)) - 1 for r in rest)
                if sum(map(self.blocks_for, stored)) > self.usable():
                    return False
            return True

    return Learning
