"""The model card of a run: its `README.md`, in the format of the Hugging Face hub."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from attentune.config import Config, to_flat
from attentune.config.load import load_preset
from attentune.data.dataset import Finding, TaskData, TextRows
from attentune.data.doctor import sentences_without_texts
from attentune.inference.predictions import predictions_csv
from attentune.io.files import write_text
from attentune.metrics.intervals import score_interval
from attentune.metrics.metrics import Metric, predictions_of
from attentune.models.build import hub_name
from attentune.results import RESULT_FILE, RunResult, to_json
from attentune.seeding import numpy_generator
from attentune.training.prepare import RunInputs
from attentune.training.run_folder import METRICS_FILE


@dataclass(frozen=True)
class CardFacts:
    """The content of a model card."""

    config: Config  # the run's settings
    data: TaskData  # its rows
    metric: Metric  # the metric that tells the best weights
    result: RunResult  # the run's record
    logits: Mapping[str, np.ndarray]  # (N, C) logits of each predicted split
    findings: Sequence[Finding] = ()  # what the checks of the data have found


def encoder_name(facts: CardFacts) -> str:
    """Return the encoder's name on the hub, or the last part of its folder's path."""
    name = facts.config.model.name_or_path
    return hub_name(name) or Path(name).name


_LONGEST = 200
# First characters of Markdown, HTML, mathematics, links and mentions. A reference such as &#42; is never markup.
_MARKUP = re.compile(r"[\\`*{}\[\]<>|~$&#@]|(?<![^\W_])_|_(?![^\W_])|:(?=\S)|(?<=www)\.", re.IGNORECASE)
_AT_BEGIN = re.compile(r"^([-+=]+|\d+(?=[.)](\s|$)))")
# Control characters; those that change the text direction could make a name look like another one.
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def one_line(text: object) -> str:
    """Return the text without line breaks and control characters, and not too long."""
    line = _INVISIBLE.sub(" ", str(text)).strip()
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def plain(text: object) -> str:
    """Return the text escaped for a paragraph or table cell of Markdown."""
    escaped = _MARKUP.sub(lambda match: f"&#{ord(match[0])};", one_line(text))
    return _AT_BEGIN.sub(lambda match: "".join(f"&#{ord(sign)};" for sign in match[0]), escaped)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table; the cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def front_matter(values: dict[str, Any]) -> str:
    """Format the YAML block of a card, with each text on one line."""

    def one_lined(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: one_lined(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [one_lined(part) for part in value]
        return one_line(value) if isinstance(value, str) else value

    text = yaml.safe_dump(one_lined(values), sort_keys=False, allow_unicode=True, width=1 << 16)
    return f"---\n{text}---\n"


CARD_FILE = "README.md"
_WITHOUT_ENCODER = ("majority", "tfidf-linear")
HOME = "https://attentune.readthedocs.io"
_RESAMPLES = 500
_MOST_FINDINGS = 20
# What the card of an export replaces: `integrations.hub`.
USE_HEADING = "## How to use"
NEEDS_ATTENTUNE = "It needs Attentune to be installed; transformers alone cannot load it."
# The hub's names of metrics, where they differ.
_HUB_METRICS = {
    **dict.fromkeys(("f1_macro", "f1_micro", "f1_weighted"), "f1"),
    "precision_macro": "precision",
    "recall_macro": "recall",
    "pearson": "pearsonr",
    "mean_absolute_error": "mae",
    "mean_squared_error": "mse",
}
# Settings that are paths on the training machine, or that do not describe the model.
_LEFT_OUT = re.compile(
    r"preset|model\.(name_or_path|revision)|data\.(task|tasks|task_settings|dataset_\w+|\w+_files?|extra_train_weights|data_dir)"
    r"|training\.(output_dir|resume|overwrite_output_dir|report_to|logging_steps|save_\w+|max_hours)"
)


def write_results(
    run: Path, inputs: RunInputs, data: TaskData, result: RunResult, logits: Mapping[str, np.ndarray]
) -> None:
    """Write predictions, model card and scores of a finished run; `run.json` is last."""
    for split, logits_NC in logits.items():
        text = predictions_csv(data.splits[split], logits_NC, data.label_space)
        write_text(run / f"predictions_{split}.csv", text)
    facts = CardFacts(inputs.config, data, inputs.metric, result, logits, inputs.findings)
    write_text(run / CARD_FILE, model_card(facts))
    write_text(run / METRICS_FILE, to_json(result.metrics()))
    write_text(run / RESULT_FILE, result.to_json())


def model_card(facts: CardFacts) -> str:
    """Return the model card: YAML, then Markdown. The same run gives the same card."""
    bounds = facts.result.train.get("score_range")
    job = facts.data.label_space.job(is_pair=facts.data.is_pair, score_range=bounds)
    parts = [
        f"# {plain(_model_name(facts))} on {plain(facts.data.name)}",
        f"This model {plain(job)}.",
        "## Scores\n\n" + _scores(facts),
        *_baseline_parts(facts),
        "## Data\n\n" + _data(facts),
        "## Method\n\n" + _method(facts),
        "## Settings\n\n" + _settings(facts),
        f"{USE_HEADING}\n\n{_use(facts)}",
        "## Limits\n\n" + _limits(facts),
    ]
    return front_matter(_metadata(facts)) + "\n" + "\n\n".join(parts) + "\n"


def _model_name(facts: CardFacts) -> str:
    """Return the encoder's name, or the baseline's for one that does not use the encoder."""
    baseline = facts.config.baseline
    if baseline is None:
        return encoder_name(facts)
    return baseline if baseline in _WITHOUT_ENCODER else f"{baseline} of {encoder_name(facts)}"


def _metadata(facts: CardFacts) -> dict[str, Any]:
    """Return the content of the YAML block; the hub's model index leaves out scores that are undefined."""
    config, name = facts.config, facts.data.name
    base = None if config.baseline in _WITHOUT_ENCODER else hub_name(config.model.name_or_path)
    dataset = None if config.data.dataset_name is None else hub_name(config.data.dataset_name)
    scored = {split: part for split, part in facts.result.scores.items() if part}
    task = {"type": "text-classification"}
    results = [
        {
            "task": task,
            "dataset": {"type": re.sub(r"[^\w.-]+", "-", one_line(name)) or "data", "name": name, "split": split},
            "metrics": [
                {"type": _HUB_METRICS.get(metric, metric), "name": metric, "value": float(value)}
                for metric, value in part.items()
                if value is not None and math.isfinite(value)
            ],
        }
        for split, part in scored.items()
    ]
    results = [part for part in results if part["metrics"]]
    return {
        "library_name": "attentune",
        "pipeline_tag": "text-classification",
        **({} if base is None else {"base_model": base}),
        **({} if dataset is None else {"datasets": [dataset]}),
        "tags": ["attentune", "text-classification", facts.data.label_space.task_type]
        + ([] if config.preset is None else [config.preset]),
        "metrics": list(dict.fromkeys(_HUB_METRICS.get(metric, metric) for part in scored.values() for metric in part)),
        **({"model-index": [{"name": f"{_model_name(facts)} on {name}", "results": results}]} if results else {}),
    }


