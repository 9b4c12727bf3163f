"""Every benchmark runs in its quick form, agrees with its alternatives, and can be written down."""

import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.no_cover
@pytest.mark.parametrize(
    "name",
    [
        *("admission", "routing", "selection", "models", "reading"),
        pytest.param("optima", marks=pytest.mark.long),
    ],
)
def test_rows_agree_with_their_alternative(benchmark, name):
    assert name in benchmark("run").BENCHMARKS
    rows = list(benchmark(f"ratios.{name}").rows(quick=True))
    assert rows
    for row in rows:
        low, high = row.ratio_range
        assert 0 < low <= row.ratio * (1 + 1e-9)
        assert row.ratio <= high * (1 + 1e-9)
        assert not row.stopped


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_peers_find_the_same_optimum(benchmark, workers):
    peers = benchmark("peers")
    for objective, load in itertools.product(peers.OBJECTIVES, (None, 1.1)):
        bound, found = peers.cell(4, 31, load, objective, workers, 60.0)
        assert set(found.values()) == {bound}
        assert set(found) == {"optsched", *peers.PEERS}


@pytest.mark.long
def test_growth_is_measured_fitted_and_drawn(benchmark):
    growth = benchmark("growth")
    curves = list(growth.curves(quick=True))
    assert {curve.axis for curve in curves} == set(growth.TITLES)
    axes = growth.draw(curves)
    assert len(axes) == 3
    assert all(ax.get_xscale() == ax.get_yscale() == "log" for ax in axes)
    importlib.import_module("matplotlib.pyplot").close(axes[0].figure)


def test_exponents_are_fitted_with_their_standard_error(benchmark):
    growth = benchmark("growth")
    exact = growth.Curve("", "n", (1, 10, 100), (2.0, 2e3, 2e6))
    assert exact.fit() == pytest.approx((3, 0, 2), abs=1e-6)
    # The residuals are d, -2 d, d; the error is sqrt(6 d^2 / (n - 2)) / sqrt(2) on a line of three.
    bent = growth.Curve("", "n", (1, 10, 100), (10.0, 1.0, 1000.0))
    exponent, error, _ = bent.fit()
    assert exponent == pytest.approx(1.0)
    assert error == pytest.approx(np.sqrt(3) * (2 / 3))


@pytest.mark.slow
def test_cpu_time_counts_ended_and_running_children(benchmark):
    timing = benchmark("timing")
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    began = timing.cpu_seconds()
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert timing.cpu_seconds() - began >= 0.25
    began = timing.cpu_seconds()
    wait = burn + "print(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        assert timing.cpu_seconds() - began >= 0.25
        child.communicate(b"\n")


@pytest.mark.slow
def test_one_table_and_its_figures(benchmark, tmp_path, capsys):
    run = benchmark("run")
    out = tmp_path / "figures.json"
    run.main(["selection", "--quick", "--json", str(out)], standalone_mode=False)
    assert "best batch" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())["ratios"]
    assert row["ratio"] > 0
    assert len(row["ours"]["cpu"]) == 3


def test_docs_have_a_place_for_the_tables(benchmark, tmp_path, monkeypatch):
    run = benchmark("run")
    (tmp_path / "evidence.md").write_text((FOLDER.parent / "docs/evidence.md").read_text())
    monkeypatch.setattr(run, "DOCS", tmp_path)
    rows = [
        ("run", "n = 2", name, "1", "2", ratio, "one run", "same starts")
        for name, ratio in (("a", "1,002"), ("b", "≥ 3"), ("c", "20"))
    ]
    ratios = [run.HEADER, *rows]
    run.update_docs("a setting", ratios)
    text = (tmp_path / "evidence.md").read_text()
    assert "a setting" in text
    assert "| run | n = 2 | 1 | b ≥ 3 |" in text
    run.update_docs("another", ratios)
    assert "a setting" not in (tmp_path / "evidence.md").read_text()


@pytest.mark.slow
@pytest.mark.no_cover
def test_policies_in_seconds_stand_beside_the_bound_at_each_load(benchmark, tmp_path):
    path = tmp_path / "trace.csv"
    lengths = [f"{5 + 7 * (i % 9)},{1 + i % 6}" for i in range(60)]
    path.write_text("\n".join(["prompt_tokens,output_tokens", *lengths]))
    rows = list(benchmark("seconds").rows(path, 60, "llama-2-7b-a100", loads=(0.5, 2.0)))
    assert [row[2] for row in rows] == ["0.5", "2"]
    for row in rows:
        *latencies, machine, best = (float(text.split()[0]) for text in row[3:11])
        assert 0 < machine <= best <= min(latencies)


@pytest.mark.no_cover
def test_single_batches_are_measured_and_written_at_toy_size(benchmark, tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pandas = importlib.import_module("pandas")
    clocks = importlib.import_module("optsched.clock")
    measure = benchmark("measure_clock")
    measure.main("toy", tmp_path / "batches.csv")
    table = pandas.read_csv(tmp_path / "batches.csv")
    assert len(table) == 2 + 3 * 2 * 2
    assert (table["seconds"] > 0).all()
    assert set(table["resident_tokens"]) == {0, 16, 64, 4 * 16, 4 * 64}
    fit = clocks.LinearClock.fit(pandas.concat([table] * 4), hinges=())
    assert fit.clock(clocks.BatchContent(32, 4, 64, 1024, 100)) > 0


def test_a_prompt_attends_to_what_came_before_and_a_decode_to_its_context(benchmark):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    measure = benchmark("measure_clock")
    shape, grid = measure.SHAPES["toy"]
    torch.manual_seed(1)
    model = measure.Model(shape, grid, "cpu")
    q, k, v = (torch.randn(6, heads, shape.head) for heads in (4, 2, 2))
    prompt = model.attend(q, k, v, 6)
    for token, head in ((0, 0), (3, 1), (5, 3)):
        scores = torch.softmax(k[: token + 1, head // 2] @ q[token, head] / shape.head**0.5, 0)
        assert torch.allclose(prompt[token, head], scores @ v[: token + 1, head // 2], atol=1e-5)
    decoded = model.attend_to_cache(q[:2], k[:2], v[:2], 16)
    keys = torch.cat([model.keys[1, 1, :15], k[1, 1][None]])
    values = torch.cat([model.values[1, 1, :15], v[1, 1][None]])
    scores = torch.softmax(keys @ q[1, 3] / shape.head**0.5, 0)
    assert torch.allclose(decoded[1, 3], scores @ values, atol=1e-5)
