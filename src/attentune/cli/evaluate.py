"""`attentune evaluate`: score a saved run and show what it gets wrong; with `--suite hans`, on HANS."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attentune.cli.flags import FORMAT, PRECISION, ROW_SETTINGS, Parser, check, command_parser, data_from, has_flag
from attentune.cli.inputs import check_columns, check_named, read_file_rows, tell
from attentune.cli.output import number, progress_lines, short, table
from attentune.config import DataConfig

_HELP = f"""
attentune evaluate RUN [flags]

Evaluate a saved run on labelled texts: scores with intervals, by class, and the worst errors.
Labels are matched by name.

RUN  a run folder or checkpoint
--suite hans  evaluate entailment runs on HANS instead; see evaluate --suite hans --help
--split NAME  split: validation, test or train (default: validation; test with --test_file)
--show_errors N>=0  worst errors to print (default: 10)
--out_of_scope_file FILE  texts of no class: how well they are told apart, and what the threshold of --reject loses
--errors_file FILE  write all wrong rows to this CSV file, worst first
--details  with --format json: also intervals, classes, confusions
{PRECISION}
{FORMAT}

examples:
  attentune evaluate runs/cola                                   (on the validation rows of its training)
  attentune evaluate runs/mine --validation_file other.csv --text_column text --label_column label
  attentune evaluate runs/mine --split test --errors_file errors.csv
  attentune evaluate runs/mnli --task mnli --data_dir glue_data --format json
  attentune evaluate runs/intents --out_of_scope_file other.csv
  attentune evaluate runs/mnli --suite hans                      (HANS, by heuristic: evaluate --suite hans --help)"""

_HANS_HELP = f"""
attentune evaluate RUN [RUN ...] --suite hans [flags]

Evaluate runs of an entailment task on HANS, by heuristic, gold label and subcase.

RUN...  run folders or checkpoints
--suite hans  the suite
--data FILE  path of heuristics_evaluation_set.txt
--data_dir DIR  folder of the built-in task hans (default: that of ATTENTUNE_DATA)
--names NAME,NAME  one name per run; runs with equal names are averaged
--max_samples N  use a sample of this many rows, stratified by subcase
--seed N>=0  random seed of the sample (default: 42)
--output_dir DIR  also write hans.json, hans.png and predictions.txt here
{PRECISION}
{FORMAT}

examples:
  attentune evaluate runs/mnli --suite hans --data heuristics_evaluation_set.txt
  attentune evaluate runs/bert-1 runs/bert-2 runs/ssa-1 runs/ssa-2 --suite hans --names bert,bert,ssa,ssa
  attentune evaluate runs/rte --suite hans --data_dir hans --max_samples 3000 --format json

