"""Faster CPU implementations of operations that PyTorch also has: encoder layers (`layers`), attention, dropout, AdamW.

`native` compiles the C sources in `c/` once for the processor at hand and `kernels` calls them. Start with `layers`.
Without a compiler the plain PyTorch operations are used instead.
"""
