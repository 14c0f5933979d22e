"""`attentune train --adapt`: adapt an encoder to texts without labels."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from attentune.cli.early_checks import check_columns, check_command_folder, check_named
from attentune.cli.flags import Parser, add_config_flags, add_train_file, config_from
from attentune.training.prepare import ADAPTATION_SETTINGS
from attentune.training.run_folder import check_feasible

_EXAMPLES = """examples:
  attentune train reviews.csv --adapt --text_column text --output_dir adapted
  attentune train reviews.csv --adapt --max_steps 1000 --output_dir adapted
  attentune train reviews.csv --adapt --output_dir adapted --resume     (after an interruption)
  attentune train reviews.csv --model_name_or_path adapted --output_dir runs/reviews

The encoder learns to detect words that were changed. It helps where grammar and wording decide; attentune auto tries it
by itself on single texts. Labels in the file are not read."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune train --adapt",
        usage="attentune train FILE --adapt --output_dir DIR [flags]",
        description="Adapt an encoder to texts without labels, before it is fine-tuned (default: 300 updates).",
        epilog=_EXAMPLES,
    )
    made.add_argument("--quiet", action="store_true", help="no progress on standard error")
    add_train_file(made)
    add_config_flags(made, only=ADAPTATION_SETTINGS)
    return made


def run(arguments: Sequence[str]) -> int:
    """Adapt an encoder; return the exit status."""
    parsed, problems = parser().parse(arguments)
    config = config_from(parsed, problems)
    check_command_folder(
        config, "train --adapt", "training/config.yaml", "the folder of the encoder: --output_dir adapted"
    )
    check_named(parsed)
    check_columns(config.data.train_file, config.data)
    check_feasible(config)
    # Imported late, so that errors in flags are reported without delay.
    from attentune.training.adaptation import AdaptationDisplay, adapt
    from attentune.training.signals import Interrupted

    try:
        folder = adapt(config, display=AdaptationDisplay(quiet=parsed.quiet))
    except Interrupted as stop:
        options = ("--resume", "--overwrite_output_dir", "--overwrite-output-dir")
        again = [word for word in arguments if word not in options]
        print(
            f"attentune: stopped and saved at step {stop.step}; resume with:"
            f" {shlex.join(['attentune', 'train', *again, '--resume'])}",
            file=sys.stderr,
        )
        return 130
    print(f"{folder}: the adapted encoder. Fine-tune it: attentune train ... --model_name_or_path {folder}")
    return 0