HANS has two classes: every class of a model but entailment counts as non-entailment. Runs with the same name are
averaged; +- is their standard deviation."""

# Of more classes, the worst and the pairs that are confused most are listed.
_MOST_CLASSES = 12


def parser(arguments: Sequence[str] = ()) -> Parser:
    if has_flag(arguments, "suite"):
        return command_parser("evaluate --suite hans", _HANS_HELP)
    return command_parser("evaluate", _HELP, ROW_SETTINGS)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser(arguments).parse(arguments)
    if parsed.suite is not None:
        return _hans(parsed, problems)
    data_config = data_from(parsed, problems)
    is_test = data_config is not None and data_config.test_file is not None and data_config.validation_file is None
    split = parsed.split or ("test" if is_test else "validation")
    check_named(parsed)
    for file in () if data_config is None else (data_config.validation_file, data_config.test_file):
        check_columns(file, data_config, with_label=True)
    settings = data_config or DataConfig()
    check_columns(parsed.out_of_scope_file, settings)

    from attentune.data.columns import columns_notes
    from attentune.data.tables import visible
    from attentune.inference.predictor import Predictor, evaluate_in_detail
    from attentune.results import to_json
    from attentune.training.prepare import check_rejection

    saved = Predictor.load(parsed.run)
    outside = None
    if parsed.out_of_scope_file is not None:
        check_rejection(saved.label_space, 0.0, "--out_of_scope_file")
        outside = read_file_rows(parsed.out_of_scope_file, settings, saved, quiet=True)
    options = {"splits": (split,), "precision": parsed.precision, "out_of_scope": outside}
    found, data = evaluate_in_detail(saved, data_config, **options)
    tell((*saved.read.notes(), *columns_notes(data.columns), *data.notes))
    if parsed.format == "json":
        content: dict[str, Any] = {split: {m.name: m.value for m in one.metrics} for split, one in found.items()}
        if outside is not None:
            content["out_of_scope"] = {split: one.out_of_scope for split, one in found.items()}
        if parsed.details:
            content["details"] = {split: one.to_dict() for split, one in found.items()}
            if by_phenomenon := _phenomena(found, data):
                content["details"]["phenomena"] = [asdict(one) for one in by_phenomenon]
        print(to_json(content), end="")
    else:
        print(visible("\n".join(_lines(found, data, parsed.show_errors))))
    if parsed.errors_file is not None:
        _write_errors(Path(parsed.errors_file), found, data)
    return 0


def _lines(found: Mapping[str, Any], data: Any, shown: int) -> Iterator[str]:
    scores = [
        (split, metric.name, number(metric.value), _interval(metric))
        for split, one in found.items()
        for metric in one.metrics
    ]
    yield table(("split", "metric", "value", "95 % interval"), scores, right=(2,))
    for split, one in found.items():
        many = len(one.classes) > _MOST_CLASSES
        if one.classes:
            classes = sorted(one.classes, key=lambda c: c.f1)[:_MOST_CLASSES] if many else one.classes
            by_class = [
                (c.name, number(c.precision), number(c.recall), number(c.f1), f"{c.rows:,}", f"{c.predicted:,}")
                for c in classes
            ]
            header = ("class", "precision", "recall", "f1", "rows", "predicted")
            which = f", the {len(classes)} worst of {len(one.classes)}" if many else ""
            yield f"\n{split}: {one.rows:,} rows by class{which}\n\n{table(header, by_class, right=range(1, 6))}"
        names = [c.name for c in one.classes]
        if one.confusion is not None and many:
            pairs = [
                (count, names[label], names[predicted])
                for label, counts in enumerate(one.confusion)
                for predicted, count in enumerate(counts)
                if count and label != predicted
            ]
            pairs = sorted(pairs, key=lambda pair: -pair[0])[:_MOST_CLASSES]
            rows = [(true, predicted, f"{count:,}") for count, true, predicted in pairs]
            if rows:
                yield f"\nThe most confused pairs\n\n{table(('true class', 'predicted as', 'rows'), rows, right=(2,))}"
        elif one.confusion is not None:
            rows = [(name, *map(str, counts)) for name, counts in zip(names, one.confusion, strict=True)]
            yield f"\n{table(('true class, predicted as', *names), rows, right=range(1, len(names) + 1))}"
        if one.calibration_error is not None:
            yield f"\nExpected calibration error {one.calibration_error:.4f}."
        if one.out_of_scope is not None:
            yield f"\n{_out_of_scope_lines(one.out_of_scope)}"
        yield from _error_lines(one, data.splits[split], shown)
    if by_phenomenon := _phenomena(found, data):
        lines = [
            (one.category or "all", one.phenomenon or "all", f"{one.rows:,}", number(one.score), _interval(one))
            for one in by_phenomenon
        ]
        shown_table = table(("category", "phenomenon", "rows", "value", "95 % interval"), lines, right=(2, 3))
        yield f"\nMatthews correlation by phenomenon; a row may have several\n\n{shown_table}"


def _out_of_scope_lines(facts: Mapping[str, Any]) -> str:
    names = {
        "auroc": "AUROC",
        "false_positives_at_95_recall": "false positives at 95 % recall",
        "kept": "rows kept",
        "right_lost": "right predictions lost",
        "accuracy": "accuracy of all rows",
        "accuracy_of_kept": "accuracy of the rows kept",
        "out_of_scope_rejected": "texts of no class rejected",
    }
    values = [(text, number(facts[name])) for name, text in names.items() if name in facts]
    lines = table(("texts of no class", "value"), values, right=(1,))
    end = "" if "kept" in facts else " The run has no threshold; attentune calibrate RUN --reject chooses one."
    rows = f"{facts['rows']:,} rows and {facts['out_of_scope_rows']:,} texts of no class, by {facts['score']}."
    return f"{lines}\n{rows}{end}"


def _phenomena(found: Mapping[str, Any], data: Any) -> tuple[Any, ...]:
    """Return the scores by phenomenon of GLUE's diagnostic set; nothing for other tasks."""
    if data.name != "ax" or "validation" not in found:
        return ()
    from attentune.suites.glue import score_rows

    return score_rows(data.splits["validation"], found["validation"].predictions)


def _interval(metric: Any) -> str:
    return "" if metric.low != metric.low else f"{number(metric.low)} to {number(metric.high)}"


def _error_lines(one: Any, rows: Any, shown: int) -> Iterator[str]:
    if not shown or not one.errors:
        return
    count = "1 row is" if len(one.errors) == 1 else f"{len(one.errors):,} rows are"
    yield f"\n{count} wrong; the worst:" if one.classes else "\nThe largest errors:"
    for error in one.errors[:shown]:
        text = rows.texts[error.row] if rows.pairs is None else f"{rows.texts[error.row]} | {rows.pairs[error.row]}"
        yield f"  {error.id}: {error.prediction}, not {error.label} ({error.size:.3f}): {short(text)}"


