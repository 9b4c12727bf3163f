"""Logs of other tools on the command line: one note says what was read as what."""

import json

import pytest

VLLM = {"model": "m", "input_lens": [9, 20], "output_lens": [4, 5], "ttfts": [0.1, 0.2],
        "start_times": [101.5, 100.5]}  # fmt: skip
READ = (
    "optsched: read as vllm bench: input_lens -> prompt_tokens, output_lens -> output_tokens, "
    "start_times (s) -> arrival_s; not read: ttfts; sorted by arrival, as 1 requests stood behind "
    "later ones\n"
)


@pytest.fixture
def log(tmp_path):
    """Write a log and give its path."""

    def write(content, name):
        (tmp_path / name).write_text(content)
        return tmp_path / name

    return write


def test_what_is_read_as_what_is_one_note(optsched_command, log):
    path = log(json.dumps(VLLM), "run.json")
    line = ("simulate", path, "--policy", "fcfs", "--memory", 99, "--json", "-")
    code, out, err = optsched_command(*line)
    assert (code, err) == (0, f"{READ}optsched: arrivals in seconds became steps of 0.05 s\n")
    assert json.loads(out)["requests"] == 2
    assert optsched_command(*line, "--quiet")[2] == ""


def test_own_columns_and_units_are_named(optsched_command, refused, log):
    path = log("in,out,when,who\n9,4,7000,a\n20,5,9000,b\n", "own.csv")
    columns = ("--columns", "prompt=in,output=out,arrival=when,client=who")
    line = ("bound", path, "--memory", 99)
    code, _, err = optsched_command(*line, *columns, "--time-unit", "ms")
    said = "read as optsched CSV: in -> prompt_tokens, out -> output_tokens, who -> client"
    assert (code, err.splitlines()[0]) == (0, f"optsched: {said}, when (ms) -> arrival_s")
    err = refused(*line, *columns)
    assert "the unit of column when, with values such as 7000, is not known; pass --time-u" in err
    for wrong, words in (
        ("prompt=in,output", "--columns leaves out what output is; write output=COLUMN"),
        ("prompt=in,output=aus", "line 1: there is no column 'aus'; "),
        ("tokens=in", "unknown role of a column 'tokens'"),
    ):
        assert words in refused(*line, "--columns", wrong)


def test_a_family_needs_no_columns_and_no_unit(optsched_command):
    line = ("bound", "family:uniform,n=5", "--time-unit", "ms", "--columns", "prompt=a")
    code, _, err = optsched_command(*line)
    assert code == 0
    assert (
        "--columns prompt=a and --time-unit ms count only for a TRACE in a file, and have no" in err
    )
