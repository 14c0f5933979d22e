"""`attentune compare`: methods on tasks over several seeds; `compare RUN RUN`: trained runs on the same rows."""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attentune.cli.flags import (
    EXECUTOR,
    FILE,
    FORMAT,
    QUIET,
    Parser,
    check,
    command_parser,
    number_from,
    overrides_of,
    seed_numbers,
)
from attentune.cli.inputs import check_files_of_rows, executor_options, tell, texts_of_run
from attentune.cli.output import number, short, stopped, table
from attentune.config.parse import did_you_mean
from attentune.errors import AttentuneError, ConfigError

_HELP = f"""
attentune compare --presets NAME,NAME --output_dir DIR [flags]

Train every preset on every task with every seed, in parallel, and write one record for each run.

{FILE}
--tasks NAME,NAME  known tasks, instead of rows of your own (attentune list tasks)
--presets NAME,NAME  presets or methods of --settings (default: all of --settings)
--settings FILE  a YAML file of methods: presets with further settings
--seeds VALUE  their number, or a list: 3,7,11 (default: 5, seeds 1 to 5); with --folds, repetitions (1 if not given)
--train_size N,N  numbers of training rows, such as 250,1000,all
--retry_failed  repeat runs that are recorded as failed
--keep_runs  keep the folders of finished runs, with their weights
--keep_best  keep the folder of each preset's best run, for attentune predict and others, and print its name
{EXECUTOR}
--baseline NAME  the method that the others are compared with (default: the first one)
{FORMAT}
{QUIET}

examples:
  attentune compare --tasks cola,rte --presets bert,ssa-hybrid,sesame --seeds 5 --output_dir comparisons/first
  attentune compare --tasks sst2 --presets bert,sesame --train_size 250,1000,all --output_dir comparisons/sizes
  attentune compare --train_file reviews.csv --presets bert,bert-mean --seeds 3 --output_dir comparisons/reviews
  attentune compare --train_file small.csv --presets bert,ssa-co --folds 10 --output_dir comparisons/folds
  attentune compare runs/bert runs/ssa           (trained runs, row by row: see attentune compare RUN RUN --help)

Below the table are verdicts: which preset is better than the baseline, and by how much; attentune report makes a page
of them. After an interruption, the same command resumes. Flags of settings apply to all presets; a --settings file has
settings of single methods: NAME: {{preset: PRESET, set: {{section.key: value}}, tasks: {{TASK: {{...}}}}}}."""

_RUNS_HELP = f"""
attentune compare RUN RUN [RUN ...] [flags]

Compare trained runs on the same rows: scores, paired tests over rows, and rows that changed.

RUN...  run folders, or CSV files with the columns id, label and prediction
--split NAME  split of the run folders (default: validation)
--metrics NAME,NAME  metrics to test (default: those of the first run)
--task_type classification|regression|multi_label  for files without columns of probabilities, if it is not clear
--show N>=0  changed rows to print of each kind (default: 3)
--output_file FILE  write all rows whose prediction changed to this CSV file
{FORMAT}

examples:
  attentune compare runs/bert runs/ssa
  attentune compare runs/bert runs/ssa runs/sesame --split test --metrics f1,accuracy
  attentune compare mine.csv theirs.csv --output_file changed.csv

The first run is the baseline. The tests are over rows, so they are about these trained models, not about the methods:
another seed may give the opposite result. For methods, use attentune compare --presets."""


def _names_runs(arguments: Sequence[str]) -> bool:
    return len(list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))) > 1


def parser(arguments: Sequence[str] = ()) -> Parser:
    if _names_runs(arguments):
        return command_parser("compare", _RUNS_HELP)
    return command_parser("compare", _HELP, None, arguments)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser(arguments).parse(arguments)
    if _names_runs(arguments):
        return _compare_runs(parsed, problems)
    options = _settings(parsed, problems)
    where = executor_options(parsed, problems)
    folder = options["overrides"].pop("training.output_dir", None)
    if folder is None:
        problems.append("--output_dir: is missing; name the comparison's folder: --output_dir comparisons/first")
    check(problems)
    _check_baseline(parsed.baseline, options)
    check_files_of_rows(options["overrides"])
    # Imported late, so that errors in flags are reported without delay.
    from attentune.runs.compare import ComparisonStopped, compare
    from attentune.runs.progress import ComparisonProgress

    try:
        records = compare(
            folder,
            executor=where,
            keep_runs=parsed.keep_runs,
            keep_best=parsed.keep_best,
            retry_failed=parsed.retry_failed,
            display=ComparisonProgress(quiet=parsed.quiet),
            **options,
        )
    except ComparisonStopped as stop:
        return stopped(stop, "compare", arguments)
    _print(records, folder, parsed)
    if parsed.keep_best:
        runs = ((Path(folder) / "runs" / record.run.name, record) for record in records)
        tell(f"kept: {run} ({record.metric} {number(record.score)})" for run, record in runs if run.is_dir())
    failed = [record for record in records if not record.is_done]
    if failed:
        print(
            f"attentune: {len(failed)} of {len(records)} runs failed; their records under"
            f" {folder}/records have the reasons. The same command with --retry_failed repeats them.",
            file=sys.stderr,
        )
        return 2
    return 0


