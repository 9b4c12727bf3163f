"""The scheduler of vLLM on a clock: orders, plans, prefix caching, learned outputs."""
