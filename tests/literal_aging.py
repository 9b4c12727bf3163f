"""Orders that age inside vLLM's literal scheduler, worked out from all events each time."""

from __future__ import annotations

import math


def with_aging(base, scale):
    """Return a scheduler that ranks requests, so that they age over a scale."""
    came = []  # number, arrival, key and memory-time of each request
    later = {}
    left = set()  # that wait no longer, or did once

    def waited(now):
        """How long the next one by arrival would have waited, had as much work been admitted so."""
        work = sum(each[3] for each in came if each[0] in left)
        for _, arrival, _, each in came:
            work -= each
            if work < 0:
                return now - arrival
        return 0.0

    def mean():
        found = 0.0
        for number, (_, _, key, _) in enumerate(came):
            found += (key - found) / min(number + 1, 100)
        return found

    class Aged(base):
        def rank(self, request):
            super().rank(request)
            key, index, now = request.priority, request.index, request.arrival
            if index not in later:
                tokens = self.left(request)
                work = request.prompt * tokens + tokens * (tokens + 1) // 2
                before, since = (later[came[-1][0]], now - came[-1][1]) if came else (0.0, now)
                later[index] = before + since / max(waited(now), 0.01)
                came.append((index, now, key, work))
            if scale == "load":
                request.priority = math.log(key / (key + 0.3 * mean())) + later[index]
            else:
                request.priority = math.log(key) + now / scale

        def reuse(self, request, cached):
            super().reuse(request, cached)
            left.add(request.index)

    return Aged
