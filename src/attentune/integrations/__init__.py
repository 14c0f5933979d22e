"""Attentune in other libraries and formats, each independent of the others.

`sklearn` (estimators), `hf_trainer` (transformers' own Trainer), `hub` (folders that transformers loads without
Attentune), `onnx` (serving without PyTorch), `released_ssa` (flags and checkpoints of the released SSA program).
"""
