"""Progress in notebooks: one bar for a call and all that it calls, and none anywhere else."""

from types import SimpleNamespace

import pytest

import optsched
from optsched import Cluster, SolveParams, family, run, solve, sweep
from optsched._internal import aside

SMALL = {"seeds": 3, "instances": [{"family": "uniform", "n": 9}], "policies": [{"name": "area"}]}


class Shown(list):
    """What was displayed: a list for each bar."""

    def display(self, content, **how):
        assert how == {"raw": True, "display_id": True}
        self.append([content])
        bar = self[-1]
        return SimpleNamespace(update=lambda content, raw: bar.append(content))


@pytest.fixture
def shown(monkeypatch):
    """A notebook whose bars come at once."""
    import IPython

    found = Shown()
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=True))
    monkeypatch.setattr(IPython.display, "display", found.display)
    monkeypatch.setattr(aside, "_AFTER", 0.0)
    monkeypatch.setattr(aside, "_EVERY", 0.0)
    return found


def assert_one_bar_that_went_away(shown, words):
    assert len(shown) == 1
    assert shown[0][-1] == {"text/plain": "", "text/html": ""}
    assert words in shown[0][0]["text/plain"]
    assert "<progress" in shown[0][0]["text/html"]


def test_a_sweep_shows_one_bar(shown, tmp_path):
    sweep(SMALL, tmp_path, jobs=1)
    assert_one_bar_that_went_away(shown, "1 of 3 runs")
    assert '<progress value="1" max="3">' in shown[0][0]["text/html"]


def test_regret_and_run_show_one_bar(shown):
    optsched.regret("family:equal-prompts", ["mc-sf"], [0.8], [20], seeds=2)
    assert_one_bar_that_went_away(shown, "1 of 2 instances")
    shown.clear()
    run(family("uniform", n=9), "fcfs", cluster=Cluster(2, 2))
    assert_one_bar_that_went_away(shown, " of 9")


@pytest.mark.slow
def test_a_long_kernel_shows_that_it_is_at_work(shown, monkeypatch):
    monkeypatch.setattr(aside, "_LOOK_EVERY", 1e-4)
    requests = family("uniform", n=20_000, seed=1, load=0.9)
    found = run(requests, "a-min", intervals="relative:0.5")
    assert_one_bar_that_went_away(shown, "at work")
    assert 'value="' not in shown[0][0]["text/html"]
    shown.clear()
    run(requests, "a-min", intervals="relative:0.5", on_progress=print)
    assert not shown
    assert found.all_complete


def test_numbers_stay_while_a_kernel_is_at_work(shown):
    with aside.watched(None) as tell:
        tell(1, 3)
        aside.still_at_work()
    assert [each["text/plain"] for each in shown[0]] == ["1 of 3", ""]


@pytest.mark.slow
def test_solve_shows_what_is_known(shown):
    instance = family("uniform", n=9, seed=1)
    found = solve(instance, time_limit=None)
    assert_one_bar_that_went_away(shown, "objective")
    assert 'value="' not in shown[0][0]["text/html"]
    assert found.objective == solve(instance, time_limit=None).objective


@pytest.mark.slow
def test_whoever_asks_for_progress_gets_it_alone(shown, tmp_path):
    seen = []
    sweep(SMALL, tmp_path, jobs=1, on_progress=seen.append)
    solve(family("uniform", n=9), params=SolveParams(on_progress=seen.append), time_limit=1)
    assert len(seen) > 3
    assert not shown


def test_an_interrupt_leaves_what_is_done(shown, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("IPython.display.display", interrupted)
        found = sweep(SMALL, tmp_path, jobs=1)
    assert (found.status, found.done) == ("interrupted", 1)
    assert sweep(SMALL, tmp_path, jobs=1, resume=True).done == 3
    assert_one_bar_that_went_away(shown, "2 of 3 runs")


def interrupted(content, **how):
    raise KeyboardInterrupt


def test_scripts_show_nothing(tmp_path, capsys):
    sweep(SMALL, tmp_path, jobs=1)
    assert capsys.readouterr() == ("", "")
