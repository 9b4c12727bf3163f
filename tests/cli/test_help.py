"""Help: every command stands in a section, every option has words, every example runs."""

import re
import shlex
from pathlib import Path

import click
import pytest
from all_commands import COMMANDS

from optsched.cli import cli

SWEEP = """name = "small"
seeds = 1

[[instances]]
family = "uniform"
n = 10

[[policies]]
name = ["mc-sf", "area"]
"""


def _examples(command):
    lines = (command.epilog or "").splitlines()
    return [line.strip() for line in lines if line.startswith("  optsched ")]


EXAMPLES = {name: _examples(command) for name, command in {"": cli, **COMMANDS}.items()}


@pytest.fixture
def _files(tmp_path, monkeypatch):
    """A folder with the files that examples name."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{20 + 3 * request},{5 + 2 * request},{request / 10}" for request in range(12)]
    Path("trace.csv").write_text("\n".join(["prompt_tokens,output_tokens,arrival_s", *rows]))
    Path("sweep.toml").write_text(SWEEP, encoding="utf-8")


@pytest.mark.slow("capacity", "regret", "solve")
@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "doctor"])
def test_examples_run(optsched_command, name):
    assert EXAMPLES[name]
    # New processes would take half a minute to start.
    jobs = ["--jobs", 1] if name in ("regret", "sweep", "reproduce") else []
    for line in EXAMPLES[name]:
        words = shlex.split(re.sub(r"--time-limit \d+", "--time-limit 1", line))
        code, _, err = optsched_command(*words[1:], *([] if "--list" in line else jobs))
        assert code == 0, (line, err)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_says_what_it_does(name):
    command = COMMANDS[name]
    assert len(command.get_short_help_str(100)) <= 57  # one line of a terminal of 80 columns
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            assert option.help.endswith("."), option.name
            shown = isinstance(option.type, click.Path | click.Choice)
            assert option.is_flag or option.metavar or shown


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_options_of_a_command_come_first(optsched_command, name):
    code, out, _ = optsched_command(name, "--help")
    assert code == 0
    sections = [line for line in out.splitlines() if line and line[0] != " " and line[-1] == ":"]
    assert sections[0] == "Options:"
    assert sections[-2:] == ["Results:", "Examples:"]
    assert out.index("--help") < out.index("Results:") < out.index("--json")
    unseeded = ("policies", "families", "clock", "library", "doctor", "competitive-ratio")
    seeded = name not in unseeded
    assert ("--seed" in out[: out.index("--help")]) == seeded


def test_errors_name_options_in_place_of_arguments(optsched_command):
    _, _, err = optsched_command("solve", "family:uniform,n=5", "--time-limit", -1)
    assert err.startswith("optsched: --time-limit is -1.0, but must be a positive number")
    _, _, err = optsched_command("compare", "family:uniform,m=5")
    assert "seconds_per_step" in err  # a parameter of families


def test_a_wrong_command_line_says_where_its_help_is(refused):
    err = refused("sweep")
    assert err == "optsched: Missing argument 'CONFIG'; see optsched sweep --help\n"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("bound x --model m", "--llm"),
        ("rolling x --model m", "--llm or --planner"),
        ("solve x --horizon 9", "--last-step"),
        ("export x --horizon 9", "--last-step"),
        ("throughput x --out y.lp", "--export"),
        ("regret x --out y", "--keep-instances"),
    ],
)
def test_an_old_name_of_an_option_leads_to_the_new_one(refused, line, names):
    err = refused(*line.split())
    assert "No such option" in err
    assert f"; it is now {names}; see optsched {line.split()[0]} --help" in err


@pytest.mark.parametrize("line", ["check family:uniform,n=5", "thresholds"])
def test_a_missing_file_is_named(refused, tmp_path, line):
    missing = tmp_path / "none.toml"
    err = refused(*line.split(), missing)
    assert err == f"optsched: there is no {missing}; check its name\n"


@pytest.mark.parametrize(
    ("first", "gap", "sentence"),
    [
        (5e7, 1.0, "the first request arrives at step 1,000,000,000; where these are times of"),
        (1.7e9, 1.0, "optsched: arrivals since 1970 count from the first\n"),
        (0.0, 1000.0, "hardly any requests meet; arrival counts steps, arrival_s seconds"),
        (0.0, 0.1, None),
    ],
)
def test_arrivals_in_a_doubtful_unit_are_noted(optsched_command, tmp_path, first, gap, sentence):
    rows = [f"20,5,{first + number * gap}" for number in range(9)]
    trace = tmp_path / "trace.csv"
    trace.write_text("prompt_tokens,output_tokens,arrival_s\n" + "\n".join(rows))
    code, _, err = optsched_command("bound", trace, "--memory", 100)
    assert code == 0
    assert err.count("\n") == 1 + (sentence is not None)
    assert sentence is None or sentence in err


def test_the_load_of_a_cluster_without_a_limit_is_not_noted(optsched_command, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("prompt_tokens,output_tokens,arrival_s\n20,5,0\n20,5,1\n")
    code, _, err = optsched_command("cluster", trace, "--workers", 1, "--slots", 9)
    assert (code, err) == (0, "")
