"""--workers on solve, bound, check and export."""

import json

import pytest

SMALL = "family:uniform,n=6"


def test_solve_writes_what_check_reads(optsched_command, optsched_json, tmp_path):
    plan, proof = tmp_path / "plan.json", tmp_path / "proof.json"
    code, _, _ = optsched_command(
        *("solve", SMALL, "--workers", 2, "--json", plan, "--certificate", proof)
    )
    assert code == 0
    content = json.loads(plan.read_text())
    assert content["workers"] == [100, 100]
    assert len(content["placement"]) == len(content["starts"]) == 6
    assert content["bound"] <= content["objective"]
    checked = optsched_json("check", SMALL, plan, "--workers", "100x2")
    assert checked["feasible"]
    assert checked["total_latency"] == content["objective"]
    if proof.exists():
        found = optsched_json("check", SMALL, proof, "--workers", 2)
        assert found["value"] <= content["objective"]
    content["placement"] = [0] * 6
    content["starts"] = [0] * 6
    plan.write_text(json.dumps(content))
    code, out, _ = optsched_command("check", SMALL, plan, "--workers", 2)
    assert code == 1
    assert "worker 0, steps" in out


def test_bound_and_export_take_workers(optsched_command, optsched_json, tmp_path):
    content = optsched_json("bound", "family:uniform,n=30", "--workers", "100,50x4")
    assert content["method"] == "nested"
    model = tmp_path / "joint.mps"
    code, out, _ = optsched_command("export", SMALL, "--workers", 2, "--out", model)
    assert code == 0
    assert "start[request,worker,step]" in out
    assert "start[0,0,0]" in model.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("solve", SMALL, "--workers", "0"), "--workers is 0"),
        (("solve", SMALL, "--workers", "50x2,many"), "workers are '50x2,many'"),
        (("solve", SMALL, "--workers", "9x2"), "more than fits"),
        (("solve", SMALL, "--memory", "100", "--workers", "100x2"), "leave out the memory"),
        (("bound", SMALL, "--workers", "100,90", "--clock", "unit"), "equal ones"),
    ],
)
def test_bad_workers_end_in_one_sentence(refused, arguments, message):
    assert message in refused(*arguments)


def test_a_plan_for_other_workers_is_refused(refused, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"starts": [0] * 6, "placement": [0] * 6, "workers": [100, 100]}))
    assert "has 2 workers, but there are 3" in refused("check", SMALL, plan, "--workers", 3)
