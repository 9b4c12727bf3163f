"""Orders and plans of optsched inside a real vLLM; imports vLLM when a scheduler is asked for.

Name one of four classes when the server starts: `OrderedScheduler` and `PlannedScheduler`, and
`OrderedAsyncScheduler` and `PlannedAsyncScheduler` for asynchronous scheduling, vLLM's default. All
set the priority of a request by an order, and again when it is preempted. The planned ones admit a
request only if none is expected to be preempted. Nothing else of vLLM's scheduler changes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from optsched.errors import OptschedError
from optsched.serving.plugin.watch import LOG

if TYPE_CHECKING:
    from optsched.serving.plugin.plan import Foresight as Foresight
    from optsched.serving.plugin.plan import Outlook as Outlook
    from optsched.serving.plugin.settings import Settings as Settings

_VERSIONS = ("0.33.0", "0.32.0")  # against whose recorded batches optsched is tested
_SUPPORTED = " or ".join(_VERSIONS)
_CLASSES = {
    "OrderedScheduler": ("vllm.v1.core.sched.scheduler", "Scheduler", False),
    "PlannedScheduler": ("vllm.v1.core.sched.scheduler", "Scheduler", True),
    "OrderedAsyncScheduler": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler", False),
    "PlannedAsyncScheduler": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler", True),
}
#: The rest, and where it is: vLLM's processes import this module whether they need it or not.
_PARTS = {"Foresight": "plan", "Outlook": "plan", "Settings": "settings"}
_METHODS = ("schedule", "add_request", "_preempt_request", "_free_request")


def __getattr__(name: str) -> Any:
    """Make a scheduler class when it is first asked for."""
    if name in _PARTS:
        return getattr(import_module(f"{__name__}.{_PARTS[name]}"), name)
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if wrong := _wrong_version(name):
        raise OptschedError(wrong)
    module, base_name, planned = _CLASSES[name]
    try:
        base = getattr(import_module(module), base_name)
        missing = [method for method in _METHODS if not hasattr(base, method)]
    except (ImportError, AttributeError):
        missing = [f"{module}.{base_name}"]
    if missing:
        raise OptschedError(
            f"vLLM has a scheduler with another interface, without {missing[0]}; optsched.vllm "
            f"works with version {_SUPPORTED}"
        )
    from optsched.serving.plugin.scheduler import scheduler_class

    globals()[name] = scheduler_class(name, base, planned)
    return globals()[name]


def _wrong_version(name: str) -> str:
    """Return why a class cannot be had in this environment, nothing if it can."""
    try:
        version = import_module("vllm").__version__
    except ImportError as error:
        return (
            f"optsched.vllm.{name} needs vLLM, which cannot be imported here ({error}); install "
            f"version {_SUPPORTED}"
        )
    if version.partition("+")[0] in _VERSIONS:
        return ""
    return (
        f"optsched.vllm.{name} is tested with vLLM {_SUPPORTED}, but this is {version}, whose "
        "scheduler may decide otherwise; install one of these versions, or start without "
        "--scheduler-cls"
    )


def plugin() -> None:
    """Say at the start of a server that its version is refused, not once its model is loaded."""
    if wrong := _wrong_version("PlannedAsyncScheduler"):
        LOG.warning("%s", wrong)
