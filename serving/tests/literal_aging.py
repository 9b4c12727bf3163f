"""Orders that age inside vLLM's literal scheduler, worked out from all events each time."""

import math


class Aging:
    """Requests that have come, and which of them were admitted."""

    def __init__(self, scale):
        self.scale = scale
        self.came = []  # number, arrival, key and memory-time of each
        self.later = {}
        self.left = set()

    def waited(self, now):
        """How long the next one by arrival would have waited, had as much work been admitted so."""
        work = sum(each for number, _, _, each in self.came if number in self.left)
        for _, arrival, _, each in self.came:
            work -= each
            if work < 0:
                return now - arrival
        return 0.0

    def arrives(self, number, now, key, prompt, output):
        before, since = 0.0, now
        if self.came:
            last, arrival, *_ = self.came[-1]
            before, since = self.later[last], now - arrival
        self.later[number] = before + since / max(self.waited(now), 0.01)
        self.came.append((number, now, key, prompt * output + output * (output + 1) // 2))

    def key(self, number, key):
        if self.scale != "load":
            arrival = next(each[1] for each in self.came if each[0] == number)
            return math.log(key) + arrival / self.scale
        mean = 0.0
        for count, (_, _, each, _) in enumerate(self.came, start=1):
            mean += (each - mean) / min(count, 100)
        return math.log(key / (key + 0.3 * mean)) + self.later[number]


def with_aging(base, scale):
    """Return a scheduler that ranks requests, so that they age over a scale."""
    aging = Aging(scale)

    class Aged(base):
        def rank(self, request):
            super().rank(request)
            key, index = request.priority, request.index
            if index not in aging.later:
                aging.arrives(index, request.arrival, key, request.prompt, self.left(request))
            request.priority = aging.key(index, key)

        def reuse(self, request, cached):
            super().reuse(request, cached)
            aging.left.add(request.index)

    return Aged
