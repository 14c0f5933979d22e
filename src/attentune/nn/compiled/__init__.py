"""Faster CPU implementations of operations that PyTorch also has: BERT layers (`fused_layer`), attention, dropout.

`native` compiles the C sources in `c/` once for the processor at hand and `kernels` calls them. Start with
`fused_layer`; `fused_pre_norm` has ModernBERT's. Without a compiler the plain PyTorch operations are used instead.
"""
