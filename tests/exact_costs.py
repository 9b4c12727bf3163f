"""The least cost of tiny problems in exact arithmetic, every float taken for the fraction it is.

Nothing here comes from the package but the fields of what is asked.
"""

import math
from fractions import Fraction


class Question:
    """When to start requests, and on which worker, at the least cost.

    `extra(i, start)` is what a start costs besides; without it the cost must never fall when a
    completion comes later, or there must be a horizon.
    """

    def __init__(
        self,
        instance,
        objective="total-latency",
        lateness="forbidden",
        penalty=0.0,
        *,
        horizon=None,
        memories=None,
        eligible=None,
        extra=None,
    ):
        self.sizes = list(zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True))
        self.arrivals, self.horizon = instance.arrivals.tolist(), horizon
        self.makespan, self.hard = objective == "makespan", lateness == "forbidden"
        self.weights = [Fraction(not self.makespan)] * len(self.sizes)
        if objective == "weighted-latency" and instance.weights is not None:
            self.weights = [Fraction(weight) for weight in instance.weights.tolist()]
        self.penalty, self.penalties = Fraction(penalty), [Fraction(penalty)] * len(self.sizes)
        if objective == "late-requests":
            weights = self.weights if instance.weights is None else instance.weights.tolist()
            self.penalties = [Fraction(weight) for weight in weights]
            self.weights, self.hard = [Fraction(0)] * len(self.sizes), False
        self.deadlines = None if instance.deadlines is None else instance.deadlines.tolist()
        self.by_step = lateness == "per-step"
        self.memories = [instance.memory] if memories is None else list(memories)
        self.eligible, self.extra = eligible, extra

    def start_cost(self, i, start):
        """Return what it costs to start a request at a step, None where it must not."""
        end = start + self.sizes[i][1]
        late = 0 if self.deadlines is None else max(0, end - self.deadlines[i])
        too_late = self.horizon is not None and end > self.horizon
        if start < self.arrivals[i] or too_late or (late and self.hard):
            return None
        cost = self.weights[i] * (end - self.arrivals[i])
        if late:
            cost += self.penalties[i] * (late if self.by_step else 1)
        return cost if self.extra is None else cost + self.extra(i, start)

    def cost(self, starts, placement=None):
        """Return the exact cost of a schedule, None where it is not feasible."""
        placement = [0] * len(starts) if placement is None else placement
        costs = [self.start_cost(i, start) for i, start in enumerate(starts)]
        held = {}
        for i, (start, worker) in enumerate(zip(starts, placement, strict=True)):
            if costs[i] is None or not (self.eligible is None or self.eligible[i][worker]):
                return None
            for step in range(start + 1, start + self.sizes[i][1] + 1):
                tokens = self.sizes[i][0] + step - start
                held[worker, step] = held.get((worker, step), 0) + tokens
        if any(tokens > self.memories[worker] for (worker, _), tokens in held.items()):
            return None
        return sum(costs) + (self.makespan and max(step for _, step in held))

    def starts(self, i):
        """Return starts of a request among which are those of some best schedule.

        Within a horizon they are all that there are. Without one, of the best schedules look at
        one with the least sum of starts. Steps without any request part it into stretches; where
        none in a stretch started on its arrival, all of it could start a step earlier. So all
        starts of a stretch, which is no longer than all outputs together, are near an arrival.
        """
        if self.horizon is not None:
            return range(self.arrivals[i], self.horizon - self.sizes[i][1] + 1)
        reach = sum(output for _, output in self.sizes)
        ranges = (range(max(at - reach, self.arrivals[i]), at + reach + 1) for at in self.arrivals)
        return sorted(set().union(*ranges))

    def least(self):
        """Return the least cost of all schedules, or None where there is none."""
        count = len(self.sizes)
        costs = [
            {
                start: cost
                for start in self.starts(i)
                if (cost := self.start_cost(i, start)) is not None
            }
            for i in range(count)
        ]
        if not all(costs):
            return None
        # Whole numbers over one denominator are much faster than fractions.
        scale = math.lcm(*(cost.denominator for mine in costs for cost in mine.values()))
        whole = [
            sorted((int(cost * scale), start) for start, cost in mine.items()) for mine in costs
        ]
        ahead = [0] * (count + 1)
        for i in reversed(range(count)):
            ahead[i] = ahead[i + 1] + whole[i][0][0]
        held, best = {}, None

        def place(i, spent, end):
            nonlocal best
            total = spent + (end * scale if self.makespan else 0)
            if best is not None and total + ahead[i] >= best:
                return
            if i == count:
                best = total
                return
            prompt, output = self.sizes[i]
            for cost, start in whole[i]:
                if best is not None and total + cost + ahead[i + 1] >= best:
                    break
                for worker, memory in enumerate(self.memories):
                    if self.eligible is not None and not self.eligible[i][worker]:
                        continue
                    steps = [(worker, step) for step in range(start + 1, start + output + 1)]
                    grown = [held.get(at, 0) + prompt + at[1] - start for at in steps]
                    if max(grown) > memory:
                        continue
                    before = [held.get(at, 0) for at in steps]
                    held.update(zip(steps, grown, strict=True))
                    place(i + 1, spent + cost, max(end, start + output))
                    held.update(zip(steps, before, strict=True))

        place(0, 0, 0)
        return None if best is None else Fraction(best, scale)


