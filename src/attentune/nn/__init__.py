"""The neural network parts: tensors in, tensors out. Imports torch only.

Start with `heads`; `losses` holds the losses, `compiled/` the layers in C.

Shape suffixes: B texts, T tokens, D features, L layers, C classes. Masks are boolean, True at tokens that count.
"""
