"""What a server is started with: settings, configurations, metrics, and what the how-to says."""

import json
import logging
import os
import re
import socket
import sys
import textwrap
import tomllib
from dataclasses import fields
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import fake_vllm
import fresh
import pytest
from fake_vllm import CASE, made
from tabled import tabled

import optsched
import optsched_serving.plugin as inside
from optsched import OptschedError
from optsched_serving.plugin import Settings, scheduler

pytestmark = pytest.mark.usefixtures("vllm")


@tabled(
    ("PlannedScheduler", {"factor": None}, "factor is None, but must be a finite number"),
    ("OrderedScheduler", {"patience": None}, "patience is None, but must be a number above 0"),
)
def test_settings_that_are_wrong_are_refused_in_one_sentence(name, given, words):
    with pytest.raises(OptschedError, match=words) as error:
        made(name, extra=given)
    assert "\n" not in str(error.value)


def test_settings_that_are_no_object_are_refused_in_one_sentence():
    from optsched_serving.plugin.plan import Settings

    with pytest.raises(OptschedError, match=r"additional_config.optsched is None, but must be an"):
        Settings().updated(None)


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_a_setting_of_any_type_is_taken_or_refused_before_a_model_is_loaded(name):
    refused = []
    for value in (None, True, 0, 3, -1, 2.5, "", "x", "load", [], [1], {}, {"a": 1}, {"a": None}):
        config, _ = fake_vllm.config(CASE, {name: value})
        try:
            inside.PlannedScheduler.settings_of(config)
        except OptschedError as error:
            refused.append(str(error))
    assert len(refused) >= 8
    assert not any("\n" in each for each in refused)


def test_no_vllm_and_another_interface_are_said_in_one_sentence(vllm, monkeypatch):
    class Other:
        schedule = add_request = _free_request = None

    vllm(scheduler=Other, version="0.32.0")
    with pytest.raises(
        OptschedError, match=r"vLLM has a .* without _preempt_request; .*0.33.0 or 0.32.0"
    ):
        inside.PlannedScheduler  # noqa: B018
    vllm(version="0.30.0")
    with pytest.raises(
        OptschedError,
        match=r"tested with vLLM 0.33.0 or 0.32.0, but this is 0.30.0.*without --scheduler-cls",
    ):
        inside.PlannedScheduler  # noqa: B018
    vllm(version="0.33.0+cu129")
    assert inside.PlannedScheduler.__name__ == "PlannedScheduler"
    monkeypatch.delitem(vars(inside), "PlannedScheduler")
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.scheduler", None)
    with pytest.raises(OptschedError, match=r"without vllm.v1.core.sched.scheduler.Scheduler"):
        inside.PlannedScheduler  # noqa: B018
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(OptschedError, match=r"needs vLLM, which cannot be imported .* 0.33.0"):
        inside.PlannedScheduler  # noqa: B018
    with pytest.raises(
        AttributeError, match="no class 'PlanedScheduler': did you mean 'PlannedScheduler'"
    ):
        inside.PlanedScheduler  # noqa: B018


