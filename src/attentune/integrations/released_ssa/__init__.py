"""Compatibility with the program that the authors of SSA released: its flags, checkpoints and result files.

Start with `program` (`attentune run-ssa`) or `convert` (`attentune import-ssa`).
"""
