"""`attentune params`: count parameters."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attentune.cli.flags import FORMAT, check, config_from, overrides_of, parser_of
from attentune.cli.output import table
from attentune.config import model_preset_names
from attentune.config.parse import did_you_mean

_HELP = f"""
attentune params RUN|PRESET [flags]

Count the parameters of a run, or of a new model of a preset, by component.

RUN|PRESET  the name of a preset, or a run folder or checkpoint
--pairs  preset: build the model for pairs of texts
--num_labels N  preset: number of classes; 1 for regression (2 if not given)
{FORMAT}
--set SECTION.KEY=VALUE...  preset: any setting to change

examples:
  attentune params task-attention                    (embedded encoder, single texts, two classes)
  attentune params task-attention --pairs --model_name_or_path bert-base-uncased
  attentune params runs/quora --format json"""

parser = parser_of("params", _HELP, ("model",))


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    if parsed.run in model_preset_names():
        parsed.preset = parsed.run
        config = config_from(parsed, problems)
        model = _new_model(config, parsed.num_labels or 2, parsed.pairs)
    else:
        saved = _saved_model(parsed, problems)
        model, config = saved.model, saved.config
    if config.training.freeze_encoder:
        model.freeze_encoder()

    from attentune.models.build import count_parameters
    from attentune.results import to_json

    counts = count_parameters(model)
    if parsed.format == "json":
        print(to_json(dataclasses.asdict(counts)), end="")
        return 0
    parts = {**counts.parts, "total": counts.total}
    rows = [(name.replace("_", " "), f"{n.parameters:,}", f"{n.trainable:,}") for name, n in parts.items()]
    print(table(("component", "parameters", "trainable"), rows, right=(1, 2)))
    return 0


def _new_model(config: Any, num_labels: int, is_pair: bool) -> Any:
    from attentune.data.dataset import LabelSpace
    from attentune.models.build import build_model, load_tokenizer

    names = tuple(str(number) for number in range(num_labels))
    return build_model(
        config.model,
        LabelSpace("regression") if num_labels == 1 else LabelSpace("classification", names),
        load_tokenizer(config.model),
        max_length=config.data.max_length,
        is_pair=is_pair,
        seed=config.training.seed,
    )


def _saved_model(parsed: Any, problems: list[str]) -> Any:
    if not Path(parsed.run).is_dir():
        names = ", ".join(model_preset_names())
        problems.append(
            f"params: got {parsed.run!r}, expected the folder of a run, or a preset: {names}."
            f"{did_you_mean(parsed.run, model_preset_names())}"
        )
    if overrides_of(parsed, problems) or parsed.pairs or parsed.num_labels is not None:
        problems.append("params: settings, --pairs and --num_labels go with a preset, not with a run.")
    check(problems)

    from attentune.inference.predictor import Predictor

    return Predictor.load(parsed.run).single_model("params")