def _check_baseline(baseline: str | None, options: dict[str, Any]) -> None:
    from attentune.runs.grid import methods_named

    methods = [method.name for method in methods_named(options["presets"], options["settings"])]
    if baseline is not None and baseline not in methods:
        hint = did_you_mean(baseline, methods)
        raise ConfigError(f"--baseline: got {baseline!r}, expected one of {', '.join(methods)}.{hint}")


def _print(records: Sequence[Any], folder: str, parsed: Any) -> None:
    from attentune.report.analysis import compare_methods
    from attentune.report.contents import answer_of
    from attentune.report.load import recorded_runs, with_task_names
    from attentune.results import to_json, without_nan

    verdicts = compare_methods(with_task_names(recorded_runs(Path(folder), records)), parsed.baseline)
    answer, content = answer_of(verdicts), verdicts.to_dict()
    if parsed.format == "json":
        print(to_json({"answer": answer, **content}), end="")
    else:
        print("\n".join([_cells_text(without_nan(content["cells"])), *answer, verdicts.text()]), end="")


def _settings(parsed: Any, problems: list[str]) -> dict[str, Any]:
    """Return the fields of `CompareSettings`; append errors to `problems`."""
    overrides = overrides_of(parsed, problems)
    folds = overrides.pop("data.folds", None)
    if parsed.preset is not None:
        problems.append("--preset: is for single runs; name the presets to compare with --presets.")
    if parsed.presets == []:
        problems.append("--presets: got no names, expected comma-separated ones.")
    if parsed.train_size is not None and "data.max_train_samples" in overrides:
        problems.append("--max_train_samples and --train_size: choose one; expected --train_size.")
    if parsed.tasks and "data.task" in overrides:
        problems.append("--task and --tasks: choose one; --tasks names several, one works too.")
    sizes = [None if part == "all" else number_from("--train_size", part, problems) for part in parsed.train_size or ()]
    return {
        "presets": parsed.presets or [],
        "settings": parsed.settings,
        "tasks": parsed.tasks,
        "seeds": None if parsed.seeds is None else seed_numbers(parsed.seeds, problems),
        "folds": None if folds is None else number_from("--folds", str(folds), problems, minimum=2),
        "train_sizes": None if parsed.train_size is None else sizes,
        "config": parsed.config,
        "overrides": overrides,
    }


def _cells_text(cells: Sequence[dict[str, Any]]) -> str:
    header = ("task", "rows", "preset", "metric", "mean", "std", "n", "failed")
    rows = [
        (
            *(cell["task"], cell["train_size"], cell["method"], cell["metric"] or "-"),
            *("-" if cell[name] is None else number(cell[name]) for name in ("mean", "std")),
            *(str(cell["n"]), str(cell["failed"] or "-")),
        )
        for cell in cells
    ]
    return table(header, rows, right=(1, 4, 5, 6, 7)) + "\n"


def _compare_runs(parsed: Any, problems: list[str]) -> int:
    check(problems)
    for run in map(Path, parsed.runs):
        for file in [run] * run.is_file() + sorted(run.glob("predictions_*.csv")):
            check_files_of_rows({"file": str(file), "output_file": parsed.output_file})

    from attentune.results import to_json
    from attentune.runs.trained_runs import compare_trained_runs, read_run

    runs = [read_run(path, split=parsed.split, task_type=parsed.task_type) for path in parsed.runs]
    result = compare_trained_runs(runs, metrics=parsed.metrics or [])
    tell(result.notes)
    # Texts are only shown, so a comparison without them is complete.
    texts = _texts(parsed, result) if parsed.output_file is not None or parsed.format == "text" else {}
    print(to_json(result.to_dict()) if parsed.format == "json" else _runs_text(result, texts, parsed.show), end="")
    if parsed.output_file is not None:
        _write_changed(parsed.output_file, result, texts)
    return 0


