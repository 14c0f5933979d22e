"""The demo: trains methods on sentences of two domains, and scores them on held-out ones and on a third domain."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.automl.auto import auto
from attentune.automl.leaderboard import WORK_FOLDER, AutoResult
from attentune.automl.work import AutoProgress
from attentune.config import Config, load_config
from attentune.data.load import load_data
from attentune.demo import domains
from attentune.demo.leaderboard import TEST_SETS, ScoredRun, demo_report, ranked, write_page
from attentune.errors import AttentuneError
from attentune.explain.explanation import Explanation
from attentune.explain.texts import explain_texts
from attentune.inference.predictions import predictions_csv
from attentune.inference.predictor import Predictor
from attentune.io.files import write_text
from attentune.results import RESULT_FILE, RunResult
from attentune.runs.compare import compare
from attentune.runs.grid import CUSTOM_TASK
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import RecordStore, Run, RunRecord, read_predictions

# The ensemble that `attentune auto` finds within the time limit.
AUTO = "auto"
# Baselines, plain fine-tuning, a method of the papers, and `auto`.
METHODS = ("tfidf-linear", "frozen-linear", "bert", "ssa-hybrid", AUTO)
TIME_LIMIT_S = 40.0
# Updates of the other fine-tuned methods, a sixth of the default: the demo is to take less than two minutes.
MAX_STEPS = 100
# Arguments of `run_demo` for a shorter demo.
QUICK: dict[str, Any] = {"train_size": 400, "time_limit_s": 30.0, "max_steps": 50}
# The others are compared with this one.
BASELINE = "bert"
TRAIN_SIZE = 1600
SEED = 42
# One of the film sentences, whose first half is negative.
EXPLAINED_SENTENCE = "This movie was kind of long in length, but I enjoyed every minute of it."
EXPLANATION_METHOD = "leave-one-out"


@dataclass(frozen=True)
class DemoResult:
    """What the demo found."""

    runs: tuple[ScoredRun, ...]  # one per method, in the order of the methods
    explained: ScoredRun  # the run whose prediction is explained
    explanation: Explanation  # of `EXPLAINED_SENTENCE`
    answer: tuple[str, ...]  # which method is best on each test set, in sentences
    auto: str | None  # what `auto` made, in a sentence; None if it has not run
    report: Path  # the file of the report


def run_demo(
    folder: str | Path,
    *,
    methods: Sequence[str] = METHODS,
    train_size: int = TRAIN_SIZE,
    encoder: str | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    max_steps: int = MAX_STEPS,
    quiet: bool = False,
) -> DemoResult:
    """Train methods on product and restaurant sentences, score them on other ones and on film sentences.

    Finished runs in the folder are reused, and interrupted ones resume.
    """
    folder = Path(folder)
    settings = data_settings(folder / "data", train_size=train_size) | {"model.name_or_path": encoder}
    runs: list[ScoredRun] = []
    if presets := [name for name in methods if name != AUTO]:
        records = compare(
            folder / "comparison",
            presets=presets,
            seeds=[SEED],
            overrides={**settings, "training.max_steps": max_steps},
            keep_runs=True,
            retry_failed=True,
            display=ComparisonProgress(quiet=quiet),
        )
        check_all_done(records, folder / "comparison")
        runs += _scored(records, folder / "comparison")
    if AUTO in methods:
        config = load_config(overrides=settings | {"training.output_dir": str(folder / AUTO), "training.seed": SEED})
        try:
            runs.append(_auto_run(config, time_limit_s, quiet=quiet))
        except AttentuneError as error:  # on a slow machine the time may not suffice for one member
            if not runs:
                raise
            AutoProgress(quiet=quiet).warning(f"auto is left out: {error} The same command goes on with it.")
    explained = ranked(runs)[0]
    (explanation,) = explain_texts(explained.folder, [EXPLAINED_SENTENCE], method=EXPLANATION_METHOD)
    report = demo_report(
        runs,
        explanation,
        explained=explained.method,
        title=f"The demo on real sentences: {folder}",
        baseline=BASELINE if BASELINE in methods else None,
    )
    made = next((auto_sentence(run.folder) for run in runs if run.method == AUTO), None)
    return DemoResult(tuple(runs), explained, explanation, report.answer, made, write_page(report, folder))


def auto_sentence(folder: Path) -> str:
    """Say of which members `auto` made its model, in what time, and its expected score."""
    result = AutoResult.load(folder)
    assert result is not None
    shares = ", ".join(f"{row.name} {row.weight or 0:.2g}" for row in result.delivered)
    several = len(result.delivered) > 1
    kind = f"of {len(result.delivered)} members, by weight {shares}" if several else f"by {result.delivered[0].name}"
    found: list[Any] = [result.estimate.get(name) for name in ("value", "low", "high")]
    expected = ""
    if None not in found:
        expected = "; expected on new rows: {} {:.3f} ({:.3f} to {:.3f})".format(result.metric, *found)
    seconds = f"{result.seconds:.0f} seconds"
    return f"auto: one model {kind}, chosen in {seconds} on rows that no member was trained on{expected}."


def _scored(records: Sequence[RunRecord], comparison: Path) -> list[ScoredRun]:
    store = RecordStore(comparison)
    runs = []
    for record in records:
        folder = store.file(record.run).parent
        predictions = {name: read_predictions(folder / record.predictions[split]) for split, name in TEST_SETS.items()}
        runs.append(ScoredRun(record, predictions, store.run_folder(record.run)))
    return runs


def _auto_run(config: Config, time_limit_s: float, *, quiet: bool) -> ScoredRun:
    """Run `auto`, or go on with it, unless it is finished."""
    folder = Path(str(config.training.output_dir))
    earlier = AutoResult.load(folder)
    if earlier is None or earlier.stopped or not (folder / RESULT_FILE).is_file():
        resume = (folder / WORK_FOLDER).is_dir()
        display = AutoProgress(quiet=quiet)
        if auto(config, time_limit_s=time_limit_s, resume=resume, display=display).stopped:
            raise KeyboardInterrupt
    result = RunResult.load(folder / RESULT_FILE)
    record = RunRecord(
        **vars(result),
        run=Run(CUSTOM_TASK, None, AUTO, config.training.seed),
        status="done",
        metric="accuracy",
        score=None,
        wall_seconds=result.train["seconds"],
    )
    files = {split: folder / f"predictions_{split}.csv" for split in TEST_SETS}
    if missing := [split for split, file in files.items() if not file.is_file()]:  # time was up before it had scored
        predictor = Predictor.load(folder)
        space = predictor.label_space
        data = load_data(config.data, seed=config.training.seed, splits=missing, label_space=space)
        evaluator = predictor.evaluator(data)
        for split in missing:
            write_text(files[split], predictions_csv(data.splits[split], evaluator.predict(split), space))
    return ScoredRun(record, {name: read_predictions(files[split]) for split, name in TEST_SETS.items()}, folder)


def data_settings(folder: Path, *, train_size: int) -> dict[str, Any]:
    """Write the sentences and return the settings that read them."""
    files = domains.write_files(folder, train_size=train_size, seed=SEED)
    return {
        "data.train_file": str(files["train"]),
        "data.validation_file": str(files["held_out"]),
        "data.test_file": str(files["films"]),
        "data.text_column": "text",
        "data.label_column": "label",
        "data.id_column": "id",
        "data.label_names": domains.LABEL_NAMES,
    }


def check_all_done(records: Sequence[RunRecord], comparison: Path) -> None:
    failed = [record for record in records if not record.is_done]
    if failed:
        reasons = "; ".join(f"{one.run.method}: {(one.error or {}).get('message')}" for one in failed)
        raise AttentuneError(
            f"{len(failed)} of {len(records)} runs failed: {reasons}. Their records are under {comparison}/records; the"
            " same command repeats them."
        )
