"""Certificates, verified from the formulas in fractions; and mutated ones, that must not lie."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction

import numpy as np

from campaign.case import Outcome, one_sentence, within
from campaign.enumeration import optima
from campaign.models import draw
from optsched import Certificate, bound, read_certificate, run, solve, verify
from optsched.certificates.configurations import items
from optsched.errors import CertificateError
from optsched.solvers.bounds.ascent import improve_prices
from optsched.solvers.bounds.configurations import configuration_bound

TITLE = "certificates"
SECONDS = 120
MUTATIONS = 12


def case(seed, folder):
    """Make every certificate there is of one instance, verify it thrice, then mutate it."""
    rng = np.random.default_rng(seed)
    instance = draw(rng, most=4)
    outcome = Outcome()
    try:
        with within(SECONDS):
            _case(rng, instance, outcome)
    except Exception as error:
        outcome.check(False, f"{type(error).__name__}: {error};", instance.to_json())
    return outcome


def _case(rng, instance, outcome):
    best = optima(instance)
    least = Fraction(int(best["total-latency"]))
    weighted = Fraction(float(best["weighted-latency"]))
    prices = bound(instance, "lagrangian")
    made = [
        prices.certificate,
        improve_prices(run(instance, "area").schedule, prices.certificate, work=1e5).certificate,
        configuration_bound(instance, phases=2, iterations=16).certificate,
        bound(instance, objective="weighted-latency").certificate,
    ]
    if rng.random() < 0.1:
        made.append(solve(instance, time_limit=1).certificate)
    for certificate in made:
        if certificate is None:
            continue
        outcome.inputs += 1
        outcome.note("verified")
        limit = weighted if getattr(certificate, "objective", "") == "weighted-latency" else least
        shown = (certificate, instance.to_json())
        proven = verify(certificate, instance)
        outcome.check(proven == certificate.value, "claims", certificate.value, proven, *shown)
        check_formula(certificate, instance, proven, limit, outcome)
        outcome.check(proven <= limit, "proves", proven, "above", limit, *shown)
        again = read_certificate(certificate.to_json())
        outcome.check(again == certificate, "JSON changes it:", *shown)
        for _ in range(MUTATIONS):
            mutate(certificate, instance, limit, rng, outcome)


def mutate(certificate, instance, limit, rng, outcome):
    """Change a number: what is left must be refused, or prove no more than is true."""
    outcome.inputs += 1
    content = json.loads(certificate.to_json())
    kind = int(rng.integers(5))
    if kind == 0:  # of another instance
        content["fingerprint"] = "0" + content["fingerprint"][1:]
    else:
        keys = [key for key in content if key not in ("format", "fingerprint", "objective")]
        key = keys[int(rng.integers(len(keys)))]
        content[key] = changed(content[key], rng)
    try:
        mutant = read_certificate(json.dumps(content))
        proven = verify(mutant, instance)
    except CertificateError as error:
        outcome.note("mutants refused")
        outcome.check(one_sentence(error), "message", error)
        return
    outcome.note("mutants that prove no more than is true")
    if kind == 0 and certificate.fingerprint[0] != "0":
        outcome.check(False, "accepted for another instance:", content)
    outcome.check(proven <= limit, "a mutant proves", proven, "above", limit, content)
    check_formula(mutant, instance, proven, limit, outcome)


def check_formula(certificate, instance, proven, limit, outcome):
    """Compare with the formula; that of sizes may let a request be in two states at once."""
    formula = literal(certificate, instance)
    good = proven == formula if isinstance(certificate, Certificate) else proven <= formula <= limit
    outcome.check(good, "formula", proven, formula, limit, certificate, instance.to_json())


def changed(value, rng):
    """Change a number in nested lists, or the lists."""
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


def literal(certificate, instance):
    """What a certificate proves, from its formula, in fractions, one number after the other."""
    if isinstance(certificate, Certificate):
        return _literal_prices(certificate, instance)
    return _literal_sizes(certificate, instance)


def _requests(instance):
    return zip(
        instance.prompts.tolist(),
        instance.outputs.tolist(),
        instance.arrivals.tolist(),
        instance.weights.tolist(),
        strict=True,
    )


def _literal_prices(certificate, instance):
    d = certificate.denominator
    price = dict(enumerate(certificate.prices, 1))
    total = Fraction(0)
    for prompt, output, arrival, weight in _requests(instance):
        step = Fraction(1)
        if certificate.objective == "weighted-latency":
            step = Fraction(int(Fraction(weight) * d), d)  # rounded down to what prices count in
        total += min(
            step * (k + output - arrival)
            + sum((prompt + u) * Fraction(price.get(k + u, 0), d) for u in range(1, output + 1))
            for k in range(arrival, max(arrival, len(price)) + 1)
        )
    return total - instance.memory * Fraction(sum(certificate.prices), d)


def _literal_sizes(certificate, instance):
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
        total -= Fraction(most * sum(certificate.prices[begin:end]), unit)
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
