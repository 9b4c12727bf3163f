"""What the operator of a server needs beyond the papers; the core never imports it."""

from optsched._internal.rooms import extend

extend("policy", vllm="optsched.serving.engines.policy:VLLM")
extend("policy class", VllmPolicy="optsched.serving.engines.policy:VllmPolicy")
extend("runner", vllm="optsched.serving.engines.running:RUNNER")
extend(
    "report",
    **{
        name: f"optsched.serving.capacity.plots:{name}"
        for name in ("capacity_page", "capacity_table", "plot_attainment", "plot_growth")
    },
)
