"""Statistics on plain numbers (numpy, scipy): intervals, paired tests, corrections, power, verdicts.

Start with `compare`: from the scores of runs to verdicts.
"""
