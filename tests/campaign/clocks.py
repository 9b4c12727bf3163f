"""Tiny clocked instances: no bound is above the least over all sequences of batches there are."""

import json

import numpy as np
from brute_force_clocked import EXACT, certificate_of, drawn, least_latency, least_latency_of_pool

from campaign.case import HangError, Outcome, one_sentence, within
from campaign.certificates import changed
from optsched import bound, read_certificate, verify
from optsched.bounds.on_clock import price_on_clock
from optsched.errors import CertificateError
from optsched.problem.premises import STORAGES
from optsched.problem.work import arrival_times

SECONDS = 60
SEARCH = 15  # seconds after which the search through all sequences is given up
MUTATIONS = 6
#: What the bound is for; a certificate for something else may prove more.
MEANING = ("format", "clock", "seconds_per_step", "unit", "workers", "objective", "max_num_seqs")
MEANING += ("storage",)


def case(seed, folder):
    """Bound one instance by the machine and by prices, verify both, then mutate certificates."""
    outcome = Outcome()
    try:
        _case(np.random.default_rng(seed), outcome)
    except Exception as error:
        outcome.check(False, f"{type(error).__name__}: {error}; seed", seed)
    return outcome


def _case(rng, outcome):
    instance, clock = drawn(rng, most=int(rng.integers(1, 4)))
    objective = ("total-latency", "weighted-latency")[int(rng.integers(2))]
    weights = instance.weights if objective == "weighted-latency" else np.ones(len(instance))
    workers = 2 if rng.random() < 0.2 else 1
    limit = int(rng.integers(0, 3)) if workers == 1 else 0
    storage = STORAGES[int(rng.integers(2))]
    arrivals = arrival_times(instance, clock).tolist()
    try:
        with within(SEARCH):
            if workers == 1:
                how = {"max_num_seqs": limit or len(instance), "storage": storage}
                best = least_latency(instance, clock, arrivals, weights, **how)
            else:
                best = least_latency_of_pool(instance, clock, arrivals, workers, weights, storage)
    except HangError:
        outcome.note("searches given up")
        return
    fields = {"objective": objective, "workers": workers, "max_num_seqs": limit}
    fields["storage"] = storage
    with within(SECONDS):
        _prove(instance, clock, fields, best, rng, outcome)


def _prove(instance, clock, fields, best, rng, outcome):
    """Make certificates, verify them against the best, and mutate them."""
    limit, workers, objective = fields["max_num_seqs"], fields["workers"], fields["objective"]
    weights = instance.weights if objective == "weighted-latency" else np.ones(len(instance))
    found = bound(
        instance,
        "closed-form",
        objective,
        clock=clock,
        workers=workers,
        max_num_seqs=limit or None,
        storage=fields["storage"],
    )
    part = int(rng.integers(0, 17)) if limit else 0
    given = certificate_of(instance, clock, by_requests=part, **fields)
    outcome.note("instances")
    priced = price_on_clock(instance, clock, given, weights, work=1e6)
    for certificate in (found.certificate, priced):
        outcome.inputs += 1
        shown = (certificate, instance.to_json())
        proven = verify(certificate, instance)
        outcome.check(certificate.value <= proven, "claims", certificate.value, proven, *shown)
        outcome.check(proven <= best + EXACT, "proves", float(proven), "above", best, *shown)
        outcome.check(read_certificate(certificate.to_json()) == certificate, "JSON", *shown)
        for _ in range(MUTATIONS):
            _mutate(certificate, instance, best, rng, outcome)


def _mutate(certificate, instance, best, rng, outcome):
    """Change a number that proves: the mutant is refused, or proves no more than is true."""
    outcome.inputs += 1
    content = json.loads(certificate.to_json())
    keys = [key for key in content if key not in MEANING]
    key = keys[int(rng.integers(len(keys)))]
    content[key] = changed(content[key], rng) if key != "fingerprint" else "0" * 64
    try:
        proven = verify(read_certificate(json.dumps(content)), instance)
    except CertificateError as error:
        outcome.note("mutants refused")
        outcome.check(one_sentence(error), "message", error)
        return
    outcome.note("mutants that prove no more than is true")
    shown = (content, instance.to_json())
    outcome.check(key != "fingerprint", "accepted for another instance:", *shown)
    outcome.check(proven <= best + EXACT, "a mutant proves", float(proven), "above", best, *shown)
