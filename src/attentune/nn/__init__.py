"""Tensors in, tensors out. Imports torch only.

Shape suffixes: B texts, T tokens, D features, L layers, C classes. A mask is boolean, True at what counts.
"""
