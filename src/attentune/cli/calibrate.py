"""`attentune calibrate`: fit the temperature and thresholds of a finished run."""

from __future__ import annotations

from collections.abc import Sequence

from attentune.cli.early_checks import check_named
from attentune.cli.flags import ROW_SETTINGS, Parser, add_config_flags, add_precision_flag, data_from

_EXAMPLES = """examples:
  attentune calibrate runs/reviews --validation_file kept.csv
  attentune calibrate runs/topics --validation_file kept.jsonl --thresholds f1
  attentune calibrate runs/reviews --calibrate none     (remove it again)"""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune calibrate",
        usage="attentune calibrate RUN [flags]",
        description="Fit a softmax temperature and decision thresholds on held-out rows, and save them in a run.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder")
    made.add_argument(
        "--calibrate",
        choices=("temperature", "none"),
        default="temperature",
        help="temperature: fit a softmax temperature; none: remove it (default: temperature)",
    )
    made.add_argument(
        "--thresholds",
        choices=("f1", "none"),
        default="none",
        help="f1: fit decision thresholds that maximise F1, for binary and multi-label tasks (default: none)",
    )
    made.add_argument("--split", default="validation", help="split: validation or test (default: validation)")
    add_precision_flag(made)
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    add_config_flags(made, only=ROW_SETTINGS)
    return made


def run(arguments: Sequence[str]) -> int:
    """Calibrate; return the exit status."""
    parsed, problems = parser().parse(arguments)
    data_config = data_from(parsed, problems)
    check_named(parsed)

    from attentune.results import to_json
    from attentune.training.calibration import calibrate_run

    done = calibrate_run(
        parsed.run,
        data_config,
        temperature=parsed.calibrate == "temperature",
        thresholds=parsed.thresholds == "f1",
        split=parsed.split,
        precision=parsed.precision,
    )
    if parsed.format == "json":
        print(to_json(done.facts()), end="")
    else:
        print(f"{done.folder}: {done.sentence()}")
    return 0