def _texts(parsed: Any, result: Any) -> dict[str, str]:
    """Read the texts of the rows, by id, through the data settings of a run folder; none if it cannot be done."""
    from attentune.results import RESULT_FILE, RunResult

    record = next((path for run in parsed.runs if (path := Path(run) / RESULT_FILE).is_file()), None)
    if record is None or not _changed_rows(result):
        return {}
    try:
        texts = texts_of_run(RunResult.load(record), parsed.split, "compare")
    except AttentuneError as error:
        tell([f"{record.parent}: its texts cannot be shown ({str(error).splitlines()[0]})"])
        return {}
    return {row: f"{text} | {pair}" if pair else text for row, (text, pair) in texts.items()}


def _changed_rows(result: Any) -> list[int]:
    return sorted(
        {int(row) for one in result.changed for kind in (one.better, one.worse, one.both_wrong) for row in kind}
    )


def _runs_text(result: Any, texts: Mapping[str, str], shown: int) -> str:
    from attentune.data.tables import visible
    from attentune.report.document import format_interval, format_p, format_score

    header = ("metric", "run", "score", "difference", "95 % interval", "p", "p after Holm", "", "check")
    lines = []
    for metric in dict.fromkeys(one.metric for one in result.tests):
        tests = [one for one in result.tests if one.metric == metric]
        lines.append((metric, tests[0].first, number(tests[0].first_score), *[""] * 6))
        lines += [
            (
                "",
                one.second,
                number(one.second_score),
                format_score(one.difference, metric, sign=True),
                format_interval(one.low, one.high, metric),
                format_p(one.p),
                format_p(one.p_holm),
                one.marks,
                _check(one),
            )
            for one in tests
        ]
    parts = [
        f"{len(result.ids):,} rows. Differences to {result.runs[0].name} in points (errors in their own unit), positive"
        " where the run is better;",
        "p by the paired bootstrap over rows, * below 0.05 and ** below 0.01 after Holm's correction.",
        "",
        table(header, lines, right=(2, 3, 4, 5, 6)),
        "",
    ]
    for place, changed in enumerate(result.changed, start=1):
        parts += _changed_lines(result, place, changed, texts, shown)
    parts.append(
        "These tests are over rows: they say nothing about other seeds. attentune compare --presets tests methods."
    )
    return visible("\n".join(parts) + "\n")


def _check(one: Any) -> str:
    """Return the result of the second test, if the metric has one."""
    from attentune.report.document import format_p

    if one.mcnemar is not None:
        counts = f"{one.mcnemar.only_first} only {one.first}, {one.mcnemar.only_second} only {one.second} right"
        return f"McNemar p {format_p(one.mcnemar.p)} ({counts})"
    return "" if one.p_wilcoxon != one.p_wilcoxon else f"Wilcoxon p {format_p(one.p_wilcoxon)}"


def _changed_lines(result: Any, place: int, changed: Any, texts: Mapping[str, str], shown: int) -> Iterator[str]:
    nearer = "right" if result.runs[0].predictions.names else "nearer to the score"
    kinds = [
        (f"only {changed.second} is {nearer}", changed.better),
        (f"only {changed.first} is {nearer}", changed.worse),
        ("both are wrong, in different ways", changed.both_wrong),
    ]
    told = [f"rows of which {name}: {len(rows):,}" for name, rows in kinds if len(rows)]
    yield f"{changed.second} against {changed.first}: {'; '.join(told) or 'no prediction changed'}."
    for name, rows in kinds:
        if shown and len(rows):
            yield f"  {name}:"
        for row in rows[:shown]:
            row_id = result.ids[row]
            predicted = f"{result.text_of(0, row)} -> {result.text_of(place, row)}"
            text = f"  {short(texts[row_id])}" if row_id in texts else ""
            yield f"    {row_id}: {predicted} (label {result.label_of(row)}){text}"
    yield ""


def _write_changed(path: str, result: Any, texts: Mapping[str, str]) -> None:
    from attentune.io.files import csv_text, write_text

    lines = [["id", *(["text"] if texts else []), "label", *(f"prediction of {run.name}" for run in result.runs)]]
    for row in _changed_rows(result):
        text = [texts.get(result.ids[row], "")] if texts else []
        predicted = [result.text_of(place, row) for place in range(len(result.runs))]
        lines.append([result.ids[row], *text, result.label_of(row), *predicted])
    write_text(Path(path), csv_text(lines))
    tell([f"{len(lines) - 1:,} changed rows written to {path}"])
