"""One worker whose batches take one step each."""
