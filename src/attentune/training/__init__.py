"""Trains one run, from a configuration to a finished run folder: read `run.py` first."""
