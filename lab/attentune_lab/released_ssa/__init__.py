"""Compatibility with the program released by the authors of SSA: its flags, checkpoints and result files.

Start with `program` (`attentune run-ssa`) or `convert` (`attentune import-ssa`).
"""
