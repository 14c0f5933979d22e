"""Statistics on plain numbers (numpy and scipy only): intervals, paired tests, corrections, power, verdicts.

Start with `compare`: from the scores of runs to verdicts.
"""
