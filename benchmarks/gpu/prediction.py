"""Speed of prediction against transformers' pipeline, and of explanations on a GPU against the CPU."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attentune.data.dataset import TextRows
from attentune.explain.scorer import Settings
from attentune.explain.texts import explain_rows
from attentune.inference.predictor import ModelPredictor, Predictor, predict_rows
from attentune.metrics.metrics import predictions_of
from attentune.models.precision import has_fast_bf16
from attentune.nn.compiled.memory import forget_peak_memory, peak_memory_bytes
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from benchmarks.common import lines_of
from benchmarks.gpu.workload import Part, Workload, no_tf32, synchronize
from benchmarks.speed.contenders import pipeline_labels

Labels = Callable[[TextRows], np.ndarray]
METHODS = ("integrated-gradients", "leave-one-out", "gradient")
# Texts that may be predicted otherwise than by the pipeline in float32: in half precision those near the boundary.
_FP32_SHARE, _HALF_SHARE = 0.002, 0.05
# Scores of explanations in float32, on the GPU and on the CPU.
SCORE_TOLERANCE = 1e-3
_CPU_TEXTS = 8


def trained_run(work: Workload, texts: str, name: str) -> Path:
    """Train `bert` for one epoch; return the run folder."""
    folder = work.folder / name
    config = work.config(texts, work.small_encoder, folder, training__num_train_epochs=1)
    train(config, display=ProgressDisplay(quiet=True), with_baselines=False)
    return folder


def prediction(work: Workload) -> Iterator[Part]:
    """Time predictions from texts to labels, for each kind of texts."""
    return (_prediction(work, texts) for texts in work.texts)


def _prediction(work: Workload, texts: str) -> Part:
    no_tf32()
    run = trained_run(work, texts, f"predict-{texts}")
    rows = work.rows_of(texts)
    bf16 = torch.bfloat16 if has_fast_bf16(work.device) else torch.float32
    saved = _model(run)
    half = f"pipeline, {str(bf16).removeprefix('torch.')}"
    contenders: dict[str, Labels] = {"pipeline": pipeline_labels(saved, device=work.device)}
    for size in (32, 128, 512) if work.is_measurement else (8,):
        labels = pipeline_labels(saved, device=work.device, dtype=bf16, batch_size=size)
        contenders[f"{half}, {size} texts at a time"] = labels
    for precision in ("fp32", "bf16"):
        contenders[f"attentune {precision}"] = _ours(run, precision)
    expected = contenders["pipeline"](rows)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    problems = []
    for name, labels in contenders.items():  # the first call does not count
        differing = float((labels(rows) != expected).mean())
        runs[name].append({"differing_share": differing})
        if differing > (_HALF_SHARE if "bf" in name else _FP32_SHARE):
            problems.append(f"{name}: predicts {differing:.1%} of the texts otherwise than the pipeline in float32")
    for _ in range(work.repeats):
        for name, labels in contenders.items():
            runs[name].append(_timed(work.device, partial(labels, rows)))
    seconds = {name: statistics.median(run["seconds"] for run in own[1:]) for name, own in runs.items()}
    best = min(value for name, value in seconds.items() if name.startswith("pipeline"))
    made = {
        name: {
            "texts_per_second": round(len(rows) / seconds[name]),
            "vs_pipeline": round(seconds["pipeline"] / seconds[name], 2),
            "vs_pipeline_at_its_best": round(best / seconds[name], 2),
            "peak_memory_mib": round(max(run["peak_memory_bytes"] for run in own[1:]) / 2**20),
            "differing_share": round(own[0]["differing_share"], 4),
        }
        for name, own in runs.items()
    }
    facts = {"rows": len(rows), "contenders": made, "runs": runs}
    return Part(f"prediction, {texts}", facts, lines_of(made, tuple(made["pipeline"])), problems)


def _model(run: Path, *, use_cpu: bool = False) -> ModelPredictor:
    """Load a run of its own, as predictions move the model to their device."""
    saved = Predictor.load(run).single_model("benchmarks.gpu")
    if not use_cpu:
        return saved
    return replace(saved, config=replace(saved.config, training=replace(saved.config.training, use_cpu=True)))


def _ours(run: Path, precision: str) -> Labels:
    saved = _model(run)
    return lambda rows: predictions_of(predict_rows(saved, rows, precision=precision), saved.label_space)


def _timed(device: torch.device, work: Callable[[], object]) -> dict[str, Any]:
    forget_peak_memory()
    began = time.perf_counter()
    work()
    synchronize(device)
    return {"seconds": time.perf_counter() - began, "peak_memory_bytes": peak_memory_bytes(device)}


def explanations(work: Workload) -> list[Part]:
    """Time explanations in float32 on the device and on the CPU, and compare their scores."""
    no_tf32()
    texts = work.texts[0]
    run = trained_run(work, texts, "explain")
    many, few = work.rows_of(texts, 64 if work.is_measurement else 4), work.rows_of(texts, _CPU_TEXTS)
    few = few if len(few) < len(many) else many
    settings = Settings(seed=0, steps=50 if work.is_measurement else 4)
    problems, made = [], {}
    for method in METHODS:
        seconds, scores = {}, {}
        for place, rows, saved in (("device", many, _model(run)), ("cpu", few, _model(run, use_cpu=True))):
            explain = partial(explain_rows, saved, rows, methods=[method], settings=settings, precision="fp32")
            found = explain()[method]
            seconds[place] = _timed(work.device, explain)["seconds"] / len(rows)
            scores[place] = [np.array([piece.score for piece in one.pieces]) for one in found[: len(few)]]
        pairs = list(zip(scores["device"], scores["cpu"], strict=True))
        difference = max(float(np.abs(ours - theirs).max(initial=0.0)) for ours, theirs in pairs)
        made[method] = {
            "texts_per_second": round(1 / seconds["device"], 2),
            "texts_per_second_on_the_cpu": round(1 / seconds["cpu"], 2),
            "ratio": round(seconds["cpu"] / seconds["device"], 2),
            "largest_difference": difference,
        }
        if not difference <= SCORE_TOLERANCE:
            problems.append(f"{method}: scores differ by {difference:.2g} from the CPU's, expected {SCORE_TOLERANCE}")
    facts = {"texts": len(many), "texts_on_the_cpu": len(few), "steps": settings.steps, "methods": made}
    return [Part(f"explanations, {texts}", facts, lines_of(made, tuple(made[METHODS[0]])), problems)]
