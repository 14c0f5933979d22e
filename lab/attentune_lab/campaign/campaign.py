"""Compare `attentune auto` with tuned models, baselines and other libraries, at equal CPU time, on six tasks.

    python -m attentune_lab.campaign.campaign --output_dir ../campaign [--tasks cola,rte] [--draws 5]
        [--rows 1000] [--contenders auto,bert] [--seconds 300] [--jobs 2]
    python -m attentune_lab.campaign.campaign --output_dir ../campaign --pack results/auto
    python -m attentune_lab.campaign.campaign_tables results/auto

The protocol is in results/auto/README.md. Each cell (rows, task, draw, contender) is one process with one thread;
`--jobs` cells run side by side. A cell that has its record, in `cells/` of the output folder or in the packed records
of `--records`, is not repeated, so the campaign can be stopped at any time and started again, on another machine too.
Needs the tasks' files: $ATTENTUNE_DATA, else ../shared/data; SetFit for the contender `setfit`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config.schema import BASELINE_NAMES
from attentune.nn.compiled.native import processor_name

TASKS = ("cola", "rte", "mrpc", "stsb", "sst2", "sst5")
# The draws of the protocol. Rows that none of them uses are scored beside the official dev set, up to UNUSED_ROWS.
PROTOCOL_DRAWS = 5
UNUSED_ROWS = 2000
# Every tuned contender chooses among these on held-out training rows, and tries the first value first.
RATES = (1e-4, 2e-4, 5e-5)
MAX_STEPS = (300, 600)
# The members of `auto` with a method of one of the papers.
METHODS = tuple(f"{name}{number}" for name in ("ssa-hybrid", "sesame", "task-attention") for number in ("", "-2"))

Predict = Callable[[Any], np.ndarray]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument(
        "--draws", type=int, default=PROTOCOL_DRAWS, help=f"those above {PROTOCOL_DRAWS} are scored on the dev set only"
    )
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--shuffled", action="store_true", help="shuffle the training labels: all must be at chance")
    parser.add_argument("--records", type=Path, help="a folder of packed records, whose cells are not repeated")
    parser.add_argument("--pack", type=Path, help="add the cells that are done to the packed records in this folder")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        run_cell(Cell.parse(given.cell), given)
        return 0
    if given.pack:
        print(f"{pack(given.output_dir, given.pack)} cells in {given.pack}")
        return 0
    cells = [
        Cell(f"{given.rows}{'-shuffled' * given.shuffled}", task, draw, contender)
        for draw in range(1, given.draws + 1)
        for task in given.tasks.split(",")
        for contender in given.contenders.split(",")
    ]
    known = {Cell.of(line) for line in packed_runs(given.records)} if given.records else set()
    waiting = [cell for cell in cells if cell not in known and not cell.file(given.output_dir).is_file()]
    print(f"{len(cells) - len(waiting)} of {len(cells)} cells are done", flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda cell: run_process(cell, given), waiting))
    return 0


@dataclass(frozen=True)
class Cell:
    rows: str  # the number of training rows, followed by "-shuffled" if their labels are shuffled
    task: str
    draw: int
    contender: str

    @classmethod
    def parse(cls, text: str) -> Cell:
        rows, task, draw, contender = text.split(",")
        return cls(rows, task, int(draw), contender)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Cell:
        return cls(*(record[field.name] for field in fields(cls)))

    def __str__(self) -> str:
        return f"{self.rows},{self.task},{self.draw},{self.contender}"

    def file(self, folder: Path) -> Path:
        return folder / "cells" / f"{str(self).replace(',', '/')}.json"


def data_dir() -> Path:
    """Return the folder of the data sets: $ATTENTUNE_DATA, by default ../shared/data."""
    return Path(os.environ.get("ATTENTUNE_DATA", "../shared/data")).absolute()


def processor() -> str:
    """Return the processor's name and what makes bf16 products fast, such as "AMD EPYC, avx512_bf16"."""
    lines = [line for line in processor_name().splitlines() if line.startswith("model name")]
    fast = [flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if flag in processor_name().split()]
    return ", ".join([*(line.split(":", 1)[1].strip() for line in lines), *fast[:1]])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def packed_runs(folder: Path) -> list[dict[str, Any]]:
    file = folder / "runs.jsonl.gz"
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()] if file.is_file() else []


