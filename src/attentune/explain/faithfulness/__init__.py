"""How faithful explanations are: erasure metrics, sanity checks, synthetic ground truth, cost.

Start with `measure.measure_faithfulness`.
"""
