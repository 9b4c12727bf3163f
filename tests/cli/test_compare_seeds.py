"""`compare --seeds`: a family under several seeds, with intervals and differences to a baseline."""

import pytest

from optsched import compare, family

TRACE = "family:uniform,n=15,load=1.2"


def test_seeds_are_instances_one_after_another(optsched_command, optsched_json, tmp_path):
    page = tmp_path / "page.html"
    command = ["compare", TRACE, "--policies", "fcfs,mc-sf", "--seeds", 3, "--seed", 4]
    code, text, _ = optsched_command(*command, "--baseline", "fcfs", "--html", page)
    assert code == 0
    assert "difference to fcfs: paired by instance" in text
    assert "2 policies on 3 instances" in page.read_text()
    answer = optsched_json(*command)
    instances = [family("uniform", n=15, load=1.2, seed=seed) for seed in (4, 5, 6)]
    found = compare(instances, ["fcfs", "mc-sf"]).to_dict()
    assert [each["policy"] for each in answer["policies"]] == [
        each["policy"] for each in found["policies"]
    ]
    for mine, theirs in zip(answer["policies"], found["policies"], strict=True):
        assert mine == theirs
    assert [each["bound"]["value"] for each in answer["instances"]] == [
        each["bound"]["value"] for each in found["instances"]
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--baseline", "fcfs"], "--baseline fcfs counts only with --seeds; pass that, or leave"),
        (["--seeds", 0], "--seeds 0 needs a family without a seed of its own, and a number from 1"),
        (["--seeds", 2, "--schedules", "out"], "--schedules out counts only without --seeds"),
        (["--seeds", 2, "--baseline", "aera"], "unknown baseline 'aera': did you mean 'area'?"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(words, sentence, refused):
    assert sentence in refused("compare", TRACE, *words)


def test_a_trace_has_no_seeds(refused, tmp_path):
    (tmp_path / "few.csv").write_text("prompt_tokens,output_tokens\n9,2\n3,4\n")
    trace = tmp_path / "few.csv"
    error = refused("compare", trace, "--memory", 20, "--seeds", 2)
    assert f"but TRACE is {trace}; correct that" in error
