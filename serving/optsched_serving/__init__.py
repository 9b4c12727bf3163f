"""What the operator of a server needs beyond the papers; the toolkit never imports it."""

from optsched._internal.rooms import extend

extend(
    "public",
    capacity="optsched_serving.capacity.capacity:capacity",
    Slo="optsched_serving.capacity.slo:Slo",
)
extend("policy", vllm="optsched_serving.engines.policy:VLLM")
extend("policy class", VllmPolicy="optsched_serving.engines.policy:VllmPolicy")
extend("served", read_served="optsched_serving.serve:read_served")
extend("slo", Goodput="optsched_serving.capacity.goodput:Goodput")
extend("runner", vllm="optsched_serving.engines.running:RUNNER")
extend(
    "report",
    **{
        name: f"optsched_serving.capacity.plots:{name}"
        for name in ("capacity_page", "capacity_table", "plot_attainment", "plot_growth")
    },
)
