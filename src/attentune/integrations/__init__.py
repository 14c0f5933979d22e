"""Integrations with other libraries and formats, independent of each other.

`sklearn` (estimators), `hf_trainer` (the Trainer of transformers), `transformers` (folders that it
loads without Attentune), `onnx` (serving without PyTorch).
"""
