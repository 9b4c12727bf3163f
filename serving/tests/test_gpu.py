"""A vLLM that served on an H100 and an H200, and what optsched says of the same requests."""

from pathlib import Path

import numpy as np
import pytest

RUNS = Path(__file__).parent / "recordings"
PAGES = Path(__file__).parents[1] / "docs"


def test_batches_take_what_their_kernels_take(measured):
    run = measured.run_of(RUNS / "h100", "fit")
    took = (run["spans"][:, 1] - run["spans"][:, 0]).sum()
    kernels = measured.optsched.get_clock(measured.KERNELS)
    assert took == pytest.approx(measured.seconds_of(kernels, run["sums"]), rel=0.04)
    assert measured.fitted(run).mean_error < 0.03


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("at", "off"), [(0, 1), (1, 6), (2, 5), (3, 3)])
def test_mean_latencies_are_those_predicted_at_the_speed_of_the_run(measured, seed, at, off):
    """Within so many percent, for vLLM and for each of our schedulers."""
    fit = measured.fitted(measured.run_of(RUNS / "h100", "fit")).clock
    run = measured.run_of(RUNS / "h100", f"seed-{seed}-{at}")
    mean, *_, predicted = measured.row_of(
        run, measured.KINDS[at][-1], fit, fit, measured.options_of("sync")
    )
    assert abs(predicted / mean - 1) < off / 100


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_a_batch_in_order_and_planned_ends_sooner_in_as_many_batches_as_predicted(measured, seed):
    runs = {at: measured.run_of(RUNS / "h200", f"batch-{seed}-{at}") for at in (0, 2)}
    assert runs[2]["last"].max() < runs[0]["last"].max()
    clock = measured.fitted(measured.run_of(RUNS / "h200", "fit")).clock
    memory, count = measured.BATCHES[seed - 1]
    for at, run in runs.items():
        requests = measured.batch_of(seed, memory, count, in_order=at > 0)
        assert run["requests"].tolist() == [list(map(float, each)) for each in requests]
        options, policy = measured.options_of("async", memory), measured.KINDS[at // 2][-1]
        assert len(measured.ours(options, requests, policy, clock).statistics) == len(run["spans"])


def test_the_order_of_the_how_to_is_that_measured(measured):
    """Without outputs that are long beside the least time there is."""
    code = (PAGES / "vllm.md").read_text("utf-8").split("## Batches offline")[1]
    code = code.split("params =")[0].split("    import numpy as np\n")[1]
    taken = [
        line.strip() for line in code.splitlines() if line[4:8] in {"area", "by_l", "late", "orde"}
    ]
    instance = measured.optsched.family("chat-and-summaries", n=500, seed=1, memory=10**5)
    instance = instance.replace(memory=instance.peaks.max())  # so that none is long beside it
    known = {"np": np, "lengths": instance.prompts, "outputs": instance.outputs}
    exec("\n".join(taken), known)
    assert len(taken) == 4
    order = measured.short_last(instance)  # which may differ among equally long ones
    assert instance.outputs[known["order"]].tolist() == instance.outputs[order].tolist()
    assert set(known["order"]) == set(order)


@pytest.mark.slow
def test_the_page_has_what_was_measured(measured, tmp_path):
    page = PAGES / "evidence.md"
    again = tmp_path / "page.md"
    again.write_text(page.read_text("utf-8"), encoding="utf-8")
    measured.report(RUNS, again)
    assert again.read_text("utf-8") == page.read_text("utf-8")