def _scores(facts: CardFacts) -> str:
    rows = [
        [split, f"`{name}`", f"{value:.4f}", _interval(facts, split, name), str(len(facts.data.splits[split]))]
        for split, part in facts.result.scores.items()
        for name, value in part.items()
        if value is not None and math.isfinite(value)
    ]
    if not rows:
        return "The run was not scored."
    text = "The interval tells how far chance in the choice of rows goes, at 95 %; not what another seed would give."
    if facts.metric.name == "accuracy":
        text += " It is Wilson's."
    else:
        text += f" It is the percentile interval of {_RESAMPLES} resamples of the rows."
    settings, best = facts.config.training, facts.result.best
    if best is not None and (settings.load_best_model_at_end or settings.early_stopping_patience is not None):
        text += " The weights were chosen by the validation score, which is therefore a little too good."
    return table(["split", "metric", "score", "95 % interval", "rows"], rows) + f"\n\n{text}"


def _baseline_parts(facts: CardFacts) -> list[str]:
    """Return the section that compares the model with baselines; none without a comparison."""
    made, warnings = facts.result.baselines, facts.result.warnings
    paragraphs = [plain(sentence) for sentence in warnings]
    if made is not None:
        numbers = [
            ["undefined" if one[name] is None else f"{one[name]:.4f}" for name in ("score", "low", "high")]
            for one in made["methods"]
        ]
        rows = [
            [plain(one["name"]), score, f"{low} to {high}"]
            for one, (score, low, high) in zip(made["methods"], numbers, strict=True)
        ]
        head = ["method", f"`{made['metric']}`", "95 % interval"]
        text = f"Fitted on the same training rows, scored on {made['split']} ({made['rows']} rows)."
        paragraphs = [text, table(head, rows), *paragraphs]
    return ["## Baselines\n\n" + "\n\n".join(paragraphs)] if paragraphs else []


