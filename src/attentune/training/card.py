"""The model card of a run: its `README.md`, in the format of the Hugging Face hub."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from attentune.config import Config, to_flat
from attentune.config.load import load_preset
from attentune.data.dataset import Finding, TaskData
from attentune.data.doctor import sentences_without_texts
from attentune.inference.predictions import predictions_csv
from attentune.io.files import write_text
from attentune.metrics.intervals import score_interval
from attentune.metrics.metrics import Metric, predictions_of
from attentune.models.build import hub_name
from attentune.results import RESULT_FILE, RunResult, to_json
from attentune.seeding import numpy_generator
from attentune.training.callbacks import number
from attentune.training.prepare import RunInputs, wants_best
from attentune.training.run_folder import METRICS_FILE


@dataclass(frozen=True)
class CardFacts:
    config: Config  # the run's settings
    data: TaskData  # its rows
    metric: Metric  # the metric that tells the best weights
    result: RunResult  # the run's record
    logits: Mapping[str, np.ndarray]  # (N, C) logits of each predicted split
    findings: Sequence[Finding] = ()  # from the checks of the data


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
_PACKAGES = ("attentune", "torch", "transformers")
# What the card of an export replaces: `integrations.exports`.
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
    r"preset|model\.(name_or_path|revision)|data\.(task|dataset_\w+|\w+_files?|extra_train_weights|data_dir)"
    r"|training\.(output_dir|resume|overwrite_output_dir|report_to|logging_steps|save_\w+)"
)


_ALWAYS = (
    "data.max_length",
    "training.learning_rate",
    "training.num_train_epochs",
    "training.per_device_train_batch_size",
    "training.seed",
)
# Every value is escaped for Markdown, except what the template marks as safe.
_TEMPLATE = Environment(
    loader=PackageLoader("attentune.training", "."),
    finalize=lambda value: value if isinstance(value, Markup) else plain(value),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
).get_template("card.md.jinja")


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
    config, data, result, metric = facts.config, facts.data, facts.result, facts.metric.name
    bounds = result.train.get("score_range")
    known, train = config.baseline or config.preset, data.splits["train"]
    chosen = result.best is not None and wants_best(config.training)
    text = _TEMPLATE.render(
        config=config,
        data=data,
        result=result,
        name=_model_name(facts),
        encoder=encoder_name(facts),
        job=data.label_space.job(is_pair=data.is_pair, score_range=bounds),
        scores=[
            (split, name, f"{value:.4f}", _interval(facts, split, name))
            for split, part in result.scores.items()
            for name, value in part.items()
            if value is not None and math.isfinite(value)
        ],
        main_metric=metric,
        resamples=_RESAMPLES,
        is_chosen=chosen,
        number=number,
        sources=[(Path(part.source).name, part.rows, f"{part.weight:g}") for part in train.row_sources()]
        if train.sources is not None
        else [],
        findings=sentences_without_texts(facts.findings)[:_MOST_FINDINGS],
        preset=None if known is None else load_preset(known),
        settings=_settings(facts),
        packages=", ".join(f"{name} {result.versions[name]}" for name in _PACKAGES if name in result.versions),
        use_heading=USE_HEADING,
        needs_attentune=NEEDS_ATTENTUNE,
        home=HOME,
        has_encoder=config.baseline not in _WITHOUT_ENCODER,
        is_bi_encoder=data.is_pair and config.model.pair_encoding == "bi-encoder",
        longest=config.data.longest_row,
        calibration=None if data.label_space.task_type == "regression" else _calibration(facts),
        rejection=next((note for note in result.notes if "rejected as of no class: " in note), NO_REJECTION),
        calibration_error=next((note for note in result.calibration_notes if note.startswith("Expected")), None),
    )
    return f"{front_matter(_metadata(facts))}\n{text.strip()}\n"


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


def _interval(facts: CardFacts, split: str, name: str) -> str:
    """Return the interval of the metric that tells the best weights; an empty string for other metrics."""
    rows = facts.data.splits[split]
    if name != facts.metric.name or rows.labels is None or split not in facts.logits:
        return ""
    predictions = predictions_of(facts.logits[split], facts.data.label_space)
    low, high = metric_interval(facts.metric, np.asarray(rows.labels), predictions, facts.result.seed)
    return f"{low:.4f} to {high:.4f}" if math.isfinite(low) and math.isfinite(high) else ""


def metric_interval(metric: Metric, labels: np.ndarray, predictions: np.ndarray, seed: int) -> tuple[float, float]:
    """Return the 95 % interval of a score over rows; NaN if there is none."""
    generator = numpy_generator("model card", seed)
    value, low, high = score_interval(metric, labels, predictions, generator=generator, resamples=_RESAMPLES)
    return (low, high) if math.isfinite(value) else (math.nan, math.nan)


def _settings(facts: CardFacts) -> list[tuple[str, Any]]:
    """Return the settings to show with their values: those that differ from the defaults, and the usual ones."""
    defaults, train = to_flat(Config()), facts.result.train
    rows = [
        (f"`{name}`", value)
        for name, value in to_flat(facts.config).items()
        if not _LEFT_OUT.fullmatch(name) and (value != defaults.get(name) or name in _ALWAYS) and value is not None
    ]
    return rows + [(name, train[name]) for name in ("precision", "steps") if train.get(name) is not None]


# Pattern of the card's line from `_calibration`, which is replaced if the run is calibrated later.
LIMIT_OF_CALIBRATION = r"^- (Probabilities are those of the model, not calibrated\.|Calibrated on ).*$"


# The same for the line on texts of no class.
NO_REJECTION = "Every text gets a class; none is rejected."
LIMIT_OF_REJECTION = rf"^- ({re.escape(NO_REJECTION)}|.* rejected as of no class: ).*$"


def _calibration(facts: CardFacts) -> str:
    if facts.result.train.get("calibration") is None:
        return "Probabilities are those of the model, not calibrated."
    sentence = plain(facts.result.notes[-1])
    if facts.data.label_space.thresholds is not None:
        sentence += " Attentune and its pipeline predict by the thresholds; the bare model gives logits alone."
    return sentence
