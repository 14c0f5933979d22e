"""What `attentune doctor` finds in a data set: leaks, contradictory labels, truncated texts, minimum detectable gaps.

Start with `doctor.examine`.
"""
