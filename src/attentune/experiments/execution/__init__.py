"""Executes the runs of a comparison or search: a queue, worker processes and their scheduler."""
