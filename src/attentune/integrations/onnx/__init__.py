"""Export runs as ONNX graphs, which serve without PyTorch.

Start with `export.export_run`; `graph` traces the model, `checking` compares the outputs with PyTorch's.
"""
