"""Orders and plans of optsched inside a real vLLM; imports vLLM when a scheduler is asked for.

Name one of four classes when the server starts: `OrderedScheduler` and `PlannedScheduler`, and
`OrderedAsyncScheduler` and `PlannedAsyncScheduler` for asynchronous scheduling, vLLM's default. All
set the priority of a request by an order, and again when it is preempted. The planned ones admit a
request only if none is expected to be preempted. Nothing else of vLLM's scheduler changes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from optsched.errors import OptschedError
from optsched.vllm.foresight import Foresight as Foresight
from optsched.vllm.foresight import Outlook as Outlook
from optsched.vllm.scheduler import scheduler_class
from optsched.vllm.settings import Settings as Settings

_VERSIONS = ("0.33.0", "0.32.0")  # against whose recorded batches optsched is tested
_CLASSES = {
    "OrderedScheduler": ("vllm.v1.core.sched.scheduler", "Scheduler", False),
    "PlannedScheduler": ("vllm.v1.core.sched.scheduler", "Scheduler", True),
    "OrderedAsyncScheduler": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler", False),
    "PlannedAsyncScheduler": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler", True),
}
_METHODS = ("schedule", "add_request", "_preempt_request", "_free_request")


def __getattr__(name: str) -> Any:
    """Make a scheduler class when it is first asked for."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, base_name, planned = _CLASSES[name]
    supported = " or ".join(_VERSIONS)
    try:
        version = import_module("vllm").__version__
    except ImportError as error:
        raise OptschedError(
            f"optsched.vllm.{name} needs vLLM, which cannot be imported here ({error}); install "
            f"version {supported}"
        ) from None
    if version.partition("+")[0] not in _VERSIONS:
        raise OptschedError(
            f"optsched.vllm.{name} is tested with vLLM {supported}, but this is {version}, whose "
            "scheduler may decide otherwise; install one of these versions, or start without "
            "--scheduler-cls"
        )
    try:
        base = getattr(import_module(module), base_name)
        missing = [method for method in _METHODS if not hasattr(base, method)]
    except (ImportError, AttributeError):
        missing = [f"{module}.{base_name}"]
    if missing:
        raise OptschedError(
            f"vLLM {version} has a scheduler with another interface, without {missing[0]}; "
            f"optsched.vllm works with version {supported}"
        )
    globals()[name] = scheduler_class(name, base, planned)
    return globals()[name]
