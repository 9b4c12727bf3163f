"""No option is ignored without a word: it is refused, and following the hint works, or noted."""

import re
import shlex
from pathlib import Path

import pytest

FILES = {
    "plain.csv": "prompt_tokens,output_tokens\n12,5\n20,6\n9,4\n",
    "timed.csv": "prompt_tokens,output_tokens,arrival_s\n12,5,0\n20,6,0.2\n9,4,0.3\n",
    "due.csv": "prompt_tokens,output_tokens,deadline,label\n5,2,9,a/1\n5,2,9,b/1\n",
    "types.toml": "d0 = 0.0085\nd1 = 2.7e-7\n"
    + "".join(f"[[type]]\nprompt = 10\noutput = {o}\nrate = {o}\n" for o in (20, 40, 80, 160)),
}
FAMILY = "family:uniform,n=5,seed=1"
HARDWARE = "--llm llama-2-70b --gpu a100-80gb --gpus 2"
CLUSTER = "cluster due.csv --workers 2 --slots 1 --warm-up 0"
EXPORT = f"export {FAMILY} --out x.lp"
ENGINE = f"simulate {FAMILY} --clock unit"
NESTED = "thresholds types.toml --nested"

#: A line without the options that would not count, and these.
REFUSED = [
    (f"select {FAMILY}", "--epsilon 0.2"),
    (f"select {FAMILY} --method swap", "--time-limit 9"),
    (f"{CLUSTER} --policies jsq,bf-io", "--time-limit 2"),
    (f"bound {FAMILY}", "--gpus 2"),
    (f"solve {FAMILY} --memory 99", HARDWARE),
    (f"compare {FAMILY} --memory 99 --clock unit --policies fcfs", HARDWARE),
    (f"compare {FAMILY} --policies fcfs", "--until 9"),
    (f"compare {FAMILY} --policies fcfs", "--warm-up 2"),
    (f"compare {FAMILY} --policies fcfs --clock unit", "--schedules plans"),
    (f"simulate {FAMILY} --policy fcfs", "--until 9 --warm-up 2"),
    (f"simulate {FAMILY} --policy fcfs", "--batches b.csv"),
    (f"simulate {FAMILY} --policy fcfs", "--watermark 0.1 --max-num-seqs 9"),
    (f"{ENGINE} --policy mixed", "--num-gpu-blocks 99 --no-async-scheduling"),
    (f"{ENGINE} --policy vllm:area", "--scheduling-policy priority"),
    (f"rolling {FAMILY} --budget 0", "--planner beam --window 9 --horizon 999 --scenarios 3"),
    (f"rolling {FAMILY} --budget 0", "--length-estimate upper"),
    ("regret family:equal-prompts --horizons 60 --seeds 1 --jobs 1", "--resume"),
    ("regret family:equal-prompts --horizons 60 --seeds 1 --clock unit --jobs 1", "--threshold"),
    ("regret family:equal-prompts --horizons 60 --seeds 1 --clock unit --jobs 1", "--time-limit 1"),
    ("reproduce --list", "--out x --quick --jobs 1 --overwrite"),
    (f"solve {FAMILY}", "--lateness per-step --penalty 3"),
    (f"bound {FAMILY}", "--max-num-seqs 4"),
    (f"{EXPORT} --model relaxation", "--workers 2"),
    (f"{EXPORT} --model batch --size 2", "--workers 2"),
    ("thresholds types.toml", "--segments auto --margin 0.1 --delta 0.1 --iterations 9 --prompt 9"),
    (NESTED, "--batch-limit 999 --objective slack --method highs"),
    ("thresholds types.toml --thresholds 30,60,90,120", "--method highs"),
    ("thresholds types.toml --thresholds 30,60,90,120", "--objective slack"),
    (f"{NESTED} --thresholds 60,57,50,34", "--margin 0.1"),
    (f"{NESTED} --thresholds 60,57,50,34", "--segments auto"),
    (f"{NESTED} --segments auto", "--minimum-slack 0.001"),
    ("thresholds types.toml", "--classes 2 --rate 3 --skip-invalid"),
    ("throughput types.toml --max-latency 9", "--classes 2 --rate 3 --skip-invalid"),
    (f"{CLUSTER} --policies bf-io --dispatch instant", "--patience 9"),
    *(
        (f"simulate {FAMILY} --policy {policy} --intervals relative:0.5", "--history plain.csv")
        for policy in ("area-posterior", "rolling", "h-sf")
    ),
    (f"compare {FAMILY} --policies a-min --intervals relative:0.5", "--history plain.csv"),
]

#: A line, and options that have no effect on it.
NOTED = [
    (f"compare {FAMILY} --policies fcfs", "--seconds-per-step 0.1"),
    ("compare plain.csv --memory 99 --policies fcfs", "--seconds-per-step 0.1"),
    (
        "compare timed.csv --memory 99 --policies fcfs --clock affine:0.01,0.0001",
        "--seconds-per-step 0.1",
    ),
    (f"compare {FAMILY} --policies mixed,sarathi --clock unit", "--intervals relative:0.5"),
    (f"{ENGINE} --policy vllm", "--intervals relative:0.5"),
    (f"simulate {FAMILY} --policy alpha-greedy", "--intervals relative:0.5"),
    (EXPORT, "--size 3"),
    (EXPORT, "--slots 3 --lookahead 4"),
    (f"{EXPORT} --model relaxation", "--objective makespan"),
    (f"{EXPORT} --model batch --size 2", "--last-step 99"),
    (f"{EXPORT} --model balance --workers 2 --slots 3", "--objective makespan"),
    (f"{EXPORT} --model balance --workers 2 --slots 3", "--last-step 99"),
    (f"{CLUSTER} --policies jsq", "--lookahead 0,5 --patience 9 --method greedy --time-limit 2"),
    (
        f"route {FAMILY} --workers 2 --routers jsq --policies mixed --clock unit",
        "--intervals relative:0.5",
    ),
    (f"route {FAMILY} --workers 2 --routers jsq --policies mixed --clock unit", "--time-limit 9"),
]

