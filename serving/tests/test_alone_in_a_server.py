"""The plugin where only vLLM and what it brings are installed: `pip install --no-deps`."""

import json
import socket
import sys

from fresh import printed

#: What vLLM brings and the plugin uses; numba looks for more, and goes on without.
BROUGHT = {"numpy", "numba", "llvmlite", "prometheus_client"}
OURS = {"optsched", "optsched_serving", "fake_vllm", "literal_vllm", "vllm"}
CODE = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ALLOWED:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Block())
sys.path[:0] = FOLDERS
import fake_vllm
import numpy as np
sys.modules |= fake_vllm.modules()
from optsched.vllm import plugin
plugin()
for extra in SETTINGS:
    for name in fake_vllm.NAMES:
        own = {"time": 0.0, "now": lambda self: self.time}
        scheduler = fake_vllm.made(name, extra=extra, **own)
        fake_vllm.serve(scheduler, np.random.default_rng(1))
        print(extra, {*scheduler.off.values()} - {"the class only orders"})
        extra.pop("metrics_port", None)  # which one process has once
"""


def test_it_needs_nothing_but_what_vllm_brings(tmp_path):
    folders = [path for path in sys.path if path.endswith("tests")]
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    settings = (
        {"metrics_port": port, "record": str(tmp_path)},
        {"order": "work", "clock": "llama-3.1-8b-rtx4090", "aging": 80, "trusted": True},
        {"order": "mc-sf", "patience": 0.2, "log_error": 0.4, "dry_run": True},
        {"fair": {"1": 2}},
    )
    given = {"ALLOWED": BROUGHT | OURS, "FOLDERS": folders, "SETTINGS": settings}
    first = "\n".join(f"{name} = {value!r}" for name, value in given.items())
    said = printed(f"{first}\n{CODE}").splitlines()
    assert len(said) > len(settings)
    assert [line for line in said if not line.endswith(" set()")] == []
    lines = next(tmp_path.glob("requests-*.jsonl")).read_text().splitlines()
    assert "output_tokens" in json.loads(lines[-1])
