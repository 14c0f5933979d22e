"""Faster CPU programs for what PyTorch also computes: BERT layers (`fused_layer`), attention, dropout.

`native` compiles the C sources in `c/` once for the processor at hand and `kernels` calls them. Start with
`fused_layer`. Everything here has a plain PyTorch equivalent that is used where no compiler is found.
"""
