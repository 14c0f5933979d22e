"""Integrations with other libraries and formats, independent of each other.

`sklearn` (estimators), `hf_trainer` (the Trainer of transformers), `hub` (folders that transformers loads without
Attentune), `onnx` (serving without PyTorch).
"""
