"""A run that fits a baseline instead of fine-tuning an encoder; its run folder has the files of any other run."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from attentune.baselines.base import Baseline
from attentune.baselines.frozen import FrozenEncoder
from attentune.baselines.registry import make_baseline
from attentune.config import to_dict
from attentune.data.dataset import CALIBRATION
from attentune.io.files import storage_errors, sync_file, sync_folder
from attentune.metrics.metrics import score_predictions
from attentune.results import RunResult, versions
from attentune.training.checkpoint import TEMPORARY
from attentune.training.finalize import row_facts, write_results
from attentune.training.inputs import RunInputs
from attentune.training.memory import peak_memory_bytes


def train_baseline(run: Path, name: str, inputs: RunInputs) -> RunResult:
    """Fit a baseline on the training rows, score the other splits, and write the run folder.

    Args:
        run: the run folder.
        name: the baseline's name in the registry.
        inputs: the rows and settings.

    Raises:
        ConfigError: the baseline does not fit the rows.
        StorageError: the disk refused.
    """
    config, data, device = inputs.config, inputs.data, inputs.accelerator.device
    frozen = FrozenEncoder(config.model, config.data.max_length, use_cpu=device.type == "cpu")
    started = time.perf_counter()
    baseline = make_baseline(
        name, encoder=config.model, max_length=config.data.max_length, seed=config.training.seed, frozen=frozen
    )
    baseline.fit(data.splits["train"], data.label_space)
    fitted = time.perf_counter()
    scored_rows = {split: rows for split, rows in data.splits.items() if split not in ("train", CALIBRATION)}
    logits = {split: baseline.logits(rows) for split, rows in scored_rows.items()}
    scores: dict[str, dict[str, float | None]] = {
        split: dict(score_predictions(inputs.metrics, rows.labels, logits[split], data.label_space))
        for split, rows in scored_rows.items()
        if rows.labels is not None and len(rows)
    }
    result = RunResult(
        scores=scores,
        train={
            "seconds": round(fitted - started, 3),
            "tokens": 0,
            "peak_memory_bytes": peak_memory_bytes(device),
            "evaluation_seconds": round(time.perf_counter() - fitted, 3),
            "label_seconds": 0.0,
            "rows": len(inputs.labels),
            **row_facts(data.splits["train"]),
            "steps": 0,
            "precision": inputs.precision,
            "device": device.type,
        },
        best=None,
        config=to_dict(config),
        seed=config.training.seed,
        versions=versions(),
        data_fingerprint=inputs.fingerprint,
        notes=[*data.notes, *baseline.notes],
    )
    if inputs.accelerator.is_main_process:
        _save(run, baseline)
        write_results(run, inputs, data, result, logits)
    return result


def _save(run: Path, baseline: Baseline) -> None:
    """Write the baseline to a temporary folder, and move its files once all are on the disk."""
    temporary = run / f"{TEMPORARY}baseline-{os.getpid()}"
    with storage_errors(run):
        try:
            temporary.mkdir()
            baseline.save(temporary)
            for path in sorted(temporary.iterdir()):
                sync_file(path)
                path.replace(run / path.name)
            sync_folder(run)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
