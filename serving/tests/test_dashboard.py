"""The Grafana dashboard's queries, asked of a Prometheus that reads a scheduler's metrics."""

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

DASHBOARD = Path(__file__).parents[2] / "serving/docs/optsched-grafana.json"
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs: [{{job_name: vllm, static_configs: [{{targets: ["127.0.0.1:{}"]}}]}}]
"""
#: A server: metrics of vLLM that the dashboard asks for, and ours.
SERVER = """
import sys, time
from types import SimpleNamespace
from prometheus_client import Counter, Histogram
from optsched_serving.plugin.scheduler import Watch
names = ["vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds"]
times = [Histogram(name, name) for name in names]
preempted, watch = Counter("vllm:num_preemptions", "preemptions"), Watch(0)
watch.serve(int(sys.argv[1]))
while True:
    watch.waits("a", 1.0)
    watch.admitted(SimpleNamespace(request_id="a", num_tokens=10), 4)
    watch.tell(time.time(), 1, 1)
    for each in times:
        each.observe(0.1)
    time.sleep(0.1)
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def test_every_query_of_the_dashboard_is_answered_by_a_prometheus(tmp_path):
    pytest.importorskip("prometheus_client", reason="the client of Prometheus is not installed")
    if (prometheus := shutil.which("prometheus")) is None:
        pytest.skip("there is no Prometheus")
    page, port = free_port(), free_port()
    (tmp_path / "prometheus.yml").write_text(CONFIG.format(page))
    told = [
        "--config.file",
        "prometheus.yml",
        "--storage.tsdb.path",
        "data",
        "--web.listen-address",
        f"127.0.0.1:{port}",
    ]
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    left = {target["expr"] for panel in panels for target in panel["targets"]}
    with (
        subprocess.Popen([sys.executable, "-c", SERVER, str(page)]) as server,
        subprocess.Popen([prometheus, *told], cwd=tmp_path, stderr=subprocess.DEVNULL) as asked,
    ):
        try:
            for _ in range(120):
                left = {expression for expression in left if not answer(port, expression)}
                if not left:
                    break
                time.sleep(1)
        finally:
            server.kill()
            asked.kill()
    assert not left


def answer(port, expression):
    """Return what Prometheus finds now."""
    asked = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{asked}") as found:
            return json.load(found)["data"]["result"]
    except OSError:  # it is still starting
        return []
