"""Run the released program's command: train or load a model, score it, and write the same result files."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attentune.config import Config, DataConfig, load_config
from attentune.data.builtin import find_builtin_file, load_spec
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import Features
from attentune.errors import ConfigError, DataError
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.inference.scoring import RowScores, score_rows
from attentune.io.files import storage_errors, write_text
from attentune.metrics.metrics import predictions_of, score_predictions
from attentune.models.build import is_saved_run
from attentune.nn.losses import resolve_loss, row_losses
from attentune.results import LOG_FILE, RunResult
from attentune.seeding import numpy_generator
from attentune.suites.glue import site_file, site_words
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from attentune_lab.released_ssa.convert import REPORTED_FLAGS, import_ssa
from attentune_lab.released_ssa.flags import known_task, overrides_for, preset_of

_NAMES = {
    "accuracy": "acc",
    "f1": "f1",
    "matthews_correlation": "mcc",
    "pearson": "pearson",
    "spearmanr": "spearmanr",
}
_MEANS: dict[tuple[str, ...], str] = {("f1", "accuracy"): "acc_and_f1", ("pearson", "spearmanr"): "corr"}


@dataclass(frozen=True)
class DevScores:
    parts: tuple[dict[str, float], ...]  # the metrics of each of the three parts
    whole: dict[str, float]  # the metrics on all rows, by the same names

    @property
    def means(self) -> dict[str, float]:
        """The dev scores of the released program: means over the parts."""
        return {name: sum(part[name] for part in self.parts) / len(self.parts) for name in self.whole}

    @property
    def chosen(self) -> float:
        """The score by which the released program selects the best epoch and names its files."""
        means = self.means
        return next(means[name] for name in ("acc", "mcc", "corr") if name in means)


def dev_scores(
    metrics: Sequence[str], rows: TextRows, logits_NC: np.ndarray, label_space: LabelSpace, *, seed: int
) -> DevScores:
    """Shuffle the rows, split them into three equal parts (up to two rows are left out), and score each part."""
    labels, third = rows.labels, len(rows) // 3
    if labels is None or third == 0:
        raise DataError(
            f"{rows.source}: has {len(rows)} rows, expected at least three labelled ones to cut into parts."
        )
    order = numpy_generator("dev parts", seed).permutation(len(rows))
    places = [order[part * third : (part + 1) * third] for part in range(3)]
    parts = tuple(_named(score_predictions(metrics, labels[part], logits_NC[part], label_space)) for part in places)
    return DevScores(parts, _named(score_predictions(metrics, labels, logits_NC, label_space)))


def _named(scores: Mapping[str, float]) -> dict[str, float]:
    """Rename metrics as in the released program, and add its means of two metrics."""
    renamed = {_NAMES[name]: value for name, value in scores.items()}
    mean = _MEANS.get(tuple(scores))
    return renamed if mean is None else {**renamed, mean: sum(renamed.values()) / 2}


def dev_losses(
    rows: TextRows, scored: RowScores, features: Features, label_space: LabelSpace, *, token_share: float
) -> dict[str, float]:
    """Compute the dev losses of the released program.

    The loss of the token head is computed as if every non-special token were labelled 1.
    """
    dtype = torch.float32 if label_space.task_type == "regression" else torch.long
    losses = row_losses(
        resolve_loss("auto", label_space.task_type),
        torch.from_numpy(scored.logits_NC),
        torch.as_tensor(rows.labels, dtype=dtype),
    )
    task = float(losses.mean())
    if scored.token_scores is None:
        return {"eval_total_loss": task, "eval_seq_loss": task, "eval_aug_loss": 0.0, "eval_aug_accuracy": 0.0}
    importance = np.concatenate(scored.token_scores)[~features.special]
    tokens = float(-np.log(np.clip(importance, 1e-12, 1.0)).mean())
    return {
        "eval_total_loss": (1.0 - token_share) * task + token_share * tokens,
        "eval_seq_loss": task,
        "eval_aug_loss": tokens,
        "eval_aug_accuracy": float((importance > 0.5).mean()),
    }


Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    scores: DevScores  # the scores of the dev rows
    files: tuple[Path, ...]  # the result files that were written
    run: Path  # the folder of the scored run


@dataclass(frozen=True)
class _Scored:
    scores: DevScores  # the scores of the dev rows
    losses: dict[str, float]  # the losses on the dev rows, by their names in the released program
    tests: dict[str, str]  # the contents of the prediction files in the format of the GLUE site, by file name infix


def run_ssa(
    values: Mapping[str, Any],
    *,
    more: Mapping[str, Any] | None = None,
    display: ProgressDisplay | None = None,
    say: Say | None = None,
) -> Outcome:
    """Train and score a model as the released program does with these flags."""
    say = say or (lambda text: None)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("run-ssa: works in one process; for several take attentune train with the same settings.")
    task, home = known_task(values["task_name"]), Path(values["output_dir"]) / values["task_name"]
    overrides = {**overrides_for(values, str(home / "run")), **(more or {})}
    config = load_config(overrides=overrides, preset=preset_of(values))
    if values["use_saved"] or values["do_first_eval"]:
        start = _start(values, home, say)
        if values["do_first_eval"]:
            return _first_eval(start, values, config, task, home)
        # The run contains the encoder and matching slots.
        config = load_config(overrides={**overrides, "model.name_or_path": str(start)}, preset=preset_of(values))
    elif values["ckpt"]:
        say("--ckpt: is ignored, because --use_saved is 0.")
    result = train(config, display=display, with_baselines=False)
    run = Path(str(config.training.output_dir))
    scored = _score(Predictor.load(run).single_model("run_ssa"), values, config.data, task)
    return _write_results(scored, result, values, home, run)


def _start(values: Mapping[str, Any], home: Path, say: Say) -> Path:
    """Return the run folder to start from: --ckpt, imported first if the released program wrote it."""
    checkpoint = Path(values["ckpt"])
    if is_saved_run(str(checkpoint)):
        return checkpoint
    vocabulary = Path(values["vocab_file"])
    made = import_ssa(
        checkpoint,
        home / "imported",
        flags={name: values[name] for name in REPORTED_FLAGS},
        data_dir=values["data_dir"],
        tokenizer=str(vocabulary) if vocabulary.is_file() else None,
        lower_case=values["do_lower_case"],
        replace=True,
    )
    say(f"{checkpoint}: imported as {made.folder} (preset {made.preset})")
    return made.folder


def _first_eval(start: Path, values: Mapping[str, Any], config: Config, task: str, home: Path) -> Outcome:
    scored = _score(Predictor.load(start).single_model("run_ssa"), values, config.data, task)
    with storage_errors(home):
        home.mkdir(parents=True, exist_ok=True)
    files = []
    for middle, text in scored.tests.items():
        files.append(home / f"first_test{middle}.tsv")
        write_text(files[-1], text)
    return Outcome(scored.scores, tuple(files), start)


def _score(saved: ModelPredictor, values: Mapping[str, Any], data_config: DataConfig, task: str) -> _Scored:
    spec = load_spec(task)
    dev = next(name for name in spec.splits if name.startswith("validation"))
    tests = [name for name in spec.splits if name.startswith("test") and _is_there(task, name, data_config.data_dir)]
    data = saved.data(data_config, (dev, *tests))
    evaluator = replace(saved.evaluator(data), batch_size=values["eval_batch_size"])
    rows = data.splits[dev]
    scored = score_rows(
        evaluator.model,
        evaluator.features[dev],
        pad_token_id=evaluator.pad_token_id,
        accelerator=evaluator.accelerator,
        batch_size=evaluator.batch_size,
        with_details=True,
    )
    scores = dev_scores(spec.metrics, rows, scored.logits_NC, saved.label_space, seed=values["seed"])
    losses = dev_losses(rows, scored, evaluator.features[dev], saved.label_space, token_share=values["aug_loss_weight"])
    texts = {}
    for name in tests:
        words = site_words(spec, predictions_of(evaluator.predict(name), saved.label_space), saved.label_space.names)
        texts["_mm" if name.endswith("mismatched") else ""] = site_file(words)
    return _Scored(scores, losses, texts)


def _is_there(task: str, split: str, data_dir: str | None) -> bool:
    try:
        find_builtin_file(task, split, data_dir)
    except DataError:
        return False
    return True


def _write_results(scored: _Scored, result: RunResult, values: Mapping[str, Any], home: Path, run: Path) -> Outcome:
    score, train = scored.scores.chosen, result.train
    # That of the final step, counted from 0.
    best_epoch = max(0, -((train["steps_first_epoch"] - train["final_step"]) // train["steps_per_epoch"]))
    seconds = sum(train[name] for name in ("seconds", "evaluation_seconds", "label_seconds"))
    lines: dict[str, Any] = {
        **scored.losses,
        "global_step": train["final_step"],
        "train_loss": _epoch_loss(run, best_epoch),
        "best_epoch": best_epoch,
        "train_batch_size": values["train_batch_size"] // max(1, values["gradient_accumulation_steps"]),
        "tot_time": seconds / 60,
        "args": f"Namespace({', '.join(f'{name}={values[name]!r}' for name in sorted(values))})",
        **scored.scores.means,
        **{
            f"{name}_{number}": value for number, part in enumerate(scored.scores.parts) for name, value in part.items()
        },
        **{f"{name}_whole": value for name, value in scored.scores.whole.items()},
    }
    files = [home / f"dev_results_{score}.txt"]
    write_text(files[0], "".join(f"{name} = {lines[name]}\n" for name in sorted(lines)))
    for middle, text in scored.tests.items():
        files.append(home / f"test{middle}_{score}.tsv")
        write_text(files[-1], text)
    return Outcome(scored.scores, tuple(files), run)


def _epoch_loss(run: Path, epoch: int) -> float:
    """Return the mean training loss of an epoch, from the log; NaN if the log has none."""
    lines = map(json.loads, (run / LOG_FILE).read_text(encoding="utf-8").splitlines())
    losses: Sequence[float] = [line["loss"] for line in lines if "loss" in line and line["epoch"] == epoch]
    return sum(losses) / len(losses) if losses else float("nan")
