"""What the command line says of likely outputs: a history, or a column and its error."""

import json

import pytest

import optsched
from optsched import Beliefs

KNOWN = ("--intervals", "common:1,90", "--policy", "area-chance", "--json", "-")


@pytest.fixture
def trace(tmp_path):
    requests = optsched.family("uniform", n=60, seed=3, memory=200)
    path = tmp_path / "trace.csv"
    requests.replace(output_estimates=requests.outputs + 2).to_csv(path)
    return path


def test_a_column_of_estimates_and_its_error_say_what_is_likely(optsched_command, trace):
    def mean(*arguments):
        code, out, _ = optsched_command("simulate", trace, "--memory", 200, *KNOWN, *arguments)
        assert code == 0
        return json.loads(out)["mean_latency"]

    requests = optsched.read_trace(trace, 200)
    beliefs = Beliefs.around(requests.outputs + 2, 0.3, 200 - int(requests.prompts.min()))
    known = {"intervals": "common:1,90"}
    assert mean("--log-error", 0.3) == pytest.approx(
        optsched.run(requests, "area-chance", beliefs=beliefs, **known).mean_latency
    )
    assert mean("--history", trace) == pytest.approx(
        optsched.run(requests, "area-chance", beliefs=requests, **known).mean_latency
    )
    assert mean("--log-error", 0.3) < mean()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--log-error", 0.3, "--history", "t.csv"), "counts only without --log-error"),
        (("--log-error", 0), "--log-error is 0.0, but must be above 0"),
        (("--log-error", "nan"), "--log-error is nan, but must be above 0"),
    ],
)
def test_bad_beliefs_get_one_sentence(refused, trace, arguments, message):
    assert message in refused("simulate", trace, "--memory", 200, *KNOWN, *arguments)


def test_an_error_without_a_column_is_refused(refused):
    err = refused("compare", "family:uniform,n=9", "--intervals", "common:1,90", "--log-error", 0.3)
    assert "the column output_estimate, which TRACE does not have" in err


def test_a_history_is_read_by_the_columns_of_the_trace(optsched_command, tmp_path):
    """The log of one engine, of yesterday and of today."""
    rows = "\n".join(f"{3 + i % 5},{1 + i % 7},{i}" for i in range(40))
    for name in ("yesterday", "today"):
        (tmp_path / f"{name}.csv").write_text(f"in,out,at\n{rows}\n", encoding="utf-8")
    code, out, err = optsched_command(
        "simulate", tmp_path / "today.csv", "--history", tmp_path / "yesterday.csv",
        "--columns", "prompt=in,output=out,arrival=at", "--time-unit", "steps",
        "--memory", 100, *KNOWN,
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["requests"] == 40
