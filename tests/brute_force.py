"""Every schedule and every batch of tiny problems, from the definitions; and SciPy's own solver."""

import itertools
from fractions import Fraction

import numpy as np
from literal import usage_at
from scipy.optimize import Bounds, LinearConstraint, milp

OBJECTIVES = ("total-latency", "weighted-latency", "makespan")


def schedules(instance, horizon, *, now=0, running=(), deadlines=None):
    """Return the starts of every schedule that is feasible and completes by the horizon.

    `running` holds pairs of tokens held and steps to go at `now`.
    """
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    arrivals = instance.arrivals.tolist()
    ends = [horizon] * len(prompts)
    if deadlines is not None:
        ends = [min(horizon, deadline) for deadline in deadlines]
    choices = [
        range(max(arrival, now), end - output + 1)
        for arrival, output, end in zip(arrivals, outputs, ends, strict=True)
    ]
    for starts in itertools.product(*choices):
        if all(
            usage_at(step, starts, prompts, outputs) + held_by_running(step - now, running)
            <= instance.memory
            for step in range(now + 1, horizon + 1)
            if usage_at(step, starts, prompts, outputs)
        ):
            yield starts


def held_by_running(steps, running):
    """Tokens that requests already running hold some steps from now."""
    return sum(tokens + steps for tokens, remaining in running if steps <= remaining)


def cost(starts, instance, objective="total-latency", lateness="forbidden", penalty=0.0):
    """Cost of a schedule, term by term."""
    total = 0.0
    completions = []
    for i, start in enumerate(starts):
        completion = start + int(instance.outputs[i])
        completions.append(completion)
        weight = 1 if instance.weights is None else float(instance.weights[i])
        if objective == "late-requests":
            total += weight * (completion > int(instance.deadlines[i]))
        latency = completion - int(instance.arrivals[i])
        if objective == "total-latency":
            total += latency
        elif objective == "weighted-latency":
            total += latency * weight
        if instance.deadlines is not None and lateness != "forbidden":
            late = max(0, completion - int(instance.deadlines[i]))
            total += penalty * (late if lateness == "per-step" else late > 0)
    return total + max(completions) if objective == "makespan" else total


def feasible_starts(instance):
    """Try all starts within which one request after the other completes; a row for each that fits.

    Deadlines are not looked at.
    """
    horizon = int(instance.arrivals[-1] + instance.outputs.sum())
    steps = np.arange(1, horizon + 1)
    count = len(instance)
    usage = np.zeros((1,) * count + (horizon,), dtype=np.int16)
    rows = zip(instance.prompts, instance.outputs, instance.arrivals, strict=True)
    for i, (prompt, output, arrival) in enumerate(rows):
        axis = [1] * count
        axis[i] = -1
        age = steps - np.arange(arrival, horizon - output + 1)[:, None]
        held = np.where((age >= 1) & (age <= output), prompt + age, 0).astype(np.int16)
        usage = usage + held.reshape([*axis, horizon])
    return np.argwhere(usage.max(axis=-1) <= instance.memory) + instance.arrivals


def optima(instance):
    """Return the optimum of each objective over all schedules; infinite without any."""
    completions = feasible_starts(instance) + instance.outputs
    if instance.deadlines is not None:
        completions = completions[(completions <= instance.deadlines).all(axis=1)]
    latencies = completions - instance.arrivals
    weights = np.ones(len(instance)) if instance.weights is None else instance.weights
    costs = (latencies.sum(axis=1), latencies @ weights, completions.max(axis=1))
    pairs = zip(OBJECTIVES, costs, strict=True)
    return {name: cost.min() if len(cost) else np.inf for name, cost in pairs}


def joint_optima(instance, workers):
    """Return the optimum of each objective on several workers, by the best part of each.

    The optimum of every subset on one worker comes first, then a dynamic program over subsets.
    """
    count = len(instance)
    subsets = 1 << count
    parts = [[i for i in range(count) if subset >> i & 1] for subset in range(subsets)]
    best = {name: [0.0] + [np.inf] * (subsets - 1) for name in OBJECTIVES}
    known = {}
    for worker, memory in enumerate(workers.memories):
        for subset in range(1, subsets):
            part, fits = parts[subset], True
            for i in part:
                fits = fits and instance.peaks[i] <= memory
                fits = fits and (workers.eligible is None or workers.eligible[i, worker])
            if fits and (subset, memory) not in known:
                known[subset, memory] = optima(instance.take(part).replace(memory=memory))
        for name, costs in best.items():
            join = max if name == "makespan" else float.__add__
            fresh = list(costs)
            for subset in range(1, subsets):
                mine = subset
                while mine:  # goes to this worker
                    allowed = workers.eligible is None or all(
                        workers.eligible[i, worker] for i in parts[mine]
                    )
                    if allowed and (mine, memory) in known:
                        found = join(costs[subset ^ mine], float(known[mine, memory][name]))
                        fresh[subset] = min(fresh[subset], found)
                    mine = (mine - 1) & subset
            best[name] = fresh
    return {name: costs[-1] for name, costs in best.items()}


def batches(selection):
    """Return every batch that fits: usage is counted at each step of a common start."""
    prompts, outputs = selection.prompts.tolist(), selection.outputs.tolist()
    for size in range(1, len(prompts) + 1):
        for batch in itertools.combinations(range(len(prompts)), size):
            if selection.fit == "peak":
                fits = sum(prompts[i] + outputs[i] for i in batch) <= selection.memory
            else:
                fits = all(
                    sum(prompts[i] + step for i in batch if outputs[i] >= step) <= selection.memory
                    for step in range(1, max(outputs) + 1)
                )
            if fits:
                yield batch


def ratio(batch, selection):
    """F of a batch."""
    return Fraction(sum(int(selection.outputs[i]) for i in batch), len(batch) ** 2)


def solve(model):
    """Return an optimal point of a linear model by SciPy, or None where there is none."""
    sign = 1 if model.sense == "min" else -1
    rows = LinearConstraint(model.matrix, model.row_lower, model.row_upper)
    result = milp(
        sign * model.cost,
        constraints=rows if len(model.row_lower) else None,
        bounds=Bounds(model.col_lower, model.col_upper),
        integrality=model.integer.astype(np.int64),
        options={"mip_rel_gap": 0},
    )
    assert result.status in (0, 2), result.message
    return result.x


def optimum(model):
    """Return the optimum of a linear model by SciPy, or None where there is none."""
    point = solve(model)
    return None if point is None else model.objective(point)
