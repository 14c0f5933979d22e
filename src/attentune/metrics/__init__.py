"""Metrics by name (`metrics`), each example's contribution to them (`per_example`), and probability calibration."""