def pack(output_dir: Path, folder: Path) -> int:
    """Add finished cells to runs.jsonl.gz and predictions.npz; return the number of all.

    In predictions.npz, ROWS/TASK/DRAW/CONTENDER/PART has class ids or scores, ROWS/TASK/labels/PART the labels.
    """
    runs = {str(Cell.of(line)): line for line in packed_runs(folder)}
    file = folder / "predictions.npz"
    arrays = dict(np.load(file)) if file.is_file() else {}
    for record in sorted((output_dir / "cells").rglob("*.json")):
        line = json.loads(record.read_text())
        cell = Cell.of(line)
        runs[str(cell)] = line
        predictions = record.with_suffix(".npz")
        for part, values in np.load(predictions).items() if predictions.is_file() else ():
            kind, _, name = part.rpartition(".")
            key = "/".join([cell.rows, cell.task, *((kind,) if kind else (str(cell.draw), cell.contender)), name])
            if kind and not np.array_equal(arrays.get(key, values), values):
                sys.exit(f"{record} was scored on other rows of {cell.task} than the records in {folder}: run it again")
            arrays[key] = values
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(runs[name]) + "\n" for name in sorted(runs))
    (folder / "runs.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    np.savez_compressed(file, **{name: arrays[name] for name in sorted(arrays)})
    return len(runs)


def run_process(cell: Cell, given: argparse.Namespace) -> None:
    """Run one cell in a process of its own, with one thread."""
    settings = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-m", "attentune_lab.campaign.campaign", "--cell", str(cell)]
    words += ["--output_dir", str(given.output_dir), "--seconds", str(given.seconds)]
    log = cell.file(given.output_dir).with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        status = subprocess.run(words, env=os.environ | settings, stdout=file, stderr=file, check=False).returncode
    print(f"{cell}: {'done' if status == 0 else f'failed, see {log}'}", flush=True)


def run_cell(cell: Cell, given: argparse.Namespace) -> None:
    from attentune.metrics.metrics import predictions_of, score_predictions
    from attentune.results import to_json

    data, scored, pool = draw_of(cell)
    target = cell.file(given.output_dir)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="cell-", dir=given.output_dir))
    began, cpu_began = time.perf_counter(), cpu_seconds()
    try:
        trained = CONTENDERS[cell.contender](data, folder, cell.draw, given.seconds)
        facts: dict[str, Any] = {
            "machine": processor(),
            "budget_seconds": given.seconds,
            "wall_seconds": time.perf_counter() - began,
            "cpu_seconds": cpu_seconds() - cpu_began,
        }
        if trained is None:
            facts["not_applicable"] = True
        else:
            predict, details, *space = trained
            label_space = space[0] if space else data.label_space
            logits = {name: predict(rows) for name, rows in scored.items()}
            predicted = {name: predictions_of(values, label_space) for name, values in logits.items()}
            facts["details"] = details
            facts["scores"] = {
                name: score_predictions(data.metrics, rows.labels, logits[name], label_space)
                for name, rows in scored.items()
            }
            arrays = predicted | {f"labels.{name}": rows.labels for name, rows in scored.items()}
            kind = np.float32 if label_space.task_type == "regression" else np.int8
            np.savez_compressed(target.with_suffix(".npz"), **{name: one.astype(kind) for name, one in arrays.items()})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    temporary = target.with_suffix(".part")
    temporary.write_text(to_json({**asdict(cell), "pool": pool, **facts}))
    temporary.replace(target)


def cpu_seconds() -> float:
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in times)


def draw_of(cell: Cell) -> tuple[Any, dict[str, Any], int]:
    """Return the task with one stratified draw as its training rows, the rows to score, and how many were drawn from.

    The draws share rows with each other. The rows of "unused" are in none of the protocol's draws, whichever of them
    are run; a later draw is scored without them.
    """
    from attentune.config import DataConfig
    from attentune.data.load import load_data
    from attentune.data.splits import stratified_sample
    from attentune.seeding import numpy_generator

    source = DataConfig(task=cell.task, data_dir=str(data_dir()))
    splits = ("train", "validation")
    data: Any = load_data(source, seed=1, splits=splits)
    count, _, shuffled = cell.rows.partition("-")
    rows, train = int(count), data.splits["train"]
    drawn = {
        number: stratified_sample(train.labels, rows, "campaign", rows, number)
        for number in {*range(1, PROTOCOL_DRAWS + 1), cell.draw}
    }
    rest = np.setdiff1d(
        np.arange(len(train)), np.concatenate([drawn[number] for number in range(1, PROTOCOL_DRAWS + 1)])
    )
    chosen = train.take(drawn[cell.draw])
    if shuffled:
        chosen = replace(chosen, labels=numpy_generator("shuffled labels", cell.draw).permutation(chosen.labels))
    scored = {"dev": data.splits["validation"]} if "validation" in data.splits else {}
    if len(rest) and cell.draw <= PROTOCOL_DRAWS:
        unused = rest[stratified_sample(train.labels[rest], min(UNUSED_ROWS, len(rest)), "campaign", "unused")]
        scored["unused"] = train.take(unused)
    return replace(data, splits={"train": chosen}), scored, len(train)


