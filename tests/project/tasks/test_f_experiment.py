"""A stranger's task: many cells with an own policy, interrupted and resumed, here and on Dask."""

import numpy as np
import pandas as pd
import pytest

import optsched
from optsched import family, read_sweep, sweep
from optsched.report import plot_series

KEPT = 0.1  # share of the memory that is kept free


def reserved(state):
    """Start the smallest prompts first, and keep some memory free."""
    order = state.waiting[np.argsort(state.forecast.prompts[state.waiting], kind="stable")]
    needed = np.cumsum(state.forecast.prompts[order] + 1)
    room = state.free - (KEPT * state.forecast.memory if len(state.running) else 0)
    return order[needed <= room]


def experiment(seeds):
    return {
        "seeds": seeds,
        "bound": True,
        "instances": [{"family": "chat-and-summaries", "n": 60, "load": [0.9, 1.3]}],
        "policies": [{"name": [reserved, "mc-sf", "area", "fcfs"]}],
    }


def interrupted_and_resumed(config, folder, **how):
    """Stop after about half of the cells, then go on; return the results."""
    cells = 2 * 4 * config["seeds"]

    def stop(progress):
        if progress.done >= cells // 2:
            raise KeyboardInterrupt

    first = sweep(config, folder, on_progress=stop, **how)
    assert first.status == "interrupted"
    assert cells // 2 <= len(read_sweep(folder)) == first.done < cells
    second = sweep(config, folder, resume=True, **how)
    assert (second.status, second.done, second.failed) == ("complete", cells, 0)
    assert second.carried_out == cells - first.done
    return second


def rows(result):
    frame = result.to_pandas().drop(columns="seconds")
    return frame.sort_values("key", ignore_index=True)


@pytest.mark.slow
def test_the_cells_are_what_one_runs_by_hand(tmp_path):
    result = interrupted_and_resumed(experiment(3), tmp_path / "kept", jobs=1)
    frame = rows(result)
    for row in frame[frame.policy == "reserved"].itertuples():
        instance = family("chat-and-summaries", n=60, load=row.load, seed=row.seed)
        assert row.total_latency == optsched.run(instance, reserved).total_latency
    instances = [family("chat-and-summaries", n=60, load=1.3, seed=seed) for seed in range(3)]
    compared = optsched.compare(instances, [reserved, "mc-sf", "area", "fcfs"])
    means = {row["policy"]: row for row in result.means if row["load"] == 1.3}
    for name, row in means.items():
        assert row["mean_latency"] == pytest.approx(compared.mean(name).to_dict())
    ax = plot_series(result.to_pandas(), x="load", y="mean_latency", by="policy")
    assert [len(line.get_xdata()) for line in ax.lines] == 4 * [2]
    result.to_html(tmp_path / "page.html")
    assert "reserved" in (tmp_path / "page.html").read_text()


@pytest.mark.long
def test_two_hundred_cells_here_and_on_dask(tmp_path):
    import distributed

    config = experiment(25)
    here = interrupted_and_resumed(config, tmp_path / "here", jobs=2)
    how = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**how) as cluster, distributed.Client(cluster) as client:
        there = interrupted_and_resumed(config, tmp_path / "there", executor="dask", address=client)
        again = sweep(config, tmp_path / "there", "dask", cluster, resume=True)
    assert again.carried_out == 0
    pd.testing.assert_frame_equal(rows(here), rows(there), check_like=True)
