"""What the GLUE site takes: one file of predictions a task, together in a zip."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from attentune.config import DataConfig
from attentune.data.builtin import TaskSpec, find_builtin_file, load_spec
from attentune.data.dataset import TextRows
from attentune.errors import ConfigError, DataError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.io.files import write_bytes
from attentune.metrics.metrics import predictions_of

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SiteFile:
    """One of the files that the site wants.

    Attributes:
        name: without its ending, as the site spells it.
        task: the known task that its rows are of.
        split: of that task.
        rows: how many the published file has.
        fill: a constant prediction where there is no run: the largest class.
        trained_on: the task of the run that predicts it.
    """

    name: str
    task: str
    split: str
    rows: int
    fill: str
    trained_on: str

    @property
    def file_name(self) -> str:
        return f"{self.name}.tsv"


# Names and rows as published. Fillers: the largest class (MNLI and QNLI have classes of like size), the scores' middle.
SITE_FILES = (
    SiteFile("CoLA", "cola", "test", 1063, "1", "cola"),
    SiteFile("SST-2", "sst2", "test", 1821, "1", "sst2"),
    SiteFile("MRPC", "mrpc", "test", 1725, "1", "mrpc"),
    SiteFile("STS-B", "stsb", "test", 1379, "2.500", "stsb"),
    SiteFile("QQP", "qqp", "test", 390965, "0", "qqp"),
    SiteFile("MNLI-m", "mnli", "test_matched", 9796, "entailment", "mnli"),
    SiteFile("MNLI-mm", "mnli", "test_mismatched", 9847, "entailment", "mnli"),
    SiteFile("QNLI", "qnli", "test", 5463, "entailment", "qnli"),
    SiteFile("RTE", "rte", "test", 3000, "entailment", "rte"),
    SiteFile("WNLI", "wnli", "test", 146, "0", "wnli"),
    SiteFile("AX", "ax", "test", 1104, "entailment", "mnli"),
)
_TASKS = tuple(dict.fromkeys(file.trained_on for file in SITE_FILES))


@dataclass(frozen=True)
class Submission:
    """The files of a submission.

    Attributes:
        contents: TSV text by the file's name, in the site's order.
        runs: by the file's name, the run that predicted it; None where it was filled.
        missing: names of the files that the site wants and that are not there.
        warnings: what the site may not take, one sentence each.
    """

    contents: Mapping[str, str]
    runs: Mapping[str, str | None]
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def zipped(self) -> bytes:
        """The zip; equal for equal contents."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in self.contents.items():
                entry = zipfile.ZipInfo(name)  # dated 1980, so that the time does not change the bytes
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content.encode("utf-8"))
        return buffer.getvalue()

    def write(self, file: str | Path) -> None:
        """Write the zip.

        Raises:
            ConfigError: as `check_zip_file`.
            StorageError: it could not be written; what was there before stands.
        """
        check_zip_file(file)
        write_bytes(file, self.zipped())


