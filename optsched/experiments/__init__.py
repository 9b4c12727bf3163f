"""Experiments that are made of many cells and can be resumed: sweeps and regret."""
