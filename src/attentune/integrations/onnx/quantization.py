"""Eight-bit weights for a graph."""

from __future__ import annotations

import logging
from pathlib import Path

from attentune.io.files import storage_errors


def quantize_int8(source: Path, target: Path) -> None:
    """Write a graph whose constant matrices are int8; onnxruntime scales activations as it goes (dynamic).

    Args:
        source: a graph in float32.
        target: where to.

    Raises:
        StorageError: the file could not be written.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(source)
    # The exporter notes the shapes of weights too; the quantiser turns some round and trips over the old note. Those
    # that it needs it infers.
    del graph.graph.value_info[:]
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises to optimise first, which PyTorch's exporter has done
    try:
        with storage_errors(target):
            # One scale a column: a single large weight then does not coarsen the whole matrix.
            quantize_dynamic(graph, target, weight_type=QuantType.QInt8, per_channel=True)
    finally:
        root.setLevel(level)
