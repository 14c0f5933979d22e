"""`attentune evaluate`: score a saved run."""

from __future__ import annotations

from collections.abc import Sequence

from attentune.cli.flags import Parser, add_config_flags, add_precision_flag, data_from

_EXAMPLES = """examples:
  attentune evaluate runs/cola                                   (on the validation rows of its training)
  attentune evaluate runs/mine --validation_file other.csv --text_column text --label_column label
  attentune evaluate runs/mnli --task mnli --data_dir glue_data --format json"""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune evaluate",
        usage="attentune evaluate RUN [flags]",
        description="Evaluate a saved run on labelled texts. Labels are matched by name.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    made.add_argument("--split", default="validation", help="split: validation, test or train (default: validation)")
    add_precision_flag(made, predicts=True)
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    add_config_flags(made, sections=("data",))
    return made


def run(arguments: Sequence[str]) -> int:
    """Score; return the exit status."""
    parsed, problems = parser().parse(arguments)
    data_config = data_from(parsed, problems)

    from attentune.cli.output import scores_table
    from attentune.inference.predictor import evaluate
    from attentune.results import to_json

    scores = evaluate(parsed.run, data_config, splits=(parsed.split,), precision=parsed.precision)
    print(
        to_json(scores) if parsed.format == "json" else scores_table(scores),
        end="" if parsed.format == "json" else "\n",
    )
    return 0
