"""Explanations of predictions: one score a word.

Start with `texts.explain_texts`; the methods themselves are in `attentune.attribution`. `faithfulness/` measures
whether explanations are true.
"""
