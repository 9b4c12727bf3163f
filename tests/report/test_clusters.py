"""Plots and page of runs on a cluster."""

import json
import re
from dataclasses import replace

import pytest

from optsched import Cluster, compare, family, solve
from optsched._internal.views import text
from optsched.errors import InstanceError
from optsched.experiments.comparison import compare_lookaheads
from optsched.models import BalanceProgram, BalanceState
from optsched.report import cluster_page, plot_loads, plot_lookahead, plot_power

CLUSTER = Cluster(4, 8)


@pytest.fixture(scope="module")
def comparison():
    traces = [family("uniform", n=300, seed=seed) for seed in range(2)]
    return compare(traces, ["fcfs", "bf-io"], cluster=CLUSTER, record_loads=True)


@pytest.fixture(scope="module")
def lookaheads():
    traces = [family("uniform", n=300, seed=seed) for seed in range(2)]
    return compare_lookaheads(traces, CLUSTER, [0, 5], steps=100)


def test_loads_have_a_line_per_worker_and_one_for_the_heaviest(comparison, ax):
    run = comparison.runs["fcfs"][0]
    assert plot_loads(run, ax) is ax
    drawn = [line.get_ydata() for line in ax.lines if len(line.get_ydata())]
    assert len(drawn) == 5
    assert max(values.max() for values in drawn) <= run.loads.max()


def test_power_and_lookahead_draw_on_given_axes(comparison, lookaheads, ax):
    assert plot_power([runs[0] for runs in comparison.runs.values()], ax) is ax
    assert ax.get_ylabel() == "mean power of a worker (W)"
    ax.clear()
    assert plot_lookahead(lookaheads, ax) is ax
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "5"]


def test_one_worker_has_no_imbalance_for_an_axis_of_powers(ax):
    alone = compare_lookaheads([family("uniform", n=20, seed=1)], Cluster(1, 8), [0, 5], steps=20)
    assert plot_lookahead(alone, ax).get_yscale() == "linear"


def test_what_was_not_recorded_cannot_be_drawn(lookaheads, comparison):
    with pytest.raises(InstanceError, match="not recorded; run it with record_loads=True"):
        plot_loads(lookaheads.runs["fcfs"][0])
    only = replace(comparison, runs_by_policy={"fcfs": comparison.runs["fcfs"]})
    with pytest.raises(InstanceError, match="no policy with a lookahead has run"):
        plot_lookahead(only)


def test_the_table_has_a_row_per_policy(comparison):
    lines = text("cluster_table", comparison).splitlines()
    assert "\n".join(lines) in str(comparison)
    assert sum(line.strip().startswith(("fcfs", "bf-io")) for line in lines) == 2


def test_the_page_holds_all_data_and_needs_no_network(comparison, lookaheads):
    page = cluster_page(comparison, lookaheads)
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, flags=re.DOTALL).group(1))
    assert set(figures) == {"loads-0", "loads-1", "power", "lookahead"}
    drawn = [trace for trace in figures["loads-0"]["data"] if trace["x"]]
    assert len(drawn) == CLUSTER.workers + 1
    for name in figures:
        assert f'id="{name}"' in page
    assert "src=" not in page.split("<script>")[0]
    content = json.loads(
        re.search(r'id="comparison">(.*?)</script>', page, flags=re.DOTALL).group(1)
    )
    assert content == json.loads(json.dumps(comparison.to_dict()))
    assert 'id="lookahead"' not in cluster_page(comparison)


def test_a_page_shows_runs_of_one_step_and_leaves_out_what_was_not_recorded():
    trace = family("uniform", n=300, seed=0)
    page = cluster_page(compare(trace, ["fcfs"], cluster=CLUSTER, steps=1))
    assert "Load of every worker" not in page
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, flags=re.DOTALL).group(1))
    assert figures["power"]["data"][0]["mode"] == "markers"


def test_loads_of_a_step_are_drawn_before_and_after_an_assignment(ax):
    state = BalanceState(alive=[[9, 10], [4, 0]], free=[0, 1], waiting=[3, 7])
    program = BalanceProgram(state)
    program.plot(ax)
    assert [bar.get_height() for bar in ax.patches] == [9, 4]
    ax.clear()
    solve(program).answer.plot(ax)
    assert [bar.get_height() for bar in ax.patches] == [9, 4, 0, 7]
    drawn = [text.get_text() for text in ax.get_legend().get_texts()]
    assert sorted(drawn) == ["1 step ahead", "admitted", "heaviest now", "running"]
