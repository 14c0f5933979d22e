"""Metrics by name (`metrics`), their intervals, calibration of probabilities, and texts that belong to no class."""
