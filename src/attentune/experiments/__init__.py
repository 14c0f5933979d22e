"""Experiments of many runs.

`comparison/` runs every method on every task with every seed; `search/` searches hyper-parameters; `execution/` runs
both in worker processes.
"""
