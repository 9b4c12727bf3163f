"""What a vLLM server is configured with: `optsched.vllm.PlannedScheduler` and its siblings."""

from __future__ import annotations

from optsched.serving import plugin as _plugin
from optsched.serving.plugin import plugin as plugin


def __getattr__(name: str) -> object:
    """Return a name of `optsched.serving.plugin`."""
    return getattr(_plugin, name)
