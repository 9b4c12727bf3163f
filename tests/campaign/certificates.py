"""Certificates, verified from the formulas in fractions; and mutated ones, that must not lie."""

import itertools
import json
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from brute_force import OBJECTIVES, joint_optima
from literal import sawtooth as literal_sawtooth
from strategies import tiny_joint

import optsched
from campaign.case import Outcome, one_sentence, within
from campaign.enumeration import optima
from campaign.models import draw
from optsched import Certificate, Instance, Workers, bound, read_certificate, run, solve, verify
from optsched._internal.aside import Budget
from optsched.bounds.ascent import improve_prices
from optsched.bounds.configurations import configuration_bound
from optsched.certificates import on_clock
from optsched.certificates.prices import ConfigurationCertificate, SawtoothCertificate, items
from optsched.errors import CertificateError

JOINT = "optsched-joint-certificate"

TITLE = "certificates"
SECONDS = 120
MUTATIONS = 12


class Problem(NamedTuple):
    """What a certificate is about: an instance, and workers where there are several."""

    instance: Instance
    workers: Workers | None = None

    @property
    def fingerprints(self):
        """What certificates of this problem may name; one worker is the instance of its memory."""
        if self.workers is None:
            return [self.instance.fingerprint]
        alone = [self.workers.pool(self.instance).fingerprint] if len(self.workers) == 1 else []
        return [*alone, self.workers.fingerprint(self.instance)]

    def least(self, objective):
        """Return the optimum, by trying everything."""
        optimum = optima if self.workers is None else joint_optima
        return Fraction(float(optimum(*filter(None, self))[objective]))

    def __str__(self):
        return f"{self.instance.to_json()} {self.workers}"


def case(seed, folder):
    """Make every certificate there is of one problem, verify it thrice, then mutate it."""
    rng = np.random.default_rng(seed)
    problem = Problem(draw(rng, most=4))
    if rng.random() < 0.3:
        problem = Problem(*tiny_joint(rng, most=3))
    outcome = Outcome()
    try:
        with within(SECONDS):
            _case(rng, problem, outcome)
    except Exception as error:
        outcome.check(False, f"{type(error).__name__}: {error};", problem)
    return outcome


def _case(rng, problem, outcome):
    for certificate in _made(problem, rng):
        if certificate is None:
            continue
        outcome.inputs += 1
        outcome.note(f"verified: {type(certificate).__name__}")
        proven = verify(certificate, *problem)
        outcome.check(proven == certificate.value, "claims", certificate, proven, problem)
        _hold_against_the_truth(certificate, problem, proven, outcome)
        again = read_certificate(certificate.to_json())
        outcome.check(again == certificate, "JSON changes it:", certificate, problem)
        for _ in range(MUTATIONS):
            mutate(certificate, problem, rng, outcome)


def _made(problem, rng):
    """Return certificates of all kinds."""
    instance, workers = problem
    if workers is not None:
        made = [
            bound(instance, method, objective=objective, workers=workers).certificate
            for method in ("lagrangian", "auto", "sawtooth")
            for objective in ("total-latency", "weighted-latency")
        ]
        if workers.equal:  # sizes and prices of one of them
            alone = instance.replace(memory=workers.memories[0])
            found = configuration_bound(alone, phases=2, iterations=16).certificate
            again = found and replace(found, fingerprint=workers.fingerprint(instance))
            made.append(again and replace(again, value=verify(again, *problem)))
        return made
    prices = bound(instance, "lagrangian")
    made = [
        prices.certificate,
        improve_prices(
            run(instance, "area").schedule, prices.certificate, Budget(work=1e5)
        ).certificate,
        configuration_bound(instance, phases=2, iterations=16).certificate,
        bound(instance, objective="weighted-latency").certificate,
        bound(instance, "sawtooth", "weighted-latency").certificate,
        bound(instance, "sawtooth").certificate,
    ]
    if rng.random() < 0.1:
        made.append(solve(instance, time_limit=1).certificate)
    return made


