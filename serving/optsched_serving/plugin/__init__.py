"""Orders and plans of optsched inside a real vLLM; imports vLLM when a scheduler is asked for.

`OrderedScheduler` sets priorities; `PlannedScheduler` also admits a request only if none is
expected to be preempted. Nothing else of vLLM's scheduler changes, asynchronous or not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from optsched.errors import OptschedError, nearest

if TYPE_CHECKING:
    from optsched_serving.contract import Config
    from optsched_serving.plugin.plan import Settings as Settings

_VERSIONS = ("0.33.0", "0.32.0")  # against whose recorded batches optsched is tested
_SUPPORTED = " or ".join(_VERSIONS)
_CLASSES = {"OrderedScheduler": False, "PlannedScheduler": True}  # whether it plans
_BASES = (
    ("vllm.v1.core.sched.scheduler", "Scheduler"),
    ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
)
_PREFIX = "optsched.vllm."
_METHODS = ("schedule", "add_request", "_preempt_request", "_free_request", "update_from_output")


def __getattr__(name: str) -> type:
    if name == "Settings":  # vLLM's processes import this module whether they need it or not
        from optsched_serving.plugin.plan import Settings

        return Settings
    title = name.replace("AsyncScheduler", "Scheduler")  # one class serves both modes
    if title not in _CLASSES:
        raise AttributeError(f"optsched.vllm has no class {name!r}: {nearest(name, _CLASSES)}")
    _require_version(name)
    if title not in globals():
        from optsched_serving.plugin.scheduler import scheduler_class

        globals()[title] = scheduler_class(
            title, _CLASSES[title], *(_base(*each) for each in _BASES)
        )
    made: type = globals()[title]
    return made


def _base(module: str, title: str) -> type:
    """Return a scheduler of vLLM, if it has what ours call and replace."""
    try:
        base: type = getattr(import_module(module), title)
        missing = [method for method in _METHODS if not hasattr(base, method)]
    except (ImportError, AttributeError):
        missing = [f"{module}.{title}"]
    if missing:
        raise OptschedError(
            f"vLLM has a scheduler with another interface, without {missing[0]}; optsched.vllm "
            f"works with version {_SUPPORTED}"
        )
    return base


def _require_version(name: str) -> None:
    """Refuse a class where vLLM, or a version that is known, is not installed."""
    try:
        version = import_module("vllm").__version__
    except ImportError as error:
        raise OptschedError(
            f"optsched.vllm.{name} needs vLLM, which cannot be imported here ({error}); install "
            f"version {_SUPPORTED}"
        ) from None
    if version.partition("+")[0] not in _VERSIONS:
        raise OptschedError(
            f"optsched.vllm.{name} is tested with vLLM {_SUPPORTED}, but this is {version}, whose "
            "scheduler may decide otherwise; install one of these versions, or start without "
            "--scheduler-cls"
        )


def plugin() -> None:
    """Let vLLM look at a server's configuration when it is made, before its model is loaded."""
    try:
        kind = import_module("vllm.config").VllmConfig
        made = kind.__post_init__
    except (ImportError, AttributeError):  # the classes say so themselves, to whoever asks for them
        return
    if made.__module__ == __name__:
        return  # a process may load its plugins twice

    def checked(config: Config) -> None:
        made(config)
        named = config.scheduler_config.scheduler_cls
        if isinstance(named, str) and named.startswith(_PREFIX):
            named = __getattr__(named.removeprefix(_PREFIX))
        if hasattr(named, "settings_of"):
            named.settings_of(config)

    kind.__post_init__ = checked
