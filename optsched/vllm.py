"""What a vLLM server is configured with: `optsched.vllm.PlannedScheduler` and its siblings."""

from __future__ import annotations

from optsched._internal.rooms import elsewhere
from optsched.errors import OptschedError

try:
    from optsched_serving import plugin as _plugin
except ModuleNotFoundError as error:
    raise OptschedError(elsewhere("vllm")) from error
plugin = _plugin.plugin


def __getattr__(name: str) -> object:
    """Return a name of `optsched_serving.plugin`."""
    return getattr(_plugin, name)
