"""What every room may use: arrays, compiled kernels, files, JSON, jobs, rules about requests."""
