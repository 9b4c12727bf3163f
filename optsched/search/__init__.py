"""Search for good schedules."""
