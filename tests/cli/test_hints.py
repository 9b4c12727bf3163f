"""Typical mistakes: the hint of the sentence, followed to the letter, works."""

import re
import shlex
from pathlib import Path

import pytest
from installed import ENGINE, with_papers

FILES = {
    "input.csv": "input_tokens,output_tokens\n12,5\n20,6\n",
    "ms.csv": "prompt_tokens,output_tokens,arrival_ms\n12,5,1700\n20,6,1900\n",
    "epoch.csv": "prompt_tokens,output_tokens,arrival_s\n12,5,1700000000000\n20,6,1700000000200\n",
    "made.csv": "prompt_tokens,num_generated_tokens\n12,5\n20,6\n",
    "when.csv": "prompt_tokens,output_tokens,timestamp\n12,5,0\n20,6,0.2\n",
    "other.csv": "prompt_tokens;output_tokens\n12;5\n20;6\n",
    "broken.csv": "prompt_tokens,output_tokens\n12,-3\n20,6\n",
    "plain.csv": "prompt_tokens,output_tokens\n12,5\n20,6\n",
    "large.csv": "prompt_tokens,output_tokens\n12,5\n20,600\n9,60\n",
    "due.csv": "prompt_tokens,output_tokens,deadline\n5,2,2\n5,2,3\n",
    "sweep.toml": 'instances = [{family = "uniform", n = 5}]\npolicies = [{name = "area"}]\n',
}
FAMILY = "family:uniform,n=5"


def renamed(found, line):
    """Name a column as the hint says, and divide its values."""
    path = Path(line.split()[1])
    header, *rows = [row.split(",") for row in path.read_text().splitlines()]
    old, new, *power = found.groups()
    at = header.index(old)
    header[at] = new
    if power and power[0]:
        for row in rows:
            row[at] = str(float(row[at]) / int(power[0].replace(",", "")))
    path.write_text("\n".join(",".join(row) for row in [header, *rows]))
    return line


def from_zero(found, line):
    """Subtract the first arrival, and divide milliseconds."""
    path = Path(line.split()[1])
    header, *rows = [row.split(",") for row in path.read_text().splitlines()]
    first = int(rows[0][2])
    shifted = [[*row[:2], str((int(row[2]) - first) / 1000)] for row in rows]
    path.write_text("\n".join(",".join(row) for row in [header, *shifted]))
    return line


def commas(found, line):
    path = Path(line.split()[1])
    path.write_text(path.read_text().replace(";", ","))
    return line


def created(found, line):
    Path(found[1]).mkdir()
    return line


def added(option):
    """Add an option, with the value that the hint names."""
    return lambda found, line: " ".join([line, option, *found.groups()])


def with_value(value):
    """Add the option that the hint names, with a value of one's own."""
    return lambda found, line: f"{line} {found[1]} {value}"


def changed(old):
    """Put what the hint writes in the place of what was written."""
    return lambda found, line: line.replace(old, found[1])


SKIP, RATE = r"\((--skip-invalid) leaves", r"pass the requests per second \((--rate)\)"
CLOCK, DUE = "--clock affine:0.01,1e-6", "solve due.csv --memory 9"
FIRST = "subtract the first arrival from all of them, and divide milliseconds by 1,000"
NAME = r"unknown column '(\w+)'; name it (\w+)(?: and divide its values by ([\d,]+))?"
MISTAKES = [
    ("bound input.csv --memory 99", NAME, renamed),
    ("bound ms.csv --memory 99", NAME, renamed),
    ("bound made.csv --memory 99", NAME, renamed),
    ("bound when.csv --memory 99", NAME, renamed),
    ("bound other.csv --memory 99", "separate columns by commas", commas),
    ("bound epoch.csv --memory 99", FIRST, from_zero),
    ("bound broken.csv --memory 99", SKIP, added("")),
    (f"thresholds broken.csv {CLOCK} --rate 1", SKIP, added("")),
    (f"throughput broken.csv {CLOCK} --rate 1 --max-latency 9", SKIP, added("")),
    (
        f"simulate {FAMILY} --policy area-chance --intervals common:1,99 --history broken.csv",
        SKIP,
        added(""),
    ),
    (f"thresholds plain.csv {CLOCK}", RATE, with_value("2")),
    (f"throughput plain.csv {CLOCK} --max-latency 9", RATE, with_value("2")),
    ("bound large.csv --memory 99", r"raise the memory to (\d+)", added("--memory")),
    (f"bound {FAMILY} --memory 9", r"raise the memory to (\d+)", added("--memory")),
    ("bound large.csv", r"pass the memory \((--memory) M, or", with_value("999")),
    ("bound uniform,n=5", r"for the family write (\S+)", changed("uniform,n=5")),
    (
        f"compare {FAMILY} --policies mc-sf, area",
        r"a list has no spaces; write (\S+)",
        changed("mc-sf, area"),
    ),
    (f"compare {FAMILY} --policies aera", "did you mean '(.*?)'", changed("aera")),
    (f"comapre {FAMILY}", "Did you mean '(.*?)'", changed("comapre")),
    (f"bound {FAMILY} --json new/x.json", r"no folder (\S+); create it first", created),
    (f"compare {FAMILY} --policies a-min", r"pass intervals, such as (\S+)", added("--intervals")),
    (f"simulate {FAMILY} --policy {ENGINE}", r"pass a clock, such as (\S+)", added("--clock")),
    (f"simulate {FAMILY} --policy fcfs --until 9", "(--clock); pass that", with_value("unit")),
    (f"{DUE} --lateness per-request", r"pass a penalty, such as (\d+)", added("--penalty")),
    (f"{DUE} --penalty 3", r"pass a lateness, such as ([\w-]+)", added("--lateness")),
    (
        f"thresholds plain.csv {CLOCK} --rate 0.12345678901234567 --memory 999 "
        "--objective slack --method cp-sat",
        r"take method (\w+)",
        changed("cp-sat"),
    ),
    (
        f"compare {FAMILY},memory=99",
        "leave out (memory=99)",
        lambda found, line: line.replace(f",{found[1]}", ""),
    ),
    *with_papers(
        (
            "reproduce sorted-f-example-2 --quick --out new",
            "did you mean '(.*?)'",
            changed("sorted-f-example-2"),
        )
    ),
    (f"export {FAMILY} --out x.txt", r"must end in (\.mps) or", changed(".txt")),
    (f"export {FAMILY} --out x.lp --model batch", "add (--size) K", with_value("2")),
    ("sweep sweep.toml --out done --jobs 1", r"resume it \((--resume)\)", added("")),
]


@pytest.mark.parametrize(("line", "hint", "follow"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_a_hint_that_is_followed_works(optsched_command, tmp_path, monkeypatch, line, hint, follow):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    if line.startswith("sweep"):
        assert optsched_command(*shlex.split(line))[0] == 0
    code, _, err = optsched_command(*shlex.split(line))
    assert (code, err.count("\n")) == (2, 1)
    found = re.search(hint, err)
    assert found, err
    code, _, err = optsched_command(*shlex.split(follow(found, line)))
    assert code == 0, err