@dataclass
class _Plan:
    """The rows of each file that a run is to predict, read and counted before the first run predicts."""

    rows: dict[str, tuple[str, TextRows]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def make_submission(
    runs: Sequence[str | Path],
    *,
    data_dir: str | None = None,
    fill_missing: bool = False,
    allow_partial: bool = False,
    precision: str | None = None,
    progress: Progress | None = None,
) -> Submission:
    """Predict the test rows of each run's task as the site wants them.

    Args:
        runs: folders of runs that were trained on GLUE tasks, one a task. MNLI's predicts AX too, if its file is there.
        data_dir: where the test files are; each run's own data folder if not given.
        fill_missing: give tasks without a run a constant prediction (the largest class) and the published row count.
        allow_partial: take files with another number of rows than published, and warn.
        precision: another one than the runs'.
        progress: called with the site's name of a task, the number of rows done in each batch, and of all its rows.

    Raises:
        ConfigError: a run of no GLUE task, or two of the same.
        DataError: a test file is missing, broken or has another number of rows than published.
    """
    runs = [runs] if isinstance(runs, (str, Path)) else runs
    plan = _Plan()
    by_task: dict[str, str] = {}
    for run in runs:
        saved = Predictor.load(run)
        task = _task_of(saved)
        if task in by_task:
            raise ConfigError(f"{run}: was trained on {task}, and so was {by_task[task]}; expected one run a task.")
        by_task[task] = str(saved.folder)
        _read_rows(saved, task, data_dir, plan, allow_partial=allow_partial)
    contents = {}
    for task, folder in by_task.items():
        saved = Predictor.load(folder)  # again: of many runs, one model at a time is kept
        for file in (file for file in SITE_FILES if file.trained_on == task and file.name in plan.rows):
            contents[file.file_name] = _predicted(saved, file, plan.rows[file.name][1], precision, progress)
    return _whole(contents, plan, fill_missing=fill_missing)


def check_zip_file(file: str | Path) -> None:
    """Check a zip's name, before the work is done.

    Raises:
        ConfigError: it does not end in .zip, or its folder does not exist.
    """
    path = Path(file)
    if path.suffix.lower() != ".zip":
        raise ConfigError(f"output_file: got {str(file)!r}, expected a name that ends in .zip, as submission.zip.")
    if not path.parent.is_dir():
        raise ConfigError(f"output_file: {path.parent}: there is no such folder; make it first, or choose another.")


def _task_of(saved: Predictor) -> str:
    """The GLUE task that a run was trained on, and whose labels it predicts."""
    data = saved.config.data
    trained_on = "own files" if data.task is None else f"the task {load_spec(data.task).name}"
    if data.task is None and data.dataset_name is not None:
        trained_on = f"the data set {data.dataset_name}"
    if data.task is None or load_spec(data.task).name not in _TASKS:
        raise ConfigError(
            f"{saved.folder}: was trained on {trained_on} (see its config.yaml), expected a task of GLUE:"
            f" {', '.join(_TASKS)}."
        )
    spec = load_spec(data.task)
    if set(saved.label_space.names) != set(spec.label_names):
        raise ConfigError(
            f"{saved.folder}: predicts {', '.join(saved.label_space.names) or 'scores'}, but the site wants"
            f" {', '.join(spec.label_names) or 'scores'} of {spec.name}. Train it with the task's own task type."
        )
    return spec.name


def _read_rows(saved: Predictor, task: str, data_dir: str | None, plan: _Plan, *, allow_partial: bool) -> None:
    given = DataConfig() if data_dir is None else DataConfig(data_dir=data_dir)
    for file in (file for file in SITE_FILES if file.trained_on == task):
        if file.task == task:
            found = saved.data(given, (file.split,))
        else:
            settings = replace(saved.config.data, task=file.task, data_dir=data_dir or saved.config.data.data_dir)
            try:
                find_builtin_file(file.task, file.split, settings.data_dir)
            except DataError as error:
                names = " or ".join(load_spec(file.task).splits[file.split].files)
                plan.warnings.append(
                    f"{file.name}: left out, since there is no {names} in {error.path}. Get it, and name the folder of"
                    " all of GLUE with --data_dir."
                )
                continue
            found = saved.data(settings, (file.split,))
        rows = found.splits[file.split]
        if len(rows) != file.rows:
            message = f"{rows.source}: has {len(rows):,} rows, but the published test file of {file.name} {file.rows:,}"
            if not allow_partial:
                raise DataError(f"{message}. Use the published file, or --allow_partial to go on all the same.")
            plan.warnings.append(f"{message}: the site will not take it.")
        plan.rows[file.name] = (str(saved.folder), rows)


def _predicted(
    saved: Predictor, file: SiteFile, rows: TextRows, precision: str | None, progress: Progress | None
) -> str:
    report = None if progress is None else lambda count: progress(file.name, count, len(rows))
    logits_NC = predict_rows(saved, rows, precision=precision, progress=report)
    predictions = predictions_of(logits_NC, saved.label_space)
    return site_file(site_words(load_spec(file.task), predictions, saved.label_space.names))


def site_words(spec: TaskSpec, predictions: np.ndarray, names: Sequence[str]) -> list[str]:
    """Predictions as the site wants them: the labels as the task's files write them, scores with three decimals.

    Args:
        spec: the task.
        predictions: (N,) class ids or scores.
        names: the model's classes in the order of their ids; empty for scores.
    """
    if spec.score_range is not None:
        return [f"{value:.3f}" for value in np.clip(predictions.astype(np.float64), *spec.score_range)]
    written = {name: value for value, name in spec.label_values.items() if value != name}
    return [written.get(names[int(label)], names[int(label)]) for label in predictions]


def site_file(words: Sequence[str]) -> str:
    """The text of one of the site's files."""
    return "index\tprediction\n" + "".join(f"{index}\t{word}\n" for index, word in enumerate(words))


def _whole(predicted: Mapping[str, str], plan: _Plan, *, fill_missing: bool) -> Submission:
    contents: dict[str, str] = {}
    runs: dict[str, str | None] = {}
    missing = []
    for file in SITE_FILES:
        if file.file_name in predicted:
            contents[file.file_name], runs[file.file_name] = predicted[file.file_name], plan.rows[file.name][0]
        elif fill_missing:
            contents[file.file_name], runs[file.file_name] = site_file([file.fill] * file.rows), None
        else:
            missing.append(file.name)
    return Submission(contents, runs, tuple(missing), tuple(plan.warnings))
