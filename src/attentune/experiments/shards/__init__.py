"""Predicts many rows in shards: each is written whole or not at all, and skipped once it is there.

Start reading at `plan` (which rows are in which shard, `shards.json`), then `task` (one shard) and `driver` (all of
them, on an executor).
"""
