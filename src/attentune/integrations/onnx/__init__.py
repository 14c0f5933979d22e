"""Export runs as ONNX graphs, which can be served without PyTorch.

Start with `export.export_run`; `checking` writes the graph and compares its outputs with those of PyTorch.
"""
