"""Comparisons (`attentune compare`): every method on every task with every seed.

Start with `runner.compare`; `grid` lists the runs, `records` reads their results.
"""
