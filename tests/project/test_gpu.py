"""A vLLM that served on an H100, and what optsched says of the same requests."""

from __future__ import annotations

from pathlib import Path

import pytest

RUNS = Path(__file__).parents[1] / "recordings" / "h100"


@pytest.fixture
def measured(monkeypatch):
    """The script that measured, and that reports."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import validate_gpu

    return validate_gpu


def test_batches_take_what_their_kernels_take(measured):
    run = measured.run_of(RUNS, "fit")
    took = (run["spans"][:, 1] - run["spans"][:, 0]).sum()
    kernels = measured.optsched.get_clock(measured.KERNELS)
    assert took == pytest.approx(measured.seconds_of(kernels, run["sums"]), rel=0.04)
    assert measured.fitted(run).mean_error < 0.03


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("at", "off"), [(0, 1), (1, 6), (2, 5), (3, 3)])
def test_mean_latencies_are_those_predicted_at_the_speed_of_the_run(measured, seed, at, off):
    """Within so many percent, for vLLM and for each of our schedulers."""
    fit = measured.fitted(measured.run_of(RUNS, "fit")).clock
    run = measured.run_of(RUNS, f"seed-{seed}-{at}")
    mean, *_, predicted = measured.row_of(run, measured.KINDS[at][-1], fit, fit)
    assert abs(predicted / mean - 1) < off / 100


def test_the_page_has_what_was_measured(measured, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "evidence.md"
    again = tmp_path / "page.md"
    again.write_text(page.read_text("utf-8"), encoding="utf-8")
    measured.report(RUNS, again)
    assert again.read_text("utf-8") == page.read_text("utf-8")
