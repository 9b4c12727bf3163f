"""One worker whose batches take seconds."""
