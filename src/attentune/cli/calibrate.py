"""`attentune calibrate`"""

from __future__ import annotations

from collections.abc import Sequence

from attentune.cli.flags import Parser, add_config_flags, add_precision_flag, data_from

_EXAMPLES = """examples:
  attentune calibrate runs/reviews --validation_file kept.csv
  attentune calibrate runs/topics --validation_file kept.jsonl --thresholds f1
  attentune calibrate runs/reviews --calibrate none     (take it back)"""


def parser() -> Parser:
    """The flags of this command."""
    made = Parser(
        prog="attentune calibrate",
        usage="attentune calibrate RUN [flags]",
        description="Fit a temperature, and thresholds, to rows that a finished run has not seen, and save them in it.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder")
    made.add_argument(
        "--calibrate",
        choices=("temperature", "none"),
        default="temperature",
        help="what logits are divided by, so that probabilities are true (default: temperature)",
    )
    made.add_argument(
        "--thresholds",
        choices=("f1", "none"),
        default="none",
        help="from which probability on a label, or the second of two classes, is predicted (default: none)",
    )
    made.add_argument("--split", default="validation", help="validation or test (default: validation)")
    add_precision_flag(made)
    made.add_argument("--format", choices=("text", "json"), default="text", help="how the result is printed")
    add_config_flags(made, sections=("data",))
    return made


def run(arguments: Sequence[str]) -> int:
    """Calibrate; the exit status is returned."""
    parsed, problems = parser().parse(arguments)
    data_config = data_from(parsed, problems)

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