def _interval(facts: CardFacts, split: str, name: str) -> str:
    """Return the interval of the metric that tells the best weights; an empty string for other metrics."""
    rows = facts.data.splits[split]
    if name != facts.metric.name or rows.labels is None or split not in facts.logits:
        return ""
    low, high = metric_interval(facts, rows, facts.logits[split])
    return f"{low:.4f} to {high:.4f}" if math.isfinite(low) and math.isfinite(high) else ""


def metric_interval(facts: CardFacts, rows: TextRows, logits_NC: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the chosen metric over these labelled rows; NaN if there is none."""
    labels, predicted = np.asarray(rows.labels), predictions_of(logits_NC, facts.data.label_space)
    generator = numpy_generator("model card", facts.result.seed)
    _, low, high = score_interval(facts.metric, labels, predicted, generator=generator, resamples=_RESAMPLES)
    return low, high


def _data(facts: CardFacts) -> str:
    prints = facts.result.data_fingerprint
    rows = [
        [split, str(len(part)), f"`{prints[split]}`" if split in prints else ""]
        for split, part in facts.data.splits.items()
    ]
    intro = f"{plain(facts.data.name)}. The fingerprint is a SHA-256 of a split's ids, texts and labels."
    return f"{intro}\n\n" + table(["split", "rows", "fingerprint"], rows) + _mixed_rows(facts) + _findings(facts)


def _findings(facts: CardFacts) -> str:
    """Return what the checks of the data have found, without words of the texts."""
    lines = [f"- {plain(sentence)}" for sentence in sentences_without_texts(facts.findings)[:_MOST_FINDINGS]]
    return "\n\nThe checks of the data (`attentune doctor`) found:\n\n" + "\n".join(lines) if lines else ""


def _mixed_rows(facts: CardFacts) -> str:
    """Return a table of the sources of the training rows, if there are several."""
    train = facts.data.splits["train"]
    if train.sources is None:
        return ""
    rows = [[plain(Path(part.source).name), str(part.rows), f"{part.weight:g}"] for part in train.row_sources()]
    intro = "Rows of several files were mixed to train on; a row's weight multiplies its loss."
    return f"\n\n{intro}\n\n" + table(["train", "rows", "weight"], rows)


def _method(facts: CardFacts) -> str:
    name, baseline = facts.config.preset, facts.config.baseline
    base = f"Fine-tuned from {plain(encoder_name(facts))}" if baseline is None else f"The baseline `{baseline}`"
    if (known := baseline or name) is None:
        return f"{base}, without a preset."
    preset = load_preset(known)
    with_preset = f" with the preset `{name}`" if baseline is None else ""
    return f"{base}{with_preset}: {plain(preset['description'])} Source: {plain(preset['source'])}."


def _settings(facts: CardFacts) -> str:
    defaults = to_flat(Config())
    rows = [
        [f"`{name}`", plain(value)]
        for name, value in to_flat(facts.config).items()
        if not _LEFT_OUT.fullmatch(name) and (value != defaults.get(name) or name in _ALWAYS) and value is not None
    ]
    known = {"precision": facts.result.train.get("precision"), "steps": facts.result.train.get("steps")}
    rows += [[name, plain(value)] for name, value in known.items() if value is not None]
    wanted, versions = ("attentune", "torch", "transformers"), facts.result.versions
    packages = ", ".join(f"{name} {plain(versions[name])}" for name in wanted if name in versions)
    return (
        "Those that differ from Attentune's defaults, and the usual ones; all are in `config.yaml`.\n\n"
        + table(["setting", "value"], rows)
        + f"\n\nMade with {packages}."
    )


_ALWAYS = (
    "data.max_length",
    "training.learning_rate",
    "training.num_train_epochs",
    "training.per_device_train_batch_size",
    "training.seed",
)


def _use(facts: CardFacts) -> str:
    pair = facts.data.is_pair
    given = '{"text": "A first text.", "text_pair": "A second one."}' if pair else '"A text."'
    second = ' --text_pair "A second one."' if pair else ""
    lists = '["A first text."], ["A second one."]' if pair else '["A text."]'
    return f"""With [Attentune]({HOME}) installed; FOLDER is this folder.

```bash
attentune predict FOLDER --text "A {"first " if pair else ""}text."{second}
```

```python
import attentune

print(attentune.predict("FOLDER", {lists}))
```""" + ("" if facts.config.baseline is not None else _use_transformers(given))


def _use_transformers(given: str) -> str:
    return f"""

With transformers, the same scores in float32:

```python
import attentune  # makes the model known to transformers
from transformers import pipeline

classify = pipeline("text-classification", model="FOLDER")
print(classify({given}, top_k=None, truncation=True))
```"""


# Pattern of the card's line from `_calibration`, which is replaced if the run is calibrated later.
LIMIT_OF_CALIBRATION = r"^- (Probabilities are those of the model, not calibrated\..*|Calibrated on ).*$"


def _calibration(facts: CardFacts) -> str:
    if facts.result.train.get("calibration") is None:
        errors = plain(" ".join(facts.result.calibration_notes))
        return f"Probabilities are those of the model, not calibrated. {errors}".strip()
    sentence = plain(facts.result.notes[-1])
    if facts.data.label_space.thresholds is not None:
        sentence += " Attentune and its pipeline predict by the thresholds; the bare model gives logits alone."
    return sentence


def _limits(facts: CardFacts) -> str:
    space, limit = facts.data.label_space, facts.config.data.longest_row
    is_bi_encoder = facts.data.is_pair and facts.config.model.pair_encoding == "bi-encoder"
    read = "each text of a pair" if is_bi_encoder else "a text or pair" if facts.data.is_pair else "a text"
    with_encoder = (
        f"Of {read} at most {limit} tokens are read"
        f"{f', {facts.config.data.max_length} at once' * (limit > facts.config.data.max_length)}; the rest is cut.",
        NEEDS_ATTENTUNE,
        "What the encoder has learnt from its own texts, its prejudices too, is still in it.",
    )
    lines = [
        "One run with one seed. Another seed gives another score; compare methods over several.",
        "The scores hold for rows such as those it was scored on. Other sources, times and languages were not tried.",
        *(with_encoder[1:2] if facts.config.baseline in _WITHOUT_ENCODER else with_encoder),
    ]
    if space.task_type != "regression":
        lines.append(_calibration(facts))
    if space.ordinal_prediction == "expected-value":
        lines.append("It predicts the class nearest to the mean of the classes, which may not be the likeliest one.")
    return "\n".join(f"- {line}" for line in lines)
