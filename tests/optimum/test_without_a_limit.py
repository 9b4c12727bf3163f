"""`solve` without a time limit, and with weights that CP-SAT cannot represent."""

import itertools
import math
import threading
import time

import numpy as np
import pytest

from optsched import OptschedError, SolveParams, bound, family, solve, verify
from optsched._internal.aside import Budget
from optsched.bounds.ascent import PolyakAscent, improve_prices

WORK = 0.02
NOT_EXACT = ("weighted-latency", "makespan")
METHODS = ("auto", "search", "exact", "highs", "cp-sat")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("rate", [None, 0.5, 2.0])
@pytest.mark.parametrize("n", [7, 200])
def test_no_limit_ends_in_an_interval_whatever_is_asked(n, rate, workers):
    """Infinite work became a whole number in the ascent, from about 200 requests on."""
    for method, objective in itertools.product(
        METHODS, ("total-latency", "weighted-latency", "makespan")
    ):
        if n > 7 and method in ("exact", "highs", "cp-sat"):
            continue  # which may take for ever
        if objective in {"search": ("makespan",), "exact": NOT_EXACT}.get(method, ()):
            continue  # which it does not minimise
        instance = family("uniform", n=n, seed=1, **({} if rate is None else {"rate": rate}))
        instance = instance.replace(weights=1 + np.arange(n) % 3)
        stop = threading.Event()
        timer = threading.Timer(0.15, stop.set)  # for solvers, which are to go on to their proof
        timer.start()
        options = {} if workers is None else {"workers": workers}
        params = SolveParams(work=WORK if method == "search" else None, stop=stop)
        try:
            found = solve(
                instance,
                time_limit=None,
                method=method,
                objective=objective,
                params=params,
                **options,
            )
        finally:
            timer.cancel()
        assert found.schedule is not None
        assert math.isfinite(found.bound)
        assert found.bound <= found.objective


@pytest.mark.slow("160-1.1-1.0-*", "400-*")
@pytest.mark.parametrize("time_limit", [None, 1e6])
@pytest.mark.parametrize(
    ("n", "load", "work", "threads", "workers"),
    [
        (160, 1.1, 0.02, 1, None),
        (160, 1.1, 1.0, 2, None),  # with windows
        (400, None, 0.5, 2, None),
        (90, 1.1, 0.02, 1, None),
        (60, 1.1, 0.02, 2, [16_492, 8_000]),
    ],
)
def test_work_finds_the_same_on_a_slower_machine(
    monkeypatch, time_limit, n, load, work, threads, workers
):
    instance = family("chat-and-summaries", n=n, seed=1, load=load)
    params = SolveParams(work=work, threads=threads, seed=3)

    def searched():
        found = solve(
            instance, time_limit=time_limit, method="search", params=params, workers=workers
        )
        assert found.status in ("optimal", "search ended")
        return found.bound, found.objective, found.schedule.starts.tolist()

    quick, clock = searched(), time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: 1000 * clock())
    assert searched() == quick


@pytest.mark.slow
def test_more_work_finds_more():
    instance = family("chat-and-summaries", n=300, seed=1, load=1.1)

    def cost(work):
        params = SolveParams(work=work)
        return solve(instance, time_limit=None, method="search", params=params).objective

    assert cost(2.0) < cost(0.02)


def test_little_work_raises_prices_little(monkeypatch):
    """With .05 units and 2,000 requests 500 rounds of coarse prices took ten times all else."""
    rounds, step = [], PolyakAscent.step
    monkeypatch.setattr(PolyakAscent, "step", lambda self: rounds.append(1) or step(self))
    instance = family("chat-and-summaries", n=160, seed=1, load=1.1)
    solve(instance, time_limit=None, method="search", params=SolveParams(work=0.0002))
    assert 0 < len(rounds) < 100


@pytest.mark.parametrize("method", [each for each in METHODS if each != "search"])
def test_work_is_refused_where_a_method_goes_by_time(method):
    with pytest.raises(OptschedError, match="goes by time; pass the method search"):
        solve(family("uniform", n=7, seed=1), method=method, params=SolveParams(work=1.0))


@pytest.mark.slow
def test_prices_converge_without_a_limit_on_their_work():
    instance = family("uniform", n=30, seed=1, rate=1.0)
    best = solve(instance, time_limit=0.3, method="search")
    first = bound(instance, "lagrangian").certificate
    found = improve_prices(best.schedule, first, Budget(work=math.inf))
    assert first.value <= found.certificate.value <= best.objective
    assert verify(found.certificate, instance) == found.certificate.value


WEIGHTS = {
    "sevenths": lambda n: (1 + np.arange(n)) / 7,
    "large": lambda n: 1e16 * (1 + np.arange(n)),
    "far apart": lambda n: np.where(np.arange(n) == 0, 1e16, 1.0),
    "tiny": lambda n: 1e-9 * (1 + np.arange(n)),
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_auto_keeps_its_interval_where_cp_sat_cannot_represent_weights(weights, workers):
    options = {} if workers is None else {"workers": workers}
    for n in (7, 12):
        instance = family("uniform", n=n, seed=1).replace(weights=WEIGHTS[weights](n))
        found = solve(instance, time_limit=0.5, objective="weighted-latency", **options)
        assert 0 < found.bound <= found.objective
        scaled = instance.replace(weights=instance.weights / instance.weights.max())
        best = solve(scaled, time_limit=0.5, objective="weighted-latency", **options)
        scale = instance.weights.max()
        assert found.bound / scale <= best.objective * (1 + 1e-9)
        assert best.bound <= found.objective / scale * (1 + 1e-9)


def test_sevenths_are_proven_by_the_other_solver():
    instance = family("uniform", n=5, seed=1).replace(weights=(1 + np.arange(5)) / 7)
    found = solve(instance, objective="weighted-latency")
    assert found.proven_optimal
    whole = solve(instance.replace(weights=1 + np.arange(5)), objective="weighted-latency")
    assert found.objective == pytest.approx(whole.objective / 7)


def test_advice_about_weights_applies():
    instance = family("uniform", n=7, seed=1).replace(weights=1e16 * (1 + np.arange(7)))
    with pytest.raises(OptschedError, match=r"divide the weights by 7e\+16") as refused:
        bound(instance, "lagrangian", "weighted-latency")
    divisor = float(str(refused.value).split("weights by ")[1].split(",")[0])
    scaled = instance.replace(weights=instance.weights / divisor)
    assert bound(scaled, "lagrangian", "weighted-latency").value > 0
    digits = instance.replace(weights=1e16 * (1 + np.arange(7) / 7))
    with pytest.raises(OptschedError, match="divide them by one number and round"):
        solve(digits, objective="weighted-latency", method="cp-sat")
