"""Experiments of many runs, and predictions of many rows.

`comparison/` runs every method on every task with every seed; `search/` searches hyper-parameters; `shards/` predicts
many rows; `execution/` executes all of them in worker processes.
"""
