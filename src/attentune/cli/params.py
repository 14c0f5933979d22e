"""`attentune params`: count parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import Parser, add_config_flags, config_from, overrides_of, whole_number
from attentune.config import model_preset_names
from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError

_EXAMPLES = """examples:
  attentune params task-attention                    (embedded encoder, single texts, two classes)
  attentune params task-attention --pairs --model_name_or_path bert-base-uncased
  attentune params runs/quora --format json"""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune params",
        usage="attentune params RUN|PRESET [flags]",
        description="Count the parameters of a run, or of a new model of a preset, by component.",
        epilog=_EXAMPLES,
    )
    made.add_argument("name", metavar="RUN|PRESET", help="the name of a preset, or a run folder or checkpoint")
    made.add_argument("--pairs", action="store_true", help="preset: build the model for pairs of texts")
    made.add_argument("--num_labels", help="preset: number of classes; 1 for regression (default: 2)")
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    made.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="preset: any setting to change"
    )
    add_config_flags(made, sections=("model",))
    return made


def run(arguments: Sequence[str]) -> int:
    """Count; return the exit status."""
    parsed, problems = parser().parse(arguments)
    num_labels = whole_number("--num_labels", parsed.num_labels, problems)
    if parsed.name in model_preset_names():
        parsed.preset = parsed.name
        model = _fresh_model(config_from(parsed, problems), 2 if num_labels is None else num_labels, parsed.pairs)
    else:
        model = _saved_model(parsed, problems)

    from attentune.models.build import count_parameters
    from attentune.results import to_json

    counts = count_parameters(model)
    print(to_json(dataclasses.asdict(counts)) if parsed.format == "json" else _text(counts), end="")
    return 0


def _fresh_model(config: Any, num_labels: int, is_pair: bool) -> Any:
    from attentune.data.dataset import LabelSpace
    from attentune.models.build import build_model, load_tokenizer

    names = tuple(str(number) for number in range(num_labels))
    model = build_model(
        config.model,
        LabelSpace("regression") if num_labels == 1 else LabelSpace("classification", names),
        load_tokenizer(config.model),
        max_length=config.data.max_length,
        is_pair=is_pair,
        seed=config.training.seed,
    )
    return _frozen(model, config)


def _saved_model(parsed: Any, problems: list[str]) -> Any:
    from pathlib import Path

    if not Path(parsed.name).is_dir():
        names = ", ".join(model_preset_names())
        problems.append(
            f"params: got {parsed.name!r}, expected the folder of a run, or a preset: {names}."
            f"{did_you_mean(parsed.name, model_preset_names())}"
        )
    if overrides_of(parsed, problems) or parsed.pairs or parsed.num_labels is not None:
        problems.append("params: settings, --pairs and --num_labels go with a preset, not with a run.")
    if problems:
        raise ConfigError(problems)

    from attentune.inference.predictor import Predictor

    saved = Predictor.load(parsed.name).single_model("params")
    return _frozen(saved.model, saved.config)


def _frozen(model: Any, config: Any) -> Any:
    if config.training.freeze_encoder:
        model.freeze_encoder()
    return model


def _text(counts: Any) -> str:
    from attentune.cli.output import table

    rows = [(name.replace("_", " "), f"{n.parameters:,}", f"{n.trainable:,}") for name, n in counts.parts.items()]
    rows.append(("total", f"{counts.total.parameters:,}", f"{counts.total.trainable:,}"))
    lines = table(("component", "parameters", "trainable"), rows, right=(1, 2))
    if counts.attention_matrices or counts.projection_matrix:
        unused = (
            f" (with {counts.unused_matrices:,} that the paper counts but its program never applies, and that are not"
            " parameters here)"
            if counts.unused_matrices
            else ""
        )
        lines += (
            f"\n\nOf these, without biases, normalisation and feed-forward layers:"
            f" {counts.attention_matrices:,} in the head's attention matrices{unused},"
            f" {counts.projection_matrix:,} in the projection before the dot product."
        )
    return lines + "\n"
