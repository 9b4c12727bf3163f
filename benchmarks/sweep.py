"""Speed of a sweep of 1,000 short runs on two processes over one, here and by Dask.

    python benchmarks/sweep.py [rounds]

Everything counts: start of the processes, imports, kernels, writing. Only the cluster of the last
row is there already, as clusters are, and has done a short sweep before. Each round measures all
three side by side; the ratio is that of the shortest times. Results must be equal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import distributed

from optsched import read_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Runs of some 0.05 seconds, each beside the bound of its instance.
CONFIG = """
seeds = 100
bound = true
[[instances]]
family = "chat-and-summaries"
n = [8000, 12000, 16000, 20000, 24000]
load = 0.95
[[policies]]
name = ["sorted-f", "area"]
"""


def seconds(config: Path, out: Path, *options: str) -> float:
    """Time the command line."""
    command = [sys.executable, "-m", "optsched", "sweep", str(config), "--out", str(out), *options]
    began = time.perf_counter()
    subprocess.run([*command, "--quiet"], check=True)
    return time.perf_counter() - began


@contextmanager
def cluster() -> Iterator[list[str]]:
    """Return the options of a cluster, which is gone before any other way is timed."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as local:
        options = ["--executor", "dask", "--address", local.scheduler_address]
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "sweep.toml")
            config.write_text(CONFIG.replace("seeds = 100", "seeds = 2"))
            seconds(config, Path(folder, "out"), *options)
        yield options


WAYS = {
    "one process": lambda: nullcontext(["--jobs", "1"]),
    "two processes": lambda: nullcontext(["--jobs", "2"]),
    "two workers, Dask": cluster,
}


def main(rounds: int = 1) -> None:
    print(f"load of this machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "sweep.toml")
        config.write_text(CONFIG)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(rounds):
            frames = []
            for way, options in WAYS.items():
                out = Path(folder, f"{number} {way}")
                with options() as given:
                    times[way].append(seconds(config, out, *given))
                frames.append(read_sweep(out).drop(columns="seconds"))
            assert len(frames[0]) == 1000
            for frame in frames[1:]:
                assert frame[frames[0].columns].equals(frames[0])
        one = min(times["one process"])
        print(f"{'way':<24}{'seconds':>9}{'speed':>8}")
        for way, taken in times.items():
            print(f"{way:<24}{min(taken):>9.1f}{one / min(taken):>8.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
