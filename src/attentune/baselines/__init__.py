"""Simple reference models: what a run must beat to be worth its cost.

`registry` names them: the majority class, TF-IDF with a linear model, and linear models on the vectors of a frozen
encoder. All are `linear.Baseline`: fit, logits, save.
"""
