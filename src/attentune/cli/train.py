"""`attentune train`: train a model; with `--adapt`, adapt an encoder to texts without labels."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attentune.cli.flags import FILE, QUIET, Parser, command_parser, config_from, given_settings, has_flag
from attentune.config import Config

# Exit status with --strict of a model that has not learnt the task, or not more than a baseline.
NOT_LEARNT = 3
_HELP = f"""
attentune train [flags]

Fine-tune an encoder on labelled texts or text pairs, score it and save it.

{FILE}
--adapt  adapt the encoder to texts without labels instead; see train --adapt --help
--strict  exit with status 3 if the model predicts one class for nearly all rows or is not better than a baseline
{QUIET}
--format text|json  output format of the scores (default: text)

examples:
  attentune train --task cola --data_dir glue_data --preset bert --output_dir runs/cola
  attentune train --train_file reviews.csv --text_column text --label_column stars --output_dir runs/reviews
  attentune train --resume --output_dir runs/cola            (after an interruption)
  attentune train --config runs/cola/config.yaml --seed 7 --output_dir runs/cola-7

Flags may be written with hyphens or underscores. Settings without a flag of their own: --set SECTION.KEY=VALUE."""

_ADAPT_HELP = f"""
attentune train FILE --adapt --output_dir DIR [flags]

Adapt an encoder to texts without labels, before it is fine-tuned (default: 300 updates).

{FILE}
--adapt  adapt the encoder
{QUIET}

examples:
  attentune train reviews.csv --adapt --text_column text --output_dir adapted
  attentune train reviews.csv --adapt --max_steps 1000 --output_dir adapted
  attentune train reviews.csv --adapt --output_dir adapted --resume     (after an interruption)
  attentune train reviews.csv --model_name_or_path adapted --output_dir runs/reviews

The encoder learns to detect words that were changed. It helps where grammar and wording decide; attentune auto tries it
by itself on single texts. Labels in the file are not read."""


def parser(arguments: Sequence[str] = ()) -> Parser:
    if not has_flag(arguments, "adapt"):
        return command_parser("train", _HELP, None, arguments)
    from attentune.training.prepare import ADAPTATION_SETTINGS

    return command_parser("train --adapt", _ADAPT_HELP, ADAPTATION_SETTINGS)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser(arguments).parse(arguments)
    config = config_from(parsed, problems)
    if parsed.adapt:
        return _adapt(arguments, config, parsed)
    config = with_run_folder(config)
    from attentune.cli.inputs import check_dataset_folder
    from attentune.training.callbacks import ProgressDisplay, is_main_rank
    from attentune.training.prepare import prepare
    from attentune.training.run_folder import Interrupted, check_feasible, config_for_run, resumed_config

    # Mistakes are told before PyTorch is imported.
    config = config_for_run(config)
    if config.training.resume:
        config = resumed_config(config, given_settings(parsed))
    check_feasible(config)
    check_dataset_folder(config.data)
    prepared = prepare(config)
    from attentune.results import to_json
    from attentune.training.run import finished_run
    from attentune.training.run import run as run_prepared

    try:
        with ProgressDisplay(quiet=parsed.quiet) as display:
            result = finished_run(config, display) if prepared is None else run_prepared(prepared, display=display)
    except Interrupted as stop:
        print(f"attentune: {stop}", file=sys.stderr)
        return 130
    if not is_main_rank():
        return 0
    print(to_json(result.metrics()) if parsed.format == "json" else _text(result), end="")
    if prepared is not None and not parsed.quiet:
        from attentune.cli.output import tell_next

        tell_next(config.training.output_dir, next(reversed(prepared.data.splits.values())))
    return NOT_LEARNT if parsed.strict and result.warnings else 0


def with_run_folder(config: Config) -> Config:
    """Return the configuration with a run folder named after the training file, if none is given."""
    file, settings = config.data.train_file, config.training
    # Several processes have to agree on the folder, so it has to be given there.
    if settings.output_dir is not None or settings.resume or file is None or "WORLD_SIZE" in os.environ:
        return config
    from attentune.training.run_folder import free_folder

    folder = free_folder(Path(file).name.split(".")[0] or "run")
    print(f"The run folder is {folder}, as --output_dir is not given.", file=sys.stderr)
    return replace(config, training=replace(settings, output_dir=str(folder)))


def _text(result: Any) -> str:
    from attentune.cli.output import number, scores_table, table

    text, baselines = "\n".join([scores_table(result.scores), *result.calibration_notes, ""]), result.baselines
    if baselines is None:
        return text
    rows = [
        (
            one["name"],
            number(one["score"]),
            "" if one["low"] is None else f"{number(one['low'])} to {number(one['high'])}",
            number(one["seconds"], 1),
        )
        for one in baselines["methods"]
    ]
    lines = table(("method", baselines["metric"], "95 % interval", "seconds"), rows, right=(1, 3))
    about = f"{baselines['split']}, {baselines['rows']:,} rows; {baselines['interval']} intervals over rows."
    return f"{text}\n{lines}\n{about}\n"


def _adapt(arguments: Sequence[str], config: Config, parsed: Any) -> int:
    from attentune.cli.inputs import check_columns, check_command_folder, check_named
    from attentune.cli.output import stopped
    from attentune.training.run_folder import check_feasible

    missing = "the folder of the encoder: --output_dir adapted"
    check_command_folder(config, "train --adapt", "training/config.yaml", missing)
    check_named(parsed)
    check_columns(config.data.train_file, config.data)
    check_feasible(config)
    # Imported late, so that mistakes are reported without delay.
    from attentune.training.adaptation import adapt
    from attentune.training.callbacks import ProgressDisplay
    from attentune.training.run_folder import Interrupted

    try:
        folder = adapt(config, display=ProgressDisplay(quiet=parsed.quiet, only_steps=True))
    except Interrupted as stop:
        return stopped(f"stopped and saved at step {stop.step}.", "train", arguments, resume=True)
    print(f"{folder}: the adapted encoder. Fine-tune it: attentune train ... --model_name_or_path {folder}")
    return 0