def mutate(certificate, problem, rng, outcome):
    """Change what it says or what it is about: it is refused, or proves no more than is true then.

    What is true is the optimum of the problem and the objective that it states in the end.
    """
    outcome.inputs += 1
    content = json.loads(certificate.to_json())
    ways = [_another_number, _another_objective, _another_problem, _another_kind, _a_stranger]
    for way in rng.choice(ways, int(rng.integers(1, 3)), p=[0.5, 0.15, 0.2, 0.05, 0.1]):
        problem = way(content, problem, rng)
    try:
        mutant = read_certificate(json.dumps(content))
        proven = verify(mutant, *problem)
    except CertificateError as error:
        outcome.note("mutants refused")
        outcome.check(one_sentence(error), "message", error)
        return
    outcome.note("mutants that prove no more than is true")
    mine = mutant.fingerprint in problem.fingerprints
    outcome.check(mine, "accepted for another problem:", content, problem)
    _hold_against_the_truth(mutant, problem, proven, outcome)


def _another_number(content, problem, rng):
    keys = [key for key in content if key not in ("format", "fingerprint", "objective")]
    key = keys[int(rng.integers(len(keys)))]
    content[key] = changed(content[key], rng)
    return problem


def _another_objective(content, problem, rng):
    content["objective"] = [*OBJECTIVES, "ttft", None][int(rng.integers(5))]
    return problem


def _another_kind(content, problem, rng):
    kinds = ConfigurationCertificate, SawtoothCertificate, on_clock.ClockCertificate
    content["format"] = str(rng.choice([*(kind.FORMAT for kind in kinds), JOINT, ""]))
    return problem


def _a_stranger(content, problem, rng):
    digit = content["fingerprint"][0]
    content["fingerprint"] = ("1" if digit == "0" else "0") + content["fingerprint"][1:]
    return problem


def _another_problem(content, problem, rng):
    """State it of a problem that differs a little."""
    instance, workers = problem
    i, step = int(rng.integers(len(instance))), int(rng.choice([-1, 1]))
    rows = np.arange(len(instance))
    fields = {
        name: getattr(instance, name) + step * (rows == i)
        for name in ("prompts", "outputs", "arrivals")
    }
    ways = [{"memory": instance.memory + step}, {"weights": None}]
    ways += [{name: values} for name, values in fields.items()]
    try:
        which = int(rng.integers(len(ways) + 2))
        if which < len(ways):
            instance = instance.replace(**ways[which])
        elif which == len(ways) and len(rows) > 1:
            instance = instance.take(np.delete(rows, i))
            workers = workers and Workers(workers.memories)
        elif workers is None:
            workers = Workers([instance.memory, instance.memory][: int(rng.integers(1, 3))])
        else:
            memories = [*workers.memories, instance.memory][int(rng.integers(2)) :]
            workers = Workers(memories) if rng.random() < 0.7 else None
        if workers is not None:
            workers.allowed(instance)
    except optsched.OptschedError:
        return problem  # there is no such problem
    problem = Problem(instance, workers)
    content["fingerprint"] = str(rng.choice(problem.fingerprints))
    return problem


def _hold_against_the_truth(certificate, problem, proven, outcome):
    limit = problem.least(getattr(certificate, "objective", "total-latency"))
    outcome.check(proven <= limit, "proves", proven, "above", limit, certificate, problem)
    check_formula(certificate, problem, proven, limit, outcome)


def check_formula(certificate, problem, proven, limit, outcome):
    """Compare with the formula; that of sizes may let a request be in two states at once."""
    formula = literal(certificate, problem)
    exact = not isinstance(certificate, ConfigurationCertificate)
    good = proven == formula if exact else proven <= formula <= limit
    outcome.check(good, "formula", proven, formula, limit, certificate, problem)


def changed(value, rng):
    """Change a number in nested lists, or the lists."""
    if value is None or isinstance(value, str):  # it was changed before
        return 0
    if not isinstance(value, list):
        return [value + 1, value * 2, value + 2**70, -value, 0, 1, 2.5, "1", None, True][
            int(rng.integers(10))
        ]
    if not value or rng.random() < 0.1:
        return value + [[], 0, 1][int(rng.integers(3)) :][:1]
    at = int(rng.integers(len(value)))
    if rng.random() < 0.1:
        return value[:at] + value[at + 1 :]
    return [*value[:at], changed(value[at], rng), *value[at + 1 :]]