def least_of_model(model):
    """Return the least objective (the most, of "max") over all whole points that keep every row.

    All columns are whole and bounded; rows are kept exactly. None where there is no point.
    """
    assert model.integer.all()
    sign = 1 if model.sense == "min" else -1
    low = [math.ceil(value) for value in model.col_lower.tolist()]
    high = [math.floor(value) for value in model.col_upper.tolist()]
    costs, scale = _whole([sign * Fraction(value) for value in model.cost.tolist()])
    rows = [_Row(model, at, low, high) for at in range(len(model.row_lower))]
    count = len(costs)
    ahead = [0] * (count + 1)
    for j in reversed(range(count)):
        ahead[j] = ahead[j + 1] + min(costs[j] * low[j], costs[j] * high[j])
    sums, best = [0] * len(rows), None

    def choose(j, spent):
        nonlocal best
        if best is not None and spent + ahead[j] >= best:
            return
        if any(
            total + row.most[j] < row.lower or total + row.least[j] > row.upper
            for total, row in zip(sums, rows, strict=True)
        ):
            return
        if j == count:
            best = spent
            return
        values = range(low[j], high[j] + 1)
        for value in values if costs[j] >= 0 else reversed(values):
            for at, row in enumerate(rows):
                sums[at] += row.entries[j] * value
            choose(j + 1, spent + costs[j] * value)
            for at, row in enumerate(rows):
                sums[at] -= row.entries[j] * value

    choose(0, 0)
    return None if best is None else sign * Fraction(best, scale) + Fraction(model.offset)


class _Row:
    """A row in whole numbers, and what its columns from each on can add at least and at most."""

    def __init__(self, model, at, low, high):
        entries = model.matrix[[at]].toarray()[0].tolist()
        sides = [float(model.row_lower[at]), float(model.row_upper[at])]
        finite = [Fraction(side) for side in sides if math.isfinite(side)]
        numbers, scale = _whole([*map(Fraction, entries), *finite])
        self.entries = numbers[: len(entries)]
        self.lower, self.upper = (
            int(Fraction(side) * scale) if math.isfinite(side) else side for side in sides
        )
        self.least, self.most = [0], [0]
        for entry, lower, upper in reversed(list(zip(self.entries, low, high, strict=True))):
            self.least.append(self.least[-1] + min(entry * lower, entry * upper))
            self.most.append(self.most[-1] + max(entry * lower, entry * upper))
        self.least.reverse()
        self.most.reverse()


def _whole(numbers):
    """Return fractions as whole numbers over their least common denominator, and that."""
    scale = math.lcm(*(number.denominator for number in numbers), 1)
    return [int(number * scale) for number in numbers], scale


def point_cost(model, point):
    """Return the exact objective at a point of whole numbers."""
    terms = zip(model.cost.tolist(), point, strict=True)
    return sum((Fraction(cost) * value for cost, value in terms), Fraction(model.offset))


def point_fits(model, point):
    """Return whether a point of whole numbers keeps every row and every bound exactly."""
    sides = zip(model.col_lower.tolist(), model.col_upper.tolist(), point, strict=True)
    if not all(lower <= value <= upper for lower, upper, value in sides):
        return False
    for at in range(len(model.row_lower)):
        entries = model.matrix[[at]].toarray()[0].tolist()
        total = sum(Fraction(entry) * value for entry, value in zip(entries, point, strict=True))
        if not model.row_lower[at] <= total <= model.row_upper[at]:
            return False
    return True
