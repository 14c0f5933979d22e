"""Explanations of predictions: one importance score per word.

Start with `texts.explain_texts`; the methods themselves are in `attentune.attribution`. `faithfulness/` measures how
faithful explanations are to the model.
"""
