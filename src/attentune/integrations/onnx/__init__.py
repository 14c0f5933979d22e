"""Export runs as ONNX graphs, which can be served without PyTorch.

Start with `export.export_run`; `graph` exports the model, and `checking` compares the outputs with those of PyTorch.
"""
