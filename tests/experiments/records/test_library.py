"""The library: what it says of each instance is verified, and only what is better is taken."""

import importlib
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import optsched
from optsched import Certificate, Schedule, solve
from optsched.certificates.on_clock import ClockCertificate
from optsched.errors import CertificateError, InstanceError, OptschedError, ScheduleError
from optsched.experiments.records import TRACES, Record, unpack
from optsched.search.exact.states import solve_by_states

ROOT = Path(__file__).parents[3]
RECORDS = optsched.library()
SMALL = 150  # requests up to which a record is verified by `make test`
MEGABYTES = 5
BOUNDED = 200  # prices of a step in the drawn certificates


@pytest.fixture(scope="module")
def maker():
    """The script that looks for better records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("library")


def verified(record, instance):
    """Verify all that is said of an instance."""
    assert (instance.fingerprint, len(instance)) == (record.fingerprint, record.requests)
    found = record.cost(record.schedule(instance), instance)
    # Sums of seconds differ in their last digits from processor to processor.
    rounding = 0 if record.clock is None else 1e-12
    assert found == pytest.approx(record.objective, rel=rounding, abs=0)
    assert record.bound <= record.objective
    proves = record.proven(record.certificate, instance)
    if record.bound_by.method.startswith("two solvers: "):
        assert proves <= record.bound == record.objective
    else:
        assert proves == record.bound


@pytest.mark.slow
def test_small_instances_are_what_is_said_of_them():
    small = [each for each in RECORDS.values() if each.requests <= SMALL]
    assert len(small) > 20
    for record in small:
        verified(record, record.instance())


@pytest.mark.long
@pytest.mark.no_cover
@pytest.mark.parametrize("name", [each.name for each in RECORDS.values() if each.requests > SMALL])
def test_large_instances_are_what_is_said_of_them(name, maker, request):
    record, data = RECORDS[name], None
    if record.trace in TRACES:
        data = request.getfixturevalue("shared_data")
    verified(record, maker.instance_of(record, data))


@pytest.mark.long
@pytest.mark.no_cover
@pytest.mark.parametrize(
    "name", [each.name for each in RECORDS.values() if "two solvers" in each.bound_by.method]
)
def test_optima_without_a_certificate_are_proven_again(name):
    record = RECORDS[name]
    instance = record.instance()
    if "running sets" in record.bound_by.method:  # far from its schedule memory would not do
        closed = solve_by_states(instance, record.schedule(instance), None, memory_limit=2**33)
        assert closed.lower == record.objective
        return
    found = solve(instance, workers=record.memories, method="cp-sat", time_limit=300)
    assert (found.status, found.objective) == ("optimal", record.objective)


def test_the_library_spans_the_worlds_and_stays_small():
    every = RECORDS.values()
    assert 75 <= len(every) <= 100
    assert min(each.requests for each in every) == 8
    assert max(each.requests for each in every) == 100_000
    worlds = {(e.clock is None, e.workers == "1", "load" in e.name) for e in every}
    assert worlds == set(itertools.product((False, True), repeat=3))
    files = list((ROOT / "optsched" / "experiments" / "records" / "arrays").iterdir())
    assert {file.name for file in files} == {f"{name}.npz" for name in RECORDS}
    assert sum(file.stat().st_size for file in files) < MEGABYTES * 1e6


@examples(200)
@given(
    st.lists(st.integers(-(2**60), 2**60), max_size=20),
    st.lists(st.integers(0, BOUNDED), max_size=40),
)
def test_what_is_packed_is_unpacked(maker, numbers, prices):
    proof = Certificate(7, tuple(prices), "f" * 64)
    given_numbers = {"waits": np.array(numbers, dtype=np.int64)}
    found, read = unpack(maker.pack(given_numbers, proof))
    assert list(found) == ["waits"]
    assert (found["waits"].tolist(), read) == (numbers, proof)


def test_nested_lists_of_a_certificate_are_packed(maker):
    coefficients, prices = (0.5, 0.1, 0.0, 0.25, 0.0, 0.0), ((4, 1, 2**59), (), (7,))
    proof = ClockCertificate(
        *(coefficients, 0.3, "f" * 64),
        **{"prices": prices, "begins": (3, 0, 2), "memory_prices": (1, 2, 3, 4), "width": 0.7},
    )
    assert unpack(maker.pack({}, proof)) == ({}, proof)


# Claims of others.


RECORD = RECORDS["exponential-50"]
SHORT = next(each for each in RECORDS.values() if each.criterion == "makespan" and each.gap > 0)
CLOCKED = next(each for each in RECORDS.values() if each.clock and each.requests <= SMALL)


def worse(record):
    """Pretend that less is known than there is."""
    return replace(record, objective=record.objective * 1.5, bound=record.bound / 2)


@pytest.fixture
def less_is_known(monkeypatch):
    """A library that does not know its best schedules and bounds."""
    records = {name: worse(each) for name, each in RECORDS.items()}
    monkeypatch.setattr(optsched, "library", lambda: records)


@pytest.mark.usefixtures("less_is_known")
@pytest.mark.parametrize("record", [RECORD, CLOCKED, SHORT], ids=["steps", "clock", "makespan"])
def test_a_better_claim_is_verified_and_measured(optsched_command, optsched_json, tmp_path, record):
    instance = record.instance()
    record.schedule(instance).to_json(tmp_path / "schedule.json")
    record.certificate.to_json(tmp_path / "proof.json")
    for file, gain in (("schedule.json", 1 / 3), ("proof.json", 1.0)):
        found = optsched_json("library", record.name, "--submit", tmp_path / file)
        assert found["better"] is True
        assert found["gain"] == pytest.approx(gain)
        _, said, _ = optsched_command("library", record.name, "--submit", tmp_path / file)
        assert f"is verified, and {gain:.2%} better than" in said


@pytest.mark.parametrize("record", [RECORD, CLOCKED, SHORT], ids=["steps", "clock", "makespan"])
def test_what_is_known_is_no_better(optsched_command, tmp_path, record):
    files = {name: tmp_path / f"{name}.json" for name in ("schedule", "certificate")}
    options = [word for name, file in files.items() for word in (f"--{name}", file)]
    assert optsched_command("library", record.name, *options)[0] == 0
    for file in files.values():
        code, out, _ = optsched_command("library", record.name, "--submit", file)
        assert (code, "no better than" in out) == (1, True)


def test_a_false_claim_is_refused(optsched_command, tmp_path):
    instance, file = RECORD.instance(), tmp_path / "claim.json"

    def submitted(claim):
        claim.to_json(file)
        code, out, err = optsched_command("library", RECORD.name, "--submit", file)
        assert not out
        return code, err

    code, said = submitted(Schedule(instance, [0] * len(instance)))
    assert (code, "infeasible: steps 1" in said) == (1, True)
    other = RECORDS["exponential-100"]
    code, said = submitted(other.certificate)
    assert (code, "belongs to another instance" in said) == (2, True)
    code, said = submitted(CLOCKED.certificate)
    assert code == 2
    dear = replace(RECORD.certificate, prices=tuple(9 * p for p in RECORD.certificate.prices))
    dear.to_json(file)
    assert optsched_command("library", RECORD.name, "--submit", file)[0] == 1
    with pytest.raises(ScheduleError, match="of other requests or workers than exponential-50"):
        RECORD.cost(
            Schedule(instance, [0] * len(instance), workers=2, placement=[0] * 50), instance
        )


def test_a_proof_of_another_world_proves_nothing_here():
    instance = CLOCKED.instance()
    slower = tuple(2 * each for each in CLOCKED.certificate.clock)
    for changes in ({"clock": slower}, {"workers": 2}, {"objective": "weighted-latency"}):
        proof = replace(CLOCKED.certificate, **changes)
        with pytest.raises(CertificateError, match=f"proves nothing of {CLOCKED.name}"):
            CLOCKED.proven(proof, instance)


def test_the_list_has_the_keys_of_the_manual(optsched_command, optsched_json):
    rows = optsched_json("library")
    assert len(rows) == len(RECORDS)
    keys = {"name", "requests", "workers", "clock", "objective", "bound", "gap", "method"}
    for row in rows:
        assert keys <= set(row)
        assert row["gap"] == pytest.approx(1 - row["bound"] / row["objective"])
    shown = optsched_command("library")[1].splitlines()
    assert len(shown) == len(rows)
    for row, line in zip(rows, shown, strict=True):
        assert (" optimal " in line) == (row["gap"] == 0)


def test_a_proof_of_latency_says_nothing_of_the_makespan():
    instance = SHORT.instance()
    (twin,) = [e for e in RECORDS.values() if f"{e.name}-makespan" == SHORT.name]
    assert SHORT.cost(twin.schedule(twin.instance()), instance) >= SHORT.objective
    with pytest.raises(CertificateError, match="not on the makespan"):
        SHORT.proven(optsched.bound(instance, "lagrangian").certificate, instance)


@pytest.mark.slow
def test_a_stranger_solves_and_submits(optsched_command, tmp_path):
    """Only the commands of the manual, on an instance of which less would be known."""
    csv, mine = tmp_path / "x.csv", tmp_path / "mine.json"
    for record in (RECORD, SHORT):
        optsched_command("library", record.name, "--csv", csv)
        options = ["--objective", record.criterion, "--time-limit", "3", "--json", mine]
        assert optsched_command("solve", csv, "--memory", record.memory, *options)[0] in (0, 1)
        code, out, _ = optsched_command("library", record.name, "--submit", mine, "--json", "-")
        found = json.loads(out)
        assert found["objective"] == json.loads(mine.read_text())["objective"] >= record.bound
        assert (code == 0) == found["better"] == (found["objective"] < record.objective)


def test_what_is_written_is_read_back(optsched_command, tmp_path):
    record = next(each for each in RECORDS.values() if each.clock and "rate" in each.trace)
    optsched_command("library", record.name, "--csv", tmp_path / "trace.csv")
    again = optsched.read_trace(
        tmp_path / "trace.csv", record.memory, seconds_per_step=record.seconds_per_step
    )
    assert again.fingerprint == record.fingerprint


def test_wrong_questions_get_one_sentence(optsched_command, tmp_path):
    traced = next(each for each in RECORDS.values() if each.trace in TRACES)
    for words, sentence in (
        (["uniform-9"], "the library has no 'uniform-9'; did you mean 'uniform-8'?"),
        (["--csv", tmp_path / "x.csv"], "counts only with NAME; pass one, or leave --csv out"),
        ([traced.name, "--csv", tmp_path / "x.csv"], "pass its file (--trace FILE): Azure"),
        (["uniform-8", "--trace", "x.csv", "--csv", tmp_path / "x.csv"], "leave the trace out"),
    ):
        code, _, err = optsched_command("library", *words)
        assert (code, sentence in err, err.count("\n")) == (2, True, 1), err


def test_a_mistyped_name_gets_one_sentence_in_python_too():
    with pytest.raises(OptschedError, match="no 'uniform-9'; did you mean 'uniform-8'"):
        optsched.library()["uniform-9"]


@pytest.mark.slow
def test_other_rows_than_those_of_the_trace_are_refused(tmp_path):
    traced = next(each for each in RECORDS.values() if each.trace in TRACES)
    path = tmp_path / "trace.csv"
    path.write_text("prompt_tokens,output_tokens,arrival_s\n" + "9,9,1\n" * traced.requests)
    with pytest.raises(InstanceError, match=f"does not give the requests of {traced.name}"):
        traced.instance(path)


# Who makes the records.


def test_improving_is_stopped_and_goes_on(maker, monkeypatch, tmp_path):
    names, seen = ["uniform-12", "uniform-10", "uniform-8"], []
    known = {name: RECORDS[name] for name in names}
    known["uniform-12"] = worse(known["uniform-12"])
    monkeypatch.setattr(maker, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(maker, "library", lambda: known)

    def improved(record, *_):
        seen.append(record.name)
        if seen == ["uniform-12", "uniform-8"]:
            raise KeyboardInterrupt

    monkeypatch.setattr(maker, "improved", improved)
    for _ in range(2):
        CliRunner().invoke(maker.improve, ["--work", "1"])
    # First what lacks a proof; what was stopped is tried again.
    assert seen == ["uniform-12", "uniform-8", "uniform-8", "uniform-10"]
    assert not maker.STATE.exists()  # all are done


def test_a_record_is_kept_only_where_it_is_better(maker, monkeypatch):
    kept = []
    monkeypatch.setattr(maker, "save", lambda record, *_: kept.append(record))
    instance = RECORD.instance()
    known = worse(RECORD)
    best, proof = RECORD.schedule(instance), RECORD.certificate
    late = Schedule(instance, best.starts + 1)
    tried = [("late", late, None, -math.inf), ("best", best, proof, -math.inf)]
    monkeypatch.setattr(maker, "ways", lambda *_: iter([*tried, tried[0]]))
    found = maker.improved(known, instance, 1.0, 0)
    assert (found.objective, found.schedule_by.method) == (RECORD.objective, "best")
    assert [each.objective for each in kept][-1] == RECORD.objective


def test_all_instances_that_are_compared_have_a_gap_to_compare_with(maker):
    known = json.loads(maker.AT_WORK.read_text(encoding="utf-8"))
    names = [each.name for each in RECORDS.values() if maker.is_compared(each)]
    assert set(known["gaps"]) == set(names)
    (default,) = (each.default for each in maker.compare.params if each.name == "work")
    assert known["work"] == default


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (0.9, 0), (1.05, 1)])
def test_the_median_gap_is_compared_at_equal_work(maker, capsys, factor, code):
    known = {"work": 1.0, "version": "0", "gaps": {"a": 0.01, "b": 0.02, "c": 0.5, "d": 0.7}}
    gaps = {name: factor * gap for name, gap in known["gaps"].items() if name != "d"}
    assert maker.verdict(gaps, known, 1.0) == code
    assert "median gap of 3 instances" in capsys.readouterr().out
    assert maker.verdict(gaps, known, 2.0) == 2


def test_a_record_without_a_schedule_has_no_gap():
    assert Record("x", "family:uniform,n=1", 100, 1, "").gap == 1