def trained_run(data: Any, folder: Path, draw: int, preset: str, **more: Any) -> Predict:
    from attentune.config import load_config
    from attentune.inference.predictor import Predictor, predict_rows
    from attentune.training.callbacks import ProgressDisplay
    from attentune.training.run import train

    settings = {
        "data.max_length": 128,
        "data.task_type": data.label_space.task_type,
        "training.output_dir": str(folder),
        "training.seed": draw,
        "training.eval_strategy": "no",
        "training.save_steps": 1_000_000,
        "training.baselines": "none",
    }
    config = load_config(preset=preset, overrides={**settings, **more})
    train(config, data=data, display=ProgressDisplay(quiet=True))
    saved = Predictor.load(folder)
    return lambda rows: predict_rows(saved, rows)


def baseline(name: str) -> Callable[..., Any]:
    def fitted(data: Any, folder: Path, draw: int, seconds: float) -> Any:
        from attentune.baselines.registry import baselines_for, make_baseline
        from attentune.config import ModelConfig

        if name not in baselines_for(data):
            return None
        made = make_baseline(name, encoder=ModelConfig(), max_length=128, seed=draw)
        return made.fit(data.splits["train"], data.label_space).logits, {}

    return fitted


def tuned(*presets: str) -> Callable[..., Any]:
    """Choose preset, learning rate and updates on a fifth of the training rows, then train on all of them."""

    def trained(data: Any, folder: Path, draw: int, seconds: float) -> Any:
        known = [name for name in presets if data.is_pair or not name.startswith("bi-encoder")]
        if not known:
            return None

        points = [
            {"preset": preset, "training.learning_rate": rate, "training.max_steps": steps}
            for steps, rate, preset in product(MAX_STEPS, RATES, known)
        ]
        return searched(points, trained_run, data, folder, draw, seconds)

    return trained


def searched(
    points: list[dict[str, Any]],
    run: Callable[..., Predict],
    data: Any,
    folder: Path,
    draw: int,
    seconds: float,
) -> tuple[Predict, dict[str, Any]]:
    """Choose one of the points on a fifth of the training rows, then train on all of them."""
    from attentune.metrics.metrics import choose_metric, score_predictions

    inner, held = held_out(data, draw)
    metric = choose_metric(None, data.metrics, data.label_space)
    began, table, last = cpu_seconds(), [], 0.0
    for number, point in enumerate(points):
        # Enough time has to be left for the final run, which takes about as long as the longest so far.
        if number and cpu_seconds() - began + 2 * last > seconds:
            break
        started = cpu_seconds()
        predict = run(inner, folder / f"trial-{number}", draw, **point)
        score = score_predictions((metric.name,), held.labels, predict(held), data.label_space)[metric.name]
        last = max(last, cpu_seconds() - started)
        table.append({**point, metric.name: score})
    best = max(table, key=lambda line: -np.inf if line[metric.name] is None else line[metric.name])
    chosen = {name: best[name] for name in points[0]}
    return run(data, folder / "best", draw, **chosen), {"trials": table, "best": best}


def held_out(data: Any, draw: int) -> tuple[Any, Any]:
    """Return the task without a fifth of its training rows, and these."""
    from attentune.data.splits import stratified_split

    train = data.splits["train"]
    kept, cut = stratified_split(train.labels, 0.2, draw, "campaign")
    return replace(data, splits={"train": train.take(kept)}), train.take(cut)


def bag(data: Any, folder: Path, draw: int, seconds: float) -> Any:
    """Average `bert` runs of other seeds, with the default settings, as many as the time allows."""
    from attentune.metrics.metrics import probabilities_of

    parts: list[Predict] = []
    began, longest = cpu_seconds(), 0.0
    while not parts or cpu_seconds() - began + longest < seconds:
        started = cpu_seconds()
        parts.append(trained_run(data, folder / f"run-{len(parts)}", 1000 * draw + len(parts), "bert"))
        longest = max(longest, cpu_seconds() - started)

    def predict(rows: Any) -> np.ndarray:
        logits = [part(rows) for part in parts]
        if data.label_space.task_type == "regression":
            return np.mean(logits, axis=0)
        return np.log(np.mean([probabilities_of(one, data.label_space) for one in logits], axis=0) + 1e-12)

    return predict, {"models": len(parts)}


def trainer(data: Any, folder: Path, draw: int, seconds: float) -> Any:
    """transformers' own model and Trainer, tuned on the grid of the others."""

    points = [{"learning_rate": rate, "max_steps": steps} for steps, rate in product(MAX_STEPS, RATES)]
    return searched(points, trainer_run, data, folder, draw, seconds)