def literal(certificate, problem):
    """What a certificate proves, from its formula, in fractions, one number after the other."""
    instance, workers = problem
    if isinstance(certificate, Certificate) and not certificate.pools:
        every = [dict(enumerate(certificate.prices, 1))] * len(instance)
        sold = instance.memory * sum(certificate.prices)
        return _literal_prices(certificate, instance, every, sold)
    if isinstance(certificate, Certificate):
        pools = list(zip(certificate.pools, certificate.rows, strict=True))
        every = []
        for places in workers.allowed(instance):
            holds = [row for inside, row in pools if set(np.flatnonzero(places)) <= set(inside)]
            every.append({t: sum(column) for t, column in enumerate(zip(*holds, strict=True), 1)})
        sold = sum(sum(workers.memories[g] for g in inside) * sum(row) for inside, row in pools)
        return _literal_prices(certificate, instance, every, sold)
    if isinstance(certificate, SawtoothCertificate):
        return literal_sawtooth(certificate, instance, workers)
    count = 1
    if workers is not None:
        count, instance = len(workers), instance.replace(memory=workers.memories[0])
    return _literal_sizes(certificate, instance, count)


def _requests(instance):
    return zip(
        instance.prompts.tolist(),
        instance.outputs.tolist(),
        instance.arrivals.tolist(),
        [1.0] * len(instance) if instance.weights is None else instance.weights.tolist(),
        strict=True,
    )


def _literal_prices(certificate, instance, every, sold):
    """The formula, with prices by step for each request, and what all memory is sold for."""
    d = certificate.denominator
    total = Fraction(-sold, d)
    for (prompt, output, arrival, weight), price in zip(_requests(instance), every, strict=True):
        step = Fraction(1)
        if certificate.objective == "weighted-latency":
            step = Fraction(int(Fraction(weight) * d), d)  # rounded down to what prices count in
        total += min(
            step * (k + output - arrival)
            + sum((prompt + u) * Fraction(price.get(k + u, 0), d) for u in range(1, output + 1))
            for k in range(arrival, max(arrival, len(price)) + 1)
        )
    return total


def _literal_sizes(certificate, instance, count):
    pairs = [tuple(pair) for pair in items(instance).tolist()]
    begins = (0, *certificate.ends)
    phase_of = {
        step: phase
        for phase, (begin, end) in enumerate(itertools.pairwise(begins))
        for step in range(begin + 1, end + 1)
    }

    def cost(step, pair):
        if step not in phase_of:
            return Fraction(0)
        size = certificate.sizes[phase_of[step]][pairs.index(pair)]
        unit = certificate.price_denominator * certificate.size_denominator
        return Fraction(certificate.prices[step - 1] * size, unit)

    total = Fraction(0)
    for prompt, output, arrival, _ in _requests(instance):
        total += min(
            (k + output - arrival)
            + sum(cost(k + u, (prompt + u, output - u)) for u in range(1, output + 1))
            for k in range(arrival, max(arrival, len(certificate.prices)) + 1)
        )
    for phase, (begin, end) in enumerate(itertools.pairwise(begins)):
        most = _largest(instance, pairs, certificate.sizes[phase], end)
        unit = certificate.price_denominator * certificate.size_denominator
        total -= Fraction(count * most * sum(certificate.prices[begin:end]), unit)
    return total


def _largest(instance, pairs, sizes, end):
    """Return the most that requests can count for which run together by the end of a phase."""
    choices = []
    for prompt, output, arrival, _ in _requests(instance):
        able = [(0, 0, 0)]
        for u in range(1, output + 1):
            if arrival + u <= end:
                held, left = prompt + u, output - u
                able.append((held, left, sizes[pairs.index((held, left))]))
        choices.append(able)
    best = 0
    for chosen in itertools.product(*choices):
        if sum(held for held, _, _ in chosen) <= instance.memory:
            # What runs together must still fit when the longest of the shortest steps left is over.
            running = [(held, left) for held, left, _ in chosen if held]
            if all(
                sum(held + later for held, left in running if left >= later) <= instance.memory
                for later in range(1, max((left for _, left in running), default=0) + 1)
            ):
                best = max(best, sum(size for _, _, size in chosen))
    return best
