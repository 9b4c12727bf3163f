"""What an order of requests is made of: batches of least F, expected starts."""
