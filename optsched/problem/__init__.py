"""What is asked of a scheduler, and what was done."""
