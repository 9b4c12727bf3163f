"""The cluster written from the paper in plain Python, sharing no code with the package."""


def profile(prompt, output, drift):
    """Loads of a request by age: Definition 2, the last drift repeating."""
    steps = drift if isinstance(drift, list) else [drift]
    loads = [prompt]
    for age in range(output - 1):
        loads.append(loads[-1] + steps[min(age, len(steps) - 1)])
    return loads


class LiteralCluster:
    """Steps a cluster by lists and sums; `choose` says where each waiting request goes."""

    def __init__(self, requests, slots, memory, reveal, choose, duration=None):
        # A request is a dictionary: profile, arrival, reserved, and what happens to it.
        self.requests = requests
        self.slots = slots
        self.memory = memory
        self.reveal = reveal
        self.choose = choose
        self.duration = duration  # of a step, from its loads, where arrivals are in seconds
        self.step = self.time = 0
        self.waiting = []
        self.active = [[] for _ in slots]
        self.loads = []
        self.waiting_after = []

    def load(self, worker, step):
        """Sum the loads that the requests of a worker have at a step, if they still run then."""
        total = 0
        for i in self.active[worker]:
            age = step - self.requests[i]["start"]
            if age < len(self.requests[i]["profile"]):
                total += self.requests[i]["profile"][age]
        return total

    def free(self, worker):
        return self.slots[worker] - len(self.active[worker])

    def unreserved(self, worker):
        return self.memory[worker] - sum(self.requests[i]["reserved"] for i in self.active[worker])

    def fits(self, i, worker):
        return self.free(worker) > 0 and self.unreserved(worker) >= self.requests[i]["reserved"]

    def put(self, i, worker):
        assert self.fits(i, worker)
        self.requests[i]["start"], self.requests[i]["worker"] = self.step, worker
        self.active[worker].append(i)
        self.waiting.remove(i)

    def pass_time(self):
        """Add a step, or its seconds: an idle cluster sleeps until the next request arrives."""
        to_come = [request["arrival"] for request in self.requests if "revealed" not in request]
        if self.duration is None:
            self.time += 1
        elif self.waiting or any(self.active) or not to_come:
            self.time += self.duration(self.loads[-1])
        else:
            self.time = to_come[0]

    def run(self, limit):
        """Run until all is done or so many steps."""
        while self.step < limit and any("end" not in request for request in self.requests):
            for i, request in enumerate(self.requests):
                if (
                    len(self.waiting) < self.reveal
                    and "revealed" not in request
                    and request["arrival"] <= self.time
                ):
                    request["revealed"] = self.step
                    self.waiting.append(i)
            self.choose(self)
            for worker in range(len(self.slots)):
                assert self.free(worker) >= 0
                assert self.unreserved(worker) >= 0
            self.loads.append([self.load(g, self.step) for g in range(len(self.slots))])
            self.waiting_after.append(len(self.waiting))
            self.pass_time()
            self.step += 1
            for worker, running in enumerate(self.active):
                for i in running:
                    if self.step - self.requests[i]["start"] == len(self.requests[i]["profile"]):
                        self.requests[i]["end"] = self.step
                self.active[worker] = [i for i in running if "end" not in self.requests[i]]
        return self


def replay(starts, workers):
    """Do what a run says it did."""

    def choose(cluster):
        for i in list(cluster.waiting):
            if starts[i] == cluster.step:
                cluster.put(i, workers[i])

    return choose


def fcfs(cluster):
    """Algorithm 2: the oldest request to the worker with most free slots that can hold it."""
    for i in list(cluster.waiting):
        able = [g for g in range(len(cluster.slots)) if cluster.fits(i, g)]
        if not able:
            return
        cluster.put(i, max(able, key=lambda g: (cluster.free(g), -g)))


def round_robin():
    """The oldest request to the next worker in turn that can hold it."""
    turn = 0

    def choose(cluster):
        nonlocal turn
        count = len(cluster.slots)
        for i in list(cluster.waiting):
            able = [(turn + k) % count for k in range(count)]
            able = [g for g in able if cluster.fits(i, g)]
            if not able:
                return
            cluster.put(i, able[0])
            turn = able[0] + 1

    return choose


def lpt(slowness):
    """The oldest requests that have slots, largest first to the lightest worker with them."""

    def choose(cluster):
        total = sum(cluster.free(g) for g in range(len(cluster.slots)))
        taken = cluster.waiting[:total]
        for i in sorted(taken, key=lambda i: -cluster.requests[i]["profile"][0]):
            size = cluster.requests[i]["profile"][0]
            able = [g for g in range(len(cluster.slots)) if cluster.fits(i, g)]
            if able:
                load = {g: slowness[g] * (cluster.load(g, cluster.step) + size) for g in able}
                cluster.put(i, min(able, key=lambda g: (load[g], g)))

    return choose
