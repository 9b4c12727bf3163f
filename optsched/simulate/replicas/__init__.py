"""Several workers, each on its own: a router sends requests, and a policy admits them."""
