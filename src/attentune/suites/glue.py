"""GLUE: scores on AX, the diagnostic set, by phenomenon; and submissions, a zip archive with a TSV file per task."""

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attentune.data.builtin import TaskSpec, find_builtin_file, load_spec, require_column
from attentune.data.dataset import TextRows, data_name
from attentune.data.files import read_delimited
from attentune.data.text_files import Dialect
from attentune.errors import ConfigError, DataError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.io.files import write_bytes
from attentune.metrics.confusion import bootstrap_confusion_interval, confusion_counts, confusion_score
from attentune.metrics.metrics import predictions_of
from attentune.seeding import numpy_generator

CATEGORIES = ("Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge")
_METRIC = "matthews_correlation"


@dataclass(frozen=True)
class PhenomenonScore:
    """The score on the rows of a category or of one phenomenon."""

    category: str | None  # one of `CATEGORIES`; None for all rows
    phenomenon: str | None  # such as "Negation"; None for all rows of the category
    rows: int  # the number of rows; a row may have several phenomena
    score: float  # Matthews correlation; 0 where it is undefined
    # low, high: the 95 % interval over rows, by bootstrap.
    low: float
    high: float


def read_phenomena(file: str | Path, lines: Sequence[int]) -> dict[str, tuple[frozenset[str], ...]]:
    """Read the phenomena of the rows at some lines of `diagnostic-full.tsv`, by category."""
    table = read_delimited(file, Dialect("\t", "none"), keep=CATEGORIES)
    for name in CATEGORIES:
        require_column(table, name, load_spec("ax"))
    place_of = {line: place for place, line in enumerate(table.lines or ())}
    places = [place_of[line] for line in lines]
    cells = {name: table.texts(name) for name in CATEGORIES}
    return {
        name: tuple(frozenset(filter(None, map(str.strip, texts[place].split(";")))) for place in places)
        for name, texts in cells.items()
    }


def score_rows(rows: TextRows, predictions: np.ndarray) -> tuple[PhenomenonScore, ...]:
    """Score the predictions of rows of the task `ax` by the phenomena in their file; see `score_phenomena`."""
    return score_phenomena(np.asarray(rows.labels), predictions, read_phenomena(rows.source, rows.lines or ()))


def score_phenomena(
    labels: np.ndarray, predictions: np.ndarray, phenomena: dict[str, tuple[frozenset[str], ...]]
) -> tuple[PhenomenonScore, ...]:
    classes = int(max(labels.max(), predictions.max())) + 1

    def score(category: str | None, phenomenon: str | None, chosen: Sequence[bool] | np.ndarray) -> PhenomenonScore:
        inside = np.asarray(chosen, dtype=bool)
        counts = confusion_counts(labels[inside], predictions[inside], classes)
        low, high = bootstrap_confusion_interval(_METRIC, counts, numpy_generator("diagnostic", 0))
        value = float(confusion_score(_METRIC, counts))
        return PhenomenonScore(category, phenomenon, int(inside.sum()), value, low, high)

    found = [score(None, None, np.ones(len(labels)))]
    for category, rows in phenomena.items():
        found.append(score(category, None, [bool(names) for names in rows]))
        found += [score(category, name, [name in names for names in rows]) for name in sorted(frozenset().union(*rows))]
    return tuple(one for one in found if one.rows)


Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SiteFile:
    name: str  # the file name that the GLUE site expects, without its extension
    task: str  # the built-in task whose rows are predicted
    split: str  # the split of that task
    rows: int  # the number of rows in the published test file
    fill: str  # the constant prediction for a task without a run: the largest class, or the middle of the score range
    trained_on: str  # the training task of the run that predicts this file

    @property
    def file_name(self) -> str:
        return f"{self.name}.tsv"