#: A line, what its hint says beside leaving options out, and the line that follows it.
REMEDIES = [
    (
        f"{CLUSTER} --policies bf-io --time-limit 9",
        "is for the methods 'highs' and 'cp-sat'",
        ("--time-limit", "--method highs --time-limit"),
    ),
    (
        f"select {FAMILY} --epsilon 0.2",
        "--method scaled-dp; pass that",
        ("--e", "--method scaled-dp --e"),
    ),
    (
        f"select {FAMILY} --method swap --time-limit 9",
        "--method auto or highs or cp-sat or mip; pass that",
        ("swap", "highs"),
    ),
    (
        f"{CLUSTER} --policies bf-io --patience 9 --dispatch instant",
        "--dispatch pool; pass that",
        ("instant", "pool"),
    ),
    (f"bound {FAMILY} --gpus 2", "with --llm; pass that", ("--gpus 2", HARDWARE)),
    (f"bound {FAMILY} --max-num-seqs 4", "clock", ("--max", "--clock unit --max")),
    ("thresholds types.toml --delta 0.1", "--nested; pass that", ("--delta", "--nested --delta")),
    (
        f"rolling {FAMILY} --budget 0 --length-estimate upper",
        "--intervals; pass that",
        ("--length", "--intervals relative:0.5 --length"),
    ),
    (
        "reproduce --list sorted-f-example-1",
        "leave sorted-f-example-1 or --list out",
        (" --list", " --out new --quick"),
    ),
]


@pytest.fixture
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)


@pytest.mark.slow("regret family:equal-prompts --horizons 60 --seeds 1 --jobs 1 --resume")
@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize(("line", "ignored"), REFUSED, ids=[f"{a} {b}" for a, b in REFUSED])
def test_what_contradicts_itself_is_refused_by_name(optsched_command, line, ignored):
    code, out, err = optsched_command(*shlex.split(f"{line} {ignored}"))
    assert (code, out, err.count("\n")) == (2, "", 1), err
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


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize(("line", "ignored"), NOTED, ids=[f"{a} {b}" for a, b in NOTED])
def test_what_has_no_effect_is_noted_by_name(optsched_command, line, ignored):
    code, _, err = optsched_command(*shlex.split(f"{line} {ignored}"))
    assert code == 0, err
    notes = [each for each in err.splitlines() if each.endswith("no effect here")]
    for each in re.findall(r"--\S+(?: [^-\s]\S*)?", ignored):
        assert sum(each.replace("1e4", "10000") in note for note in notes) == 1, err
    code, _, err = optsched_command(*shlex.split(line))
    assert (code, "no effect" in err) == (0, False), err


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize(("line", "hint", "change"), REMEDIES, ids=[line for line, *_ in REMEDIES])
def test_the_other_hint_works_as_well(optsched_command, line, hint, change):
    code, out, err = optsched_command(*shlex.split(line))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert hint in err
    code, _, err = optsched_command(*shlex.split(line.replace(*change, 1)))
    assert code == 0, err


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize(
    "line",
    [
        f"{CLUSTER} --policies fcfs,bf-io --patience 9",
        f"{CLUSTER} --policies fcfs --drain",
        "compare timed.csv --memory 99 --policies fcfs --seconds-per-step 0.1",
        f"compare {FAMILY} --memory 99 {HARDWARE} --policies fcfs",
        f"compare {FAMILY} --policies alpha-greedy,a-min --intervals relative:0.5",
        f"simulate {FAMILY} --policy h-sf --intervals relative:0.5",
        f"{NESTED} --thresholds 60,57,50,34 --margin 0.1 --export x.lp",
    ],
)
def test_what_counts_for_one_of_several_or_in_a_file_is_accepted(optsched_command, line):
    code, _, err = optsched_command(*shlex.split(line))
    assert code == 0, err


def test_an_option_given_twice_is_noted(optsched_command):
    line = ("compare", FAMILY, "--policies", "fcfs", "--quiet", "--json", "-")
    assert optsched_command(*line, "--quiet")[2] == ""
    line = ("bound", FAMILY, "--memory", 80, "--json", "-", "--memory", 90)
    code, out, err = optsched_command(*line)
    assert (code, err) == (0, "optsched: --memory was given twice; the last one counts\n")
    assert out[:15] == optsched_command("bound", FAMILY, "--memory", 90, "--json", "-")[1][:15]
    switched = ("--async-scheduling", "--no-async-scheduling")
    code, _, err = optsched_command(*shlex.split(f"{ENGINE} --policy vllm"), *switched)
    assert (code, err) == (0, "optsched: --async-scheduling was given twice; the last one counts\n")
    code, _, err = optsched_command(*line, "--method", "closd")
    assert (code, err.count("\n")) == (2, 1)


def test_a_family_of_types_has_the_seed_of_the_command(optsched_command):
    how = ("--clock", "affine:0.01,1e-6", "--rate", 2, "--json", "-")
    first, again, second = (
        optsched_command("thresholds", f"family:uniform,n=5{own}", *how, "--seed", seed)[1]
        for own, seed in (("", 1), (",seed=1", 2), ("", 2))
    )
    assert first == again != second
