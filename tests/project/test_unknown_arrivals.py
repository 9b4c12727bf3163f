"""The dynamic programs of the picture of unknown arrivals, beside the exact solver and policies."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from optsched import run, solve

_FILE = Path(__file__).parents[2] / "docs" / "images" / "unknown.py"


@pytest.fixture(scope="module")
def unknown():
    spec = importlib.util.spec_from_file_location("unknown", _FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hindsight_is_the_proven_optimum(unknown):
    rng = np.random.default_rng(4)
    for _ in range(15):
        kinds = unknown.KINDS[rng.integers(len(unknown.KINDS))]
        memory = int(rng.choice(unknown.MEMORIES))
        sequence = unknown.SEQUENCES[rng.integers(1, len(unknown.SEQUENCES))]
        best = solve(unknown.instance_of(sequence, kinds, memory))
        assert best.proven_optimal
        known = unknown.least_latency(kinds, memory, lambda step, s=sequence: ((s[step], 1.0),))
        assert known == best.objective


@pytest.mark.slow
def test_the_online_optimum_lies_between_hindsight_and_policies(unknown, monkeypatch):
    monkeypatch.setattr(unknown, "STEPS", 3)
    sequences = [each for each in unknown.SEQUENCES if set(each[3:]) == {None}]
    for kinds in unknown.KINDS:
        hindsight = expected = 0.0
        for sequence in sequences:
            present = sum(kind is not None for kind in sequence)
            chance = 0.4**present * 0.2 ** (3 - present)
            hindsight += chance * unknown.least_latency(
                kinds, 8, lambda step, s=sequence: ((s[step], 1.0),)
            )
            if present:
                instance = unknown.instance_of(sequence, kinds, 8)
                expected += chance * run(instance, "area").schedule.total_latency
        each = ((None, 0.2), (0, 0.4), (1, 0.4))
        online = unknown.least_latency(kinds, 8, lambda _, each=each: each)
        assert hindsight - 1e-9 <= online <= expected + 1e-9
