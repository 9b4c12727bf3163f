"""`optsched route`: JSON, report, and one sentence for every bad input."""

import json

import pytest

ROUTE = ("route", "family:uniform,n=40,load=2", "--time-limit", 2)


@pytest.mark.slow
def test_json_has_the_names_of_the_manual(optsched_json, tmp_path):
    page = tmp_path / "report.html"
    content = optsched_json(
        *(*ROUTE, "--workers", 2, "--routers", "jsq,least-tokens", "--policies", "fcfs,area"),
        *("--html", page),
    )
    assert set(content["joint"]) >= {"objective", "bound", "gap"}
    pairs = [(entry["router"], entry["policy"]) for entry in content["routers"]]
    assert pairs == [(r, p) for r in ("jsq", "least-tokens") for p in ("fcfs", "area")]
    for entry in content["routers"]:
        assert entry["loss"][0] <= entry["loss"][1]
        assert set(entry) >= {"total_latency", "mean_latency", "placement", "order"}
    assert "jsq, area" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_memories_stand_for_the_memory(optsched_json):
    content = optsched_json(*ROUTE, "--workers", "100,60x2")
    assert content["workers"] == [100, 60, 60]


def test_on_a_clock_there_are_percentiles(optsched_command):
    code, out, err = optsched_command(
        *(*ROUTE, "--workers", 2, "--clock", "affine:0.01,0.0001", "--json", "-")
    )
    assert code == 0
    assert "--time-limit 2 counts only without --clock" in err
    assert "a load counts steps, which are 1e-06 s here" in err
    entry = json.loads(out)["routers"][0]
    assert entry["order"] is None
    assert set(entry) >= {"loss", "p50_latency", "p99_latency", "mean_ttft", "p99_ttft"}


@pytest.mark.slow
def test_policies_under_intervals_are_routed(optsched_json):
    known = ("--routers", "jsq", "--policies", "a-min", "--intervals", "relative:0.5")
    content = optsched_json(*ROUTE, "--workers", 2, *known)
    assert {entry["policy"] for entry in content["routers"]} == {"a-min"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", 2, "--routers", "jqs"), "unknown router 'jqs': did you mean 'jsq'?"),
        (("--workers", 0), "workers is 0, but must be a whole number from 1"),
        (("--workers", "20x2"), "leave the request out or raise the memory to 90"),
        (("--workers", 2, "--policies", "aera"), "unknown policy 'aera': did you mean 'area'?"),
    ],
)
def test_bad_input_is_one_sentence(refused, options, message):
    assert message in refused(*ROUTE, *options)
