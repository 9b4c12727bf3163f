"""Commands write the page of what they say."""

import json
import re

import pytest
from installed import ENGINE


@pytest.mark.slow("solve")
@pytest.mark.parametrize(
    ("command", "figures"),
    [
        (("compare", "{timed}", "--clock", "llama-2-7b-a100"), {"latency", "waiting"}),
        (("simulate", "{timed}", "--policy", ENGINE, "--clock", "llama-2-7b-a100"), {"batches"}),
        (("simulate", "{requests}", "--policy", "area"), {"schedule"}),
        (("solve", "{requests}", "--time-limit", 2), {"history", "gap", "schedule"}),
    ],
    ids=["compare", "simulate-clock", "simulate", "solve"],
)
def test_a_page_is_written_beside_the_text(optsched_command, tmp_path, command, figures):
    traces = {
        "timed": "family:uniform,n=20,rate=6,seconds_per_step=0.001",
        "requests": "family:uniform,n=20",
    }
    page = tmp_path / "page.html"
    arguments = [str(part).format(**traces) for part in command]
    code, out, _ = optsched_command(*arguments, "--html", page)
    assert (code, out != "") == (0, True)
    text = page.read_text(encoding="utf-8")
    drawn = json.loads(re.search(r'id="figures">(.*?)</script>', text, flags=re.DOTALL)[1])
    assert figures <= set(drawn)
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_a_page_that_cannot_be_written_is_refused_before_any_work(refused, tmp_path):
    for command in (("simulate", "--policy", "area"), ("solve",)):
        name, *options = command
        path = tmp_path / "none" / "page.html"
        assert "no folder" in refused(name, "family:uniform,n=9", *options, "--html", path)
