"""The neural network parts: tensors in, tensors out. Imports torch only.

Start with `heads` and `token_gate`; `losses` holds the losses, `cpu/` the compiled layers.

Shape suffixes: B texts, T tokens, D features, L layers, C classes. Masks are boolean, True at tokens that count.
"""
