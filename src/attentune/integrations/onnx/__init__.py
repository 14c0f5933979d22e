"""Runs as ONNX graphs that serve without PyTorch. Start with `export.export_run`."""
