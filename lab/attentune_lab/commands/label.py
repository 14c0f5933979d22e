"""`attentune label`: list rows with their tokens, each token's training label and its importance by the token gate."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from attentune.cli.flags import (
    PRECISION,
    ROW_SETTINGS,
    Parser,
    add_config_flags,
    config_from,
    number_from,
    overrides_of,
)
from attentune.cli.inputs import check_named, read_file_rows
from attentune.errors import CheckpointError, ConfigError

SUMMARY = "list the token labels that a run was trained on, and the importance it predicts"
_EXAMPLES = """examples:
  attentune label runs/cola --output_file labels.jsonl           (its training rows, with their token labels)
  attentune label runs/cola --split validation --max_samples 20
  attentune label runs/mine --input_file new.csv

Each line of JSON: {"id", "text", "gold", "predicted", "tokens": [{"text", "start", "end", "in", "label", "score"}]}.
label: the token label of the last epoch, from 0 (not important) to 1 (important); null without a label.
score: the importance predicted by the trained token head, from 0 to 1."""


def parser() -> Parser:
    made = Parser(
        prog="attentune label",
        usage="attentune label RUN [flags]",
        description="List, as JSON lines, the token labels that a run was trained on and the importance it predicts.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    made.add_argument(
        "--input_file", help="a file of texts: .csv .tsv .json .jsonl .parquet ..., or - for standard input"
    )
    made.add_argument("--split", default="train", help="split: train, validation or test (default: train)")
    made.add_argument("--max_samples", help="use only the first N rows")
    made.add_argument("--output_file", help="output file (default: standard output)")
    made.add_lines(PRECISION)
    add_config_flags(made, only=ROW_SETTINGS)
    return made


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    named_data = overrides_of(parsed, [])
    if parsed.input_file is not None and ({"data.task", "data.dataset_name"} & set(named_data)):
        problems.append("label: got --input_file and a task or data set; expected one of them, or none.")
    max_samples = number_from("--max_samples", parsed.max_samples, problems)
    config = config_from(parsed, problems)
    check_named(parsed)

    from attentune.inference.predictor import Predictor
    from attentune.io.files import write_text
    from attentune.results import without_nan

    saved = Predictor.load(parsed.run)
    data, rows = config.data if named_data else None, None  # None for the run's own training rows
    if parsed.input_file is not None:
        rows = read_file_rows(parsed.input_file, data or saved.config.data, saved)
    elif data is not None or parsed.split != "train":
        rows = next(iter(saved.data(data, (parsed.split,)).splits.values()))
    listed = list_tokens(saved, rows, max_samples=max_samples, precision=parsed.precision)
    lines = (json.dumps(without_nan(row), ensure_ascii=False) + "\n" for row in listed)
    if parsed.output_file is None:
        sys.stdout.writelines(lines)
        return 0
    text = list(lines)
    write_text(parsed.output_file, "".join(text))
    print(f"{len(text)} rows written to {parsed.output_file}", file=sys.stderr)
    return 0


def list_tokens(
    run: Any, rows: Any = None, *, max_samples: int | None = None, precision: str | None = None
) -> Iterator[dict[str, Any]]:
    """List each token's training label of the last epoch, None without one, and its importance by the token gate.

    Of these rows, or of the run's training rows; `max_samples` takes the first so many.
    """
    from attentune.data.dataset import TaskData
    from attentune.data.tokenization import encode_with_spans
    from attentune.inference.scoring import score_rows
    from attentune.metrics.metrics import predictions_of
    from attentune.token_labels.plan import LABELS_FILE

    saved = run.single_model("label")
    has_labels = (saved.folder / LABELS_FILE).is_file()
    if saved.model.token_gate is None and not has_labels:
        raise ConfigError(
            f"{saved.folder}: has neither token labels nor a token head, so there is nothing to show; train with a"
            " preset such as ssa-co."
        )
    labels: dict[int, Any] = {}
    if rows is None:
        rows = saved.data(None, ("train",)).splits["train"]
        labels = _labels_by_row(saved.folder, rows) if has_labels else {}
    if max_samples is not None:
        rows = rows.take(range(min(max_samples, len(rows))))
    rows = saved.shortened(rows)
    evaluator = saved.evaluator(TaskData("input", saved.label_space, (), {"input": rows}), precision=precision)
    scores = score_rows(
        evaluator.model,
        evaluator.features["input"],
        pad_token_id=evaluator.pad_token_id,
        batch_size=evaluator.batch_size,
        accelerator=evaluator.accelerator,
        with_details=True,
    )
    predictions = predictions_of(scores.logits_NC, saved.label_space)
    model = saved.model.config
    _, spans = encode_with_spans(rows, saved.tokenizer, max_length=model.max_seq_length, bi_encoder=model.is_bi_encoder)

    def named(value: Any) -> str | float:
        is_score = saved.label_space.task_type == "regression"
        return round(float(value), 6) if is_score else saved.label_space.text_of(value)

    for number, own in enumerate(spans):
        line: dict[str, Any] = {"id": rows.ids[number], "text": rows.texts[number]}
        if rows.pairs is not None:
            line["pair"] = rows.pairs[number]
        if rows.labels is not None:
            line["gold"] = named(rows.labels[number])
        line |= {"predicted": named(predictions[number]), "tokens": []}
        for place, span in enumerate(own):
            if span is not None:
                where, start, end = span
                label = labels[number][place] if number in labels else -1
                score = None if scores.token_scores is None else round(float(scores.token_scores[number][place]), 6)
                line["tokens"].append(
                    {
                        "text": line[where][start:end],
                        "start": start,
                        "end": end,
                        "in": where,
                        "label": None if label < 0 else round(float(label), 6),
                        "score": score,
                    }
                )
        yield line


def _labels_by_row(folder: Any, rows: Any) -> dict[int, Any]:
    """Return the labels of each training row's first sample (labelled samples come before originals)."""
    from attentune.token_labels.plan import LABELS_FILE, EpochPlan, load_labels

    tensors, fingerprint = load_labels(folder / LABELS_FILE)
    if rows.fingerprint() != fingerprint:
        raise CheckpointError(
            f"{folder}: the training rows that its config.yaml names are not those that it was trained on, so the"
            " labels cannot be laid on them. Put them back, or name other rows to see the model's scores alone."
        )
    plan = EpochPlan.from_tensors(tensors) if "rows" in tensors else None
    if plan is None or plan.token_labels is None:
        return {}
    places = {int(row): sample for sample, row in reversed(list(enumerate(plan.rows)))}
    return {row: plan.token_labels.sample(sample) for row, sample in places.items()}