def _write_errors(file: Path, found: Mapping[str, Any], data: Any) -> None:
    from attentune.io.files import csv_text, write_text

    is_pair = any(data.splits[split].pairs is not None for split in found)
    lines: list[list[Any]] = []
    for split, one in found.items():
        rows = data.splits[split]
        for error in one.errors:
            texts = [rows.texts[error.row], *([rows.pairs[error.row]] if is_pair else [])]
            lines.append([split, error.id, error.label, error.prediction, f"{error.size:.6f}", *texts])
    header = ["split", "id", "label", "prediction", "error", "text", *(["text_pair"] if is_pair else [])]
    write_text(file, csv_text([header, *lines]))
    tell([f"{len(lines):,} rows written to {file}"])


def _hans(parsed: Any, problems: list[str]) -> int:
    if parsed.names is not None and len(parsed.names) != len(parsed.runs):
        problems.append(f"--names: got {','.join(parsed.names)}, expected {len(parsed.runs)}: a name for each run.")
    if parsed.data is not None and parsed.data_dir is not None:
        problems.append("--data: got --data and --data_dir, expected one of them: a file, or the folder that holds it.")
    if parsed.output_dir is not None and Path(parsed.output_dir).is_file():
        problems.append(f"--output_dir: {parsed.output_dir} is a file, expected a folder; choose another name.")
    check(problems)
    check_named(parsed)

    from attentune.report.charts import check_figure_file
    from attentune.results import to_json
    from attentune.suites.hans import score_hans

    if parsed.output_dir is not None:
        check_figure_file(Path(parsed.output_dir) / "hans.png")

    report = score_hans(
        parsed.runs,
        parsed.data,
        data_dir=parsed.data_dir,
        methods=parsed.names,
        max_samples=parsed.max_samples,
        seed=parsed.seed,
        precision=parsed.precision,
        progress=progress_lines(),
    )
    # Printed first, so that a full disk does not lose the scores.
    print(to_json(report.to_dict()) if parsed.format == "json" else _hans_text(report), end="")
    if parsed.output_dir is not None:
        _write_hans(report, Path(parsed.output_dir))
    return 0


def _hans_text(report: Any) -> str:
    part = "" if report.rows == report.rows_in_file else f" of {report.rows_in_file:,}"
    runs = [(run.name, run.method, run.entailment, ", ".join(run.non_entailment)) for run in report.runs]
    header = ("gold label", "rows", *report.methods)
    tables = [
        table(("run", "column", "entailment is", "non-entailment is"), runs),
        "accuracy (chance is 0.5), with the 95 % interval over rows where each run has a column of its own",
    ]
    for name, lines in (("heuristic", (*report.cells, report.overall)), ("subcase", report.subcases)):
        cells = [
            (getattr(line, name) or "all", line.gold_label or "all", f"{line.rows:,}", *_means(line)) for line in lines
        ]
        tables.append(table((name, *header), cells, right=range(2, 1 + len(header))))
    return "\n\n".join([f"{report.rows:,}{part} rows of {report.data}", *tables]) + "\n"


def _means(line: Any) -> list[str]:
    # Several runs of a method vary; a single one is uncertain over rows.
    intervals = line.intervals if len(line.means) == len(line.intervals) else [None] * len(line.means)
    texts = []
    for mean, spread, interval in zip(line.means, line.deviations, intervals, strict=True):
        if spread is not None:
            texts.append(f"{number(mean)} +- {number(spread)}")
        elif interval is not None and interval[0] == interval[0]:
            texts.append(f"{number(mean)} [{number(interval[0], 3)}, {number(interval[1], 3)}]")
        else:
            texts.append(number(mean))
    return texts


def _write_hans(report: Any, folder: Path) -> None:
    """Write the scores, the predictions in the form of HANS's own scorer, and a figure."""
    from attentune.io.files import storage_errors, write_text
    from attentune.report.charts import save_figure
    from attentune.results import to_json

    for place, one in enumerate(report.runs):
        file = folder / one.name / "predictions.txt"
        with storage_errors(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, report.predictions_text(place))
    write_text(folder / "hans.json", to_json(report.to_dict()))
    if report.rows < report.rows_in_file:
        print("predictions.txt holds a sample of the rows; HANS's own scorer needs all of them.", file=sys.stderr)
    save_figure(hans_figure(report), folder / "hans.png")
    tell([f"written to {folder}"])


def hans_figure(report: Any) -> Any:
    """Draw the accuracy by heuristic and gold label (SESAME, figure 3)."""
    from attentune.report.charts import PointRow, rows_figure

    panels: dict[str, list[PointRow]] = {}
    for line in report.cells:
        panel = panels.setdefault(f"gold label: {line.gold_label}", [])
        panel.append(PointRow(f"{line.heuristic.replace('_', ' ')}:"))
        for place, (name, mean, spread) in enumerate(zip(report.methods, line.means, line.deviations, strict=True)):
            half = math.nan if spread is None else 100 * spread
            panel.append(PointRow(name, (), 100 * mean, 100 * mean - half, 100 * mean + half, place))
    return rows_figure(
        panels,
        x_label=f"accuracy (points); HANS, {report.rows:,} rows",
        level=("chance", 50.0),
        mean_name="mean, standard deviation over runs" if any(report.overall.deviations) else "accuracy",
    )
