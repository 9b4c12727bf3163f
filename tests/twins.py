"""The literal twin of a run of any policy in any world, and whether the run equals it.

`twin_of` takes what `optsched.run` takes, for one worker or several that run each on its own. It
knows every policy by name but the rolling horizon; of functions it knows orders.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import assume
from literal_attempts import TieError, work
from strategies import drawn_run
from twins_alone import Twin, World, alone, arrivals_of, has_twin, unequal, vllm_outcome

from optsched import Instance, OptschedError, run
from optsched.clock import UNIT, get_clock
from optsched.policies import get_policy, with_rule
from optsched.problem.workers import as_workers, get_router


@dataclass
class Routed:
    """What literal workers did: the worker of each request, and the twin of each worker."""

    placement: list[int]
    twins: list[Twin | None]

    def differs(self, run: Any) -> str:
        """Return what a run did otherwise; nothing if it is the same."""
        if wrong := unequal("placement", run.placement.tolist(), self.placement):
            return wrong
        pairs = zip(run.runs, self.twins, strict=True)
        return "".join(twin.differs(each) for each, twin in pairs if twin is not None)


def twin_of(
    instance: Instance,
    policy: Any,
    *,
    clock: Any = None,
    workers: Any = None,
    router: Any = None,
    intervals: str | None = None,
    beliefs: Any = None,
    rule: str = "prefix",
    seed: int = 0,
    patience: int | None = None,
    until: float = math.inf,
) -> Twin | Routed | None:
    """Return what a literal run does; None where there is no twin, or rounding decides a tie."""
    chosen = with_rule(get_policy(policy), rule)
    if getattr(chosen, "enable_prefix_caching", False):
        return None  # its twin is in literal_prefix
    timed = UNIT if clock is None else get_clock(clock)
    world = World(timed, intervals, beliefs, seed, patience, until, clock is None)
    try:
        if workers is None:
            return alone(instance, chosen, world)
        where = as_workers(workers, instance)
        how = get_router("least-tokens" if router is None else router)
        return _routed(instance, chosen, world, where, how)
    except TieError:
        return None


def compare(seed: int, names: list[str]) -> None:
    """Run a drawn policy and its twin; a case that is refused says nothing."""
    instance, policy, options = drawn_run(np.random.default_rng(seed), names)
    refused = ""
    try:
        found = run(instance, policy, **options)
    except OptschedError as error:
        refused = str(error)
    # None but a-random goes by what is in the instance as a whole.
    assert "instance as a whole" not in refused or policy.name == "a-random"
    assume(not refused)
    twin = twin_of(instance, policy, **options)
    assume(twin is not None)
    assert twin.differs(found) == "", (instance.to_json(), policy, options)


def _routed(
    instance: Instance, policy: Any, world: World, workers: Any, router: Any
) -> Routed | None:
    """Send each request where its router does, given what literal runs of those before show."""
    if not has_twin(policy, world):
        return None
    memories = list(workers.memories)
    placed: list[list[int]] = [[] for _ in memories]

    def twin(worker: int) -> Twin | None:
        if not placed[worker]:
            return None
        own = _own(instance, placed[worker], memories[worker])
        return alone(own, policy, _seeded(world, worker))

    placement: list[int] = []
    stopped = max(arrivals_of(instance, world)) > world.until
    if router.weights and stopped:
        return None  # what is on workers that were stopped, nobody says
    fitting = [np.flatnonzero(row).tolist() for row in workers.allowed(instance)]
    if router.choices is not None and router.choices < len(memories):
        rng = np.random.default_rng(np.random.SeedSequence(world.seed, spawn_key=(2,)))
        drawn = rng.random((len(instance), len(memories))).tolist()
        for i, able in enumerate(fitting):
            fitting[i] = sorted(sorted(able, key=lambda g, i=i: drawn[i][g])[: router.choices])
    scale = [max(memories) / memory for memory in memories]
    if not {"held", "waiting_prompts", "work"} & set(router.weights):
        scale = [1] * len(memories)
    turn = -1
    for i, time in enumerate(arrivals_of(instance, world)):
        if router.weights:
            scores = {}
            for g in fitting[i]:
                load = dict.fromkeys(router.weights, 0)
                if placed[g]:
                    own = _own(instance, placed[g], memories[g])
                    load = _load(own, policy, _seeded(world, g), time)
                scores[g] = scale[g] * sum(w * load[name] for name, w in router.weights.items())
            turn = min(fitting[i], key=lambda g: (scores[g], g))
        elif router.function is not None:
            return None
        else:
            turn = next((g for g in fitting[i] if g > turn), fitting[i][0])
        placement.append(turn)
        placed[turn].append(i)
    return Routed(placement, [twin(g) for g in range(len(memories))])


def _seeded(world: World, worker: int) -> World:
    return replace(world, seed=world.seed + worker)


def _own(instance: Instance, requests: list[int], memory: int) -> Instance:
    return instance.take(np.array(requests, dtype=np.int64)).replace(memory=memory)


def _load(own: Instance, policy: Any, world: World, time: float) -> dict[str, float]:
    """Count what is on a worker when a request arrives."""
    prompts, outputs = own.prompts.tolist(), own.outputs.tolist()
    if policy.needs.kind == "vllm":
        outcome = vllm_outcome(own, policy, world, pause=time)
        assert outcome.engine is not None
        there = [r for r in outcome.requests if r.last is None]
        runs = {r.index: r.computed for r in outcome.engine.running}
        # Also those of a request that was preempted meanwhile: it keeps the token.
        making = [r.index for batch in outcome.in_flight for r, *_, makes in batch.parts if makes]
        made = {r.index: r.made + making.count(r.index) for r in there}
    else:
        found = alone(own, policy, world)
        assert found is not None
        state, done = found.look(time)
        runs = {i: held for i, (held, _) in state.items() if held}
        made = {i: state.get(i, (0, 0))[1] for i in range(len(own)) if i not in done}
    waits = [i for i in made if i not in runs]
    areas = {i: work(prompts[i], outputs[i], own.memory) for i in made}
    taken = {i: work(prompts[i], tokens, own.memory) for i, tokens in made.items()}
    return {
        "waiting": len(waits),
        "running": len(runs),
        "held": sum(runs.values()),
        "waiting_prompts": sum(prompts[i] for i in waits),
        "work": sum(areas[i] - taken[i] for i in made),
    }
