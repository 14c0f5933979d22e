"""Explanations of predictions: one importance score per word.

Start with `texts.explain_texts`. `methods` has the attribution methods by name, `explainer` applies one to rows of a
saved run, and `explanation` maps scores to words.
"""