@pytest.fixture
def plugin():
    """Return the plugin as vLLM loads it."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    (entry,) = project["project"]["entry-points"]["vllm.general_plugins"].values()
    return EntryPoint("optsched", entry, "vllm.general_plugins").load()


def configured(named, **more):
    """Make the configuration of a server that names a class."""
    config, _ = fake_vllm.config(CASE)
    parts = vars(config) | {"scheduler_config": SimpleNamespace(scheduler_cls=named)} | more
    return sys.modules["vllm.config"].VllmConfig(**parts)


def test_a_configuration_is_looked_at_before_a_model_is_loaded(vllm, plugin):
    plugin()
    plugin()  # as vLLM may
    for fine in (None, "vllm.Other", "optsched.vllm.PlannedScheduler", inside.OrderedScheduler):
        configured(fine)
    for named, more, error, words in (
        ("optsched.vllm.PlanedScheduler", {}, AttributeError, "did you mean 'PlannedScheduler'"),
        (
            *("optsched.vllm.PlannedScheduler", {"additional_config": {"optsched": {"ordr": 1}}}),
            *(OptschedError, "no setting 'ordr': did you mean 'order'"),
        ),
        (
            *(inside.OrderedScheduler, {"additional_config": {"optsched": {"clock": "llama"}}}),
            *(OptschedError, "clock"),
        ),
        (inside.OrderedScheduler, {"diffusion_config": "one"}, OptschedError, "a diffusion model"),
    ):
        with pytest.raises(error, match=words):
            configured(named, **more)
    vllm(version="0.34.0")
    plugin()
    configured(None)
    with pytest.raises(OptschedError, match=r"tested with vLLM 0.33.0 or 0.32.0, but .* 0.34.0"):
        configured("optsched.vllm.PlannedScheduler")


def test_the_plugin_is_silent_where_vllm_has_no_such_configuration(plugin, monkeypatch):
    monkeypatch.delattr(sys.modules["vllm.config"], "VllmConfig")
    plugin()
    monkeypatch.setitem(sys.modules, "vllm.config", None)
    plugin()


def test_what_is_active_is_said_at_the_start(caplog):
    with caplog.at_level(logging.INFO, logger="vllm.optsched"):
        made("PlannedAsyncScheduler", extra={"order": None, "room": 0.7})
    (line,) = caplog.messages
    begun = (
        f"optsched.vllm.PlannedScheduler {optsched.__version__} in vLLM 0.33.0, asynchronous: "
        "order off (vLLM's own is asked for), plan on; Settings(order=None, "
    )
    assert line.startswith(begun)
    assert "room=0.7" in line


def test_the_how_to_names_all_settings_and_its_examples_work():
    page = (Path(__file__).parents[2] / "serving/docs/vllm.md").read_text("utf-8")
    table = page.partition("| setting |")[2].partition("A class of your own")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"\w+", row)]
    assert sorted(named) == sorted(field.name for field in fields(Settings))
    for text in re.findall(r"'(\{\"optsched\": .*?\})'", page):
        Settings().updated(json.loads(text)["optsched"])
    code = re.search(r"( {4}import optsched.vllm\n.*?)\n\S", page, re.DOTALL)
    known = {}
    exec(textwrap.dedent(code[1]), known)
    assert known["ShortPromptsFirst"].settings.policy().rule == "prefix"


def test_the_plugin_loads_nothing_that_only_schedulers_need():
    assert fresh.imports("import optsched.vllm", "numba", "llvmlite", "pandas", "vllm") == set()


COUNTED = """
from types import SimpleNamespace
from optsched_serving.plugin.scheduler import Watch
for engine in (0, 1):
    watch = Watch(engine)
    for number in range(3 + engine):
        watch.waits(str(number), 1.0)
        watch.admitted(SimpleNamespace(request_id=str(number), num_tokens=10), 4)
    watch.completed(30, 20)
    watch.tell(5.0, 7, 2)
"""
SHOWN = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_metrics_of_the_scheduler_are_on_the_page_of_another_process(tmp_path):
    pytest.importorskip("prometheus_client", reason="the client of Prometheus is not installed")
    folder = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    fresh.printed(COUNTED, env=folder)
    page = fresh.printed(SHOWN, env=folder).splitlines()
    for line in (
        'optsched:admitted_total{engine="0"} 3.0',
        'optsched:admitted_total{engine="1"} 4.0',
        'optsched:asked_total{engine="0"} 30.0',
        'optsched:hits_total{engine="0"} 12.0',
        'optsched:forecast_error{engine="0"} 0.5',
        'optsched:waiting{engine="1"} 7.0',
    ):
        assert line in page


def test_metrics_have_a_page_of_their_own_beside_those_of_the_process(monkeypatch):
    pytest.importorskip("prometheus_client", reason="the client of Prometheus is not installed")
    with socket.create_server(("localhost", 0)) as found:
        port = found.getsockname()[1]
    page = fresh.printed(
        f"{COUNTED}\nimport urllib.request\nwatch.serve({port - 1})\n"
        f"print(urllib.request.urlopen('http://localhost:{port}/metrics').read().decode())"
    ).splitlines()
    assert 'optsched:admitted_total{engine="1"} 4.0' in page
    assert any(line.startswith("process_cpu_seconds_total") for line in page)


def test_the_dashboard_asks_for_metrics_that_are_there():
    path = Path(__file__).parents[2] / "serving/docs/optsched-grafana.json"
    panels = json.loads(path.read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"optsched\[:_\](\w+)", target["expr"])
    }
    assert asked == {f"{name}_total" for name in scheduler.COUNTERS} | set(scheduler.GAUGES)
    places = [tuple(panel["gridPos"][side] for side in "xywh") for panel in panels]
    assert len({panel["id"] for panel in panels}) == len(set(places)) == len(panels)