def trainer_run(data: Any, folder: Path, draw: int, **point: Any) -> Predict:
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    from attentune.models.build import resolve_encoder

    tokenizer = AutoTokenizer.from_pretrained(resolve_encoder("embedded"))
    model = AutoModelForSequenceClassification.from_pretrained(
        resolve_encoder("embedded"), num_labels=data.label_space.num_labels
    )

    def tokenised(rows: Any) -> Dataset:
        made = tokenizer(list(rows.texts), rows.pairs and list(rows.pairs), truncation=True, max_length=128)
        return Dataset.from_dict(dict(made) | ({} if rows.labels is None else {"labels": rows.labels.tolist()}))

    train = tokenised(data.splits["train"])
    # As `attentune train` has them.
    rule = {"per_device_train_batch_size": 16 if len(train) <= 5000 else 32, "weight_decay": 0.01, "warmup_steps": 0.1}
    options = {**point, "seed": draw, "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    arguments = TrainingArguments(output_dir=str(folder), **rule, **options, save_strategy="no")
    made = Trainer(model, arguments, DataCollatorWithPadding(tokenizer), train_dataset=train)
    made.train()
    return lambda rows: np.asarray(made.predict(tokenised(rows)).predictions, dtype=np.float64)


def setfit(data: Any, folder: Path, draw: int, seconds: float) -> Any:
    """SetFit with its default head; steps by the time. Pairs are joined into one text; scores are not supported."""
    if data.label_space.task_type == "regression":
        return None
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments  # type: ignore[import-not-found]

    from attentune.models.build import resolve_encoder

    def texts(rows: Any) -> list[str]:
        pairs = rows.pairs or [None] * len(rows)
        return [one if two is None else f"{one} [SEP] {two}" for one, two in zip(rows.texts, pairs, strict=True)]

    train = data.splits["train"]
    rows = Dataset.from_dict({"text": texts(train), "label": train.labels.tolist()})

    def fit(steps: int) -> tuple[Any, float]:
        model = SetFitModel.from_pretrained(resolve_encoder("embedded"))
        began = time.process_time()
        arguments = TrainingArguments(batch_size=16, max_steps=steps, seed=draw, report_to="none", save_strategy="no")
        Trainer(model=model, args=arguments, train_dataset=rows).train()
        return model, time.process_time() - began

    # What a step takes, and what is spent without any: pairs are made, and the head is fitted on all rows.
    few, more = (fit(steps)[1] for steps in (10, 30))
    step = max((more - few) / 20, 1e-3)
    steps = int(np.clip((seconds - few - more - (few - 10 * step)) / step, 50, 5000))
    model, last = fit(steps)

    def predict(scored: Any) -> np.ndarray:
        shares = np.asarray(model.predict_proba(texts(scored), as_numpy=True), dtype=np.float64)
        return np.log(np.maximum(shares, 1e-12))

    return predict, {"steps": steps, "seconds": {"10 steps": few, "30 steps": more, "all steps": last}}


def auto(
    *,
    exclude: Sequence[str] = (),
    deliver: str = "best",
    add_to_seed: int = 0,
    encoders: Sequence[str] = (),
    jobs: int = 1,
) -> Callable[..., Any]:
    def trained(data: Any, folder: Path, draw: int, seconds: float) -> Any:
        from multiprocessing import forkserver

        from attentune.automl.auto import auto as run_auto
        from attentune.config import load_config
        from attentune.inference.predictor import Predictor, predict_rows

        given = {
            "data.max_length": 128,
            "training.output_dir": str(folder / "auto"),
            "training.seed": draw + add_to_seed,
        }
        run_auto(
            load_config(overrides=given),
            data=data,
            time_limit_s=seconds,
            exclude=exclude,
            deliver=deliver,
            encoders=encoders,
            jobs=jobs,
        )
        vars(forkserver)["_forkserver"]._stop()  # its processes' time counts once it has ended
        saved = Predictor.load(folder / "auto")
        # Without paths of this machine.
        text = (folder / "auto" / "auto" / "leaderboard.json").read_text().replace(str(folder / "auto"), "RUN")
        board = json.loads(text)
        board.pop("folder")
        return (lambda rows: predict_rows(saved, rows)), {"leaderboard": board}, saved.label_space

    return trained


CONTENDERS: dict[str, Callable[..., Any]] = {
    **{name: baseline(name) for name in BASELINE_NAMES},
    "bert": tuned("bert", "bert-mean"),
    "bert-bag": bag,
    "bi-encoder": tuned("bi-encoder-cosine", "bi-encoder-concat"),
    "trainer": trainer,
    "setfit": setfit,
    "auto": auto(),
    "auto-other-seed": auto(add_to_seed=1000),
    "auto-without-methods": auto(exclude=METHODS),
    "auto-without-adapted": auto(exclude=("bert-mean-adapted",)),
    "auto-single": auto(deliver="single"),
    # On two cores, with a larger encoder beside the embedded one.
    "auto-two-encoders": auto(encoders=("embedded", os.environ.get("ATTENTUNE_ENCODER", "")), jobs=2),
}


if __name__ == "__main__":
    sys.exit(main())
