"""No option is ignored without a word: it is refused, and following the hint works, or noted."""

import re
import shlex
from pathlib import Path

import pytest
from tabled import tabled

FILES = {
    "plain.csv": "prompt_tokens,output_tokens\n12,5\n20,6\n9,4\n",
    "timed.csv": "prompt_tokens,output_tokens,arrival_s\n12,5,0\n20,6,0.2\n9,4,0.3\n",
    "due.csv": "prompt_tokens,output_tokens,deadline,label\n5,2,9,a/1\n5,2,9,b/1\n",
    "types.toml": "d0 = 0.0085\nd1 = 2.7e-7\n"
    + "".join(f"[[type]]\nprompt = 10\noutput = {o}\nrate = {o}\n" for o in (20, 40, 80, 160)),
}
FAMILY = "family:uniform,n=5,seed=1"


@pytest.fixture
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)


@pytest.mark.slow("regret family:equal-prompts --horizons 60 --seeds 1 --jobs 1---resume")
@pytest.mark.papers("reproduce *")
@pytest.mark.serving("*--policy vllm:area-*")
@pytest.mark.usefixtures("_files")
@tabled()
def test_what_contradicts_itself_is_refused_by_name(optsched_command, refused, line, ignored):
    err = refused(*shlex.split(f"{line} {ignored}"))
    # All options that were typed, with their values; together or, where reasons differ, some.
    typed = re.findall(r"--\S+(?: [^-\s]\S*)?", ignored)
    said = [each for each in typed if each in err.replace(" is ", " ")]
    assert said, err
    if re.search(r" counts? only .*leave --.* out$", err.strip()):
        for each in said:
            assert each.partition(" ")[0] in err[err.index("leave --") :]
    else:  # the sentence of Python
        assert re.search(r" is .*, but .* leave it out$", err.strip())
    rest = " ".join(each for each in typed if each not in said)
    code, _, err = optsched_command(*shlex.split(f"{line} {rest}"))
    assert code == (2 if rest else 0), err


@pytest.mark.serving("*--policy vllm-*")
@pytest.mark.usefixtures("_files")
@tabled()
def test_what_has_no_effect_is_noted_by_name(optsched_command, line, ignored):
    code, _, err = optsched_command(*shlex.split(f"{line} {ignored}"))
    assert code == 0, err
    notes = [each for each in err.splitlines() if each.endswith("no effect here")]
    for each in re.findall(r"--\S+(?: [^-\s]\S*)?", ignored):
        assert sum(each.replace("1e4", "10000") in note for note in notes) == 1, err
    code, _, err = optsched_command(*shlex.split(line))
    assert (code, "no effect" in err) == (0, False), err


@pytest.mark.papers("reproduce *")
@pytest.mark.usefixtures("_files")
@tabled()
def test_the_other_hint_works_as_well(optsched_command, refused, line, hint, change):
    assert hint in refused(*shlex.split(line))
    code, _, err = optsched_command(*shlex.split(line.replace(*change, 1)))
    assert code == 0, err


@pytest.mark.usefixtures("_files")
@tabled()
def test_what_counts_for_one_of_several_or_in_a_file_is_accepted(optsched_command, line):
    code, _, err = optsched_command(*shlex.split(line))
    assert code == 0, err


def test_an_option_given_twice_is_noted(optsched_command, refused):
    line = ("compare", FAMILY, "--policies", "fcfs", "--quiet", "--json", "-")
    assert optsched_command(*line, "--quiet")[2] == ""
    line = ("bound", FAMILY, "--memory", 80, "--json", "-", "--memory", 90)
    code, out, err = optsched_command(*line)
    assert (code, err) == (0, "optsched: --memory was given twice; the last one counts\n")
    assert out[:15] == optsched_command("bound", FAMILY, "--memory", 90, "--json", "-")[1][:15]
    refused(*line, "--method", "closd")


@pytest.mark.serving
def test_a_switch_and_its_opposite_are_noted(optsched_command):
    line = f"simulate {FAMILY} --clock unit --policy vllm --async-scheduling --no-async-scheduling"
    code, _, err = optsched_command(*line.split())
    assert (code, err) == (0, "optsched: --async-scheduling was given twice; the last one counts\n")


def test_a_family_of_types_has_the_seed_of_the_command(optsched_command):
    how = ("--clock", "affine:0.01,1e-6", "--rate", 2, "--json", "-")
    first, again, second = (
        optsched_command("thresholds", f"family:uniform,n=5{own}", *how, "--seed", seed)[1]
        for own, seed in (("", 1), (",seed=1", 2), ("", 2))
    )
    assert first == again != second