# Names and row counts as published. The classes of MNLI and QNLI have about the same size, so any of them can fill.
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
    contents: Mapping[str, str]  # the TSV text of each file, by file name, in the order of `SITE_FILES`
    runs: Mapping[str, str | None]  # the run folder that predicted each file, by file name
    missing: tuple[str, ...] = ()  # the names of required files that are not in the submission
    warnings: tuple[str, ...] = ()  # reasons why the site may reject the submission, one sentence each

    def zipped(self) -> bytes:
        """Return the zip archive as bytes; equal contents give equal bytes."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in self.contents.items():
                entry = zipfile.ZipInfo(name)  # a fixed date (1980), so that the bytes do not depend on the time
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content.encode("utf-8"))
        return buffer.getvalue()

    def write(self, file: str | Path) -> None:
        check_zip_file(file)
        write_bytes(file, self.zipped())


def make_submission(
    runs: Sequence[str | Path],
    *,
    data_dir: str | None = None,
    fill_missing: bool = False,
    allow_partial: bool = False,
    precision: str | None = None,
    progress: Progress | None = None,
) -> Submission:
    """Predict the test rows of each run's task and format them for the GLUE site.

    Args:
        runs: folders of runs trained on GLUE tasks, one per task. The MNLI run also predicts AX if its file exists.
        data_dir: the folder of the test files; by default each run's own data folder.
        fill_missing: whether to write constant predictions (`SiteFile.fill`), with the published number of rows, for
            tasks without a run.
        allow_partial: whether to accept files whose number of rows differs from the published one, with a warning.
        precision: fp32 (default), auto, bf16 or fp16.
        progress: called after each batch with the file's name, the number of rows in the batch and the file's total
            number of rows.

    Returns:
        The submission.

    Raises:
        ConfigError: a run was not trained on a GLUE task, or two runs were trained on the same one.
        DataError: a test file is missing or malformed, or its number of rows differs from the published one.
    """
    by_task: dict[str, str] = {}
    # All rows are read and counted before the first prediction.
    rows: dict[str, TextRows] = {}
    warnings: list[str] = []
    for run in [runs] if isinstance(runs, (str, Path)) else runs:
        saved = Predictor.load(run)
        task = _task_of(saved)
        if task in by_task:
            raise ConfigError(f"{run}: was trained on {task}, and so was {by_task[task]}; expected one run a task.")
        by_task[task] = str(saved.folder)
        rows |= _read_rows(saved, task, data_dir, warnings, allow_partial=allow_partial)
    predicted = {}
    for task, folder in by_task.items():
        saved = Predictor.load(folder)  # loaded a second time, so that only one model is in memory
        for file in (file for file in SITE_FILES if file.trained_on == task and file.name in rows):
            predicted[file.name] = _predicted(saved, file, rows[file.name], precision, progress)
    contents: dict[str, str] = {}
    sources: dict[str, str | None] = {}
    missing = []
    for file in SITE_FILES:
        if file.name in predicted:
            contents[file.file_name], sources[file.file_name] = predicted[file.name], by_task[file.trained_on]
        elif fill_missing:
            contents[file.file_name], sources[file.file_name] = site_file([file.fill] * file.rows), None
        else:
            missing.append(file.name)
    return Submission(contents, sources, tuple(missing), tuple(warnings))


def check_zip_file(file: str | Path) -> None:
    """Check the name of the zip archive before anything is predicted."""
    path = Path(file)
    if path.suffix.lower() != ".zip":
        raise ConfigError(f"output_file: got {str(file)!r}, expected a name that ends in .zip, as submission.zip.")
    if not path.parent.is_dir():
        raise ConfigError(f"output_file: {path.parent}: there is no such folder; make it first, or choose another.")


def _task_of(saved: Predictor) -> str:
    data = saved.config.data
    if data.task is None or load_spec(data.task).name not in _TASKS:
        raise ConfigError(
            f"{saved.folder}: was trained on {data_name(vars(data))} (see its config.yaml), expected a task of GLUE:"
            f" {', '.join(_TASKS)}."
        )
    spec = load_spec(data.task)
    if set(saved.label_space.names) != set(spec.label_names):
        raise ConfigError(
            f"{saved.folder}: predicts {', '.join(saved.label_space.names) or 'scores'}, but the site wants"
            f" {', '.join(spec.label_names) or 'scores'} of {spec.name}. Train it with the task's own task type."
        )
    return spec.name


def _read_rows(
    saved: Predictor, task: str, data_dir: str | None, warnings: list[str], *, allow_partial: bool
) -> dict[str, TextRows]:
    found = {}
    for file in (file for file in SITE_FILES if file.trained_on == task):
        settings = replace(saved.config.data, task=file.task, data_dir=data_dir or saved.config.data.data_dir)
        if file.task != task:
            try:
                find_builtin_file(file.task, file.split, settings.data_dir)
            except DataError as error:
                names = " or ".join(load_spec(file.task).splits[file.split].files)
                warnings.append(
                    f"{file.name}: left out, since there is no {names} in {error.path}. Get it, and name the folder of"
                    " all of GLUE with --data_dir."
                )
                continue
        task_data = saved.data(settings, (file.split,))
        rows = task_data.splits[file.split]
        if len(rows) != file.rows:
            message = f"{rows.source}: has {len(rows):,} rows, but the published test file of {file.name} {file.rows:,}"
            if not allow_partial:
                raise DataError(f"{message}. Use the published file, or --allow_partial to go on all the same.")
            warnings.append(f"{message}: the site will not take it.")
        found[file.name] = rows
    return found


def _predicted(
    saved: Predictor, file: SiteFile, rows: TextRows, precision: str | None, progress: Progress | None
) -> str:
    report = None if progress is None else lambda count: progress(file.name, count, len(rows))
    logits_NC = predict_rows(saved, rows, precision=precision, progress=report)
    predictions = predictions_of(logits_NC, saved.label_space)
    return site_file(site_words(load_spec(file.task), predictions, saved.label_space.names))


def site_words(spec: TaskSpec, predictions: np.ndarray, names: Sequence[str]) -> list[str]:
    """Format predictions for the GLUE site: labels as in the task's files, scores with three decimals."""
    if spec.score_range is not None:
        return [f"{value:.3f}" for value in np.clip(predictions.astype(np.float64), *spec.score_range)]
    written = {name: value for value, name in spec.label_values.items() if value != name}
    return [written.get(names[int(label)], names[int(label)]) for label in predictions]


def site_file(words: Sequence[str]) -> str:
    """Return the text of one prediction file: a header, then the index and the prediction of each row."""
    return "index\tprediction\n" + "".join(f"{index}\t{word}\n" for index, word in enumerate(words))
