"""Processor time of OpenVINO, onnxruntime and `attentune.predict` on the same rows, in one thread.

    python -m benchmarks.speed.openvino_speed RUN [--rows 200] [--repeats 5]

OpenVINO (`pip install openvino`; not in any extra) reads the graph that `attentune export` writes. The rows are the
first of the run's validation rows, sorted by length, in batches of 32 and one at a time. Repeats measure every
contender in turn, and figures are medians: processor time depends less on what else the machine does. Writes
results/bench/openvino.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import RECORDS, command_of, table, write_record

TARGET = RECORDS / "openvino.json"
BATCHES = (1, 32)
PRECISIONS = ("f32", "bf16")
Answer = Callable[[list[str]], np.ndarray]


def graph_contenders(folder: Path) -> dict[str, Answer]:
    """Return functions from texts to logits: onnxruntime, and OpenVINO in each precision, all in one thread."""
    import onnxruntime
    import openvino
    from tokenizers import Tokenizer

    inputs = json.loads((folder / "export.json").read_text(encoding="utf-8"))["inputs"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    file = str(folder / "onnx" / "model.onnx")

    def encoded(texts: list[str]) -> dict[str, np.ndarray]:
        rows = tokenizer.encode_batch(texts)
        return {name: np.array([getattr(row, columns[name]) for row in rows], dtype=np.int64) for name in inputs}

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    made: dict[str, Answer] = {"onnxruntime": lambda texts: session.run(None, encoded(texts))[0]}
    for precision in PRECISIONS:
        settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": precision}
        model = openvino.Core().compile_model(file, "CPU", settings)
        made[f"OpenVINO, {precision}"] = lambda texts, model=model: model(encoded(texts))[0]
    return made


def measured(contenders: dict[str, Answer], texts: Sequence[str], size: int, repeats: int) -> list[dict[str, Any]]:
    """Measure each contender on these texts, sorted by length, in batches of `size`."""
    parts = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    logits = {}
    for number in range(repeats + 1):
        for name, answer in contenders.items():
            start = time.process_time()
            logits[name] = np.concatenate([answer(part) for part in parts])
            if number:  # the first one warms up
                seconds[name].append(time.process_time() - start)
    wanted = logits["onnxruntime"]
    return [
        {
            "contender": name,
            "batch": size,
            "processor_s": round(statistics.median(seconds[name]), 3),
            "max_difference": float(np.abs(logits[name] - wanted).max()),
            "predicted_alike": float((logits[name].argmax(axis=1) == wanted.argmax(axis=1)).mean()),
        }
        for name in contenders
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parsed = parser.parse_args()

    import torch

    from attentune.data.dataset import TextRows
    from attentune.inference.predictor import Predictor, predict_rows
    from attentune.integrations.onnx.export import export_run

    torch.set_num_threads(1)
    saved = Predictor.load(parsed.run)
    rows = saved.data(None, ("validation",)).splits["validation"]
    texts = sorted(rows.texts[: parsed.rows], key=len)

    def by_attentune(precision: str) -> Answer:
        def answer(part: list[str]) -> np.ndarray:
            rows = TextRows(tuple(map(str, range(len(part)))), tuple(part), None, None, "texts")
            return predict_rows(saved, rows, precision=precision)

        return answer

    with tempfile.TemporaryDirectory() as temporary:
        export_run(parsed.run, Path(temporary) / "served")
        contenders = graph_contenders(Path(temporary) / "served")
        contenders |= {f"attentune, {name}": by_attentune(name) for name in ("fp32", "bf16")}
        found = [row for size in BATCHES for row in measured(contenders, texts, size, parsed.repeats)]
    command = command_of("benchmarks.speed.openvino_speed", ["RUN"])
    about = {"model": saved.config.model.name_or_path, "task": saved.config.data.task, "rows": len(texts)}
    libraries = {"openvino": version("openvino"), "onnxruntime": version("onnxruntime")}
    write_record(TARGET, {"command": command, **about, "libraries": libraries, "found": found})
    print("\n".join(table(list(found[0]), [[str(value) for value in row.values()] for row in found])))


if __name__ == "__main__":
    main()
