"""`attentune explain --fit`: fit a head to a run that explains each prediction in the same pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attentune.cli.early_checks import add_best_flag, check_named, use_best
from attentune.cli.flags import Parser, add_config_flags, add_precision_flag, config_from, whole_number

_EXAMPLES = """examples:
  attentune explain runs/mine --fit
  attentune explain runs/mine --fit --input_file unlabelled.csv --max_samples 5000
  attentune explain runs/mine --text "The story was not dull at all."       (now by fast-shap)
  attentune predict runs/mine --input_file new.csv --explain --output_file labelled.csv

The model predicts masked copies of texts, and a small head learns from its hidden states what each token contributes
(FastSHAP, Jethani et al. 2022). It is saved in the run's folder; the model is not changed. Labels are not used."""
_DATA = ("data.text_column", "data.text_pair_column", "data.id_column", "data.delimiter", "data.encoding")


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune explain --fit",
        usage="attentune explain RUN --fit [flags]",
        description="Fit a head to a saved run that explains each prediction in the pass that makes it.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder")
    add_best_flag(made, with_task=True)
    made.add_argument("--input_file", help="a file of texts without labels (default: the run's training rows)")
    made.add_argument("--max_samples", help="the most texts, drawn at random (default: 2000)")
    made.add_argument("--copies", help="masked copies of each text, an even number (default: 8)")
    made.add_argument("--seed", help="random seed of the copies (default: 0)")
    add_precision_flag(made)
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    add_config_flags(made, sections=("data",), only=_DATA)
    return made


def run(arguments: Sequence[str]) -> int:
    """Fit and save the head; return the exit status."""
    parsed, problems = parser().parse(arguments)
    numbers = {
        "max_samples": whole_number("--max_samples", parsed.max_samples, problems),
        "copies": whole_number("--copies", parsed.copies, problems),
        "seed": whole_number("--seed", parsed.seed, problems, minimum=0),
    }
    use_best(parsed)
    data = config_from(parsed, problems).data
    check_named(parsed)

    from attentune.cli.output import progress_lines
    from attentune.explain.texts import fit_explainer
    from attentune.inference.predictor import Predictor
    from attentune.results import to_json

    saved = Predictor.load(parsed.run)
    facts = fit_explainer(
        saved,
        _texts(parsed, data, saved),
        precision=parsed.precision,
        progress=progress_lines(),
        **{name: value for name, value in numbers.items() if value is not None},
    )
    if parsed.format == "json":
        print(to_json({"run": parsed.run, **facts.to_dict()}), end="")
        return 0
    print(fit_note(parsed.run, facts))
    return 0


def fit_note(folder: str, facts: Any) -> str:
    """Return what a fitted head is worth, in sentences."""
    note = (
        f"{folder}: explained by fast-shap from now on. Fitted on {facts.texts} texts; on {facts.held_out_texts}"
        f" others its scores explain {max(0.0, facts.explained_variance):.0%} of how the prediction changes when tokens"
        " are masked."
    )
    if facts.explained_variance >= 0.5:
        return note
    return (
        f"{note} That is less than half: fit it on more texts, which need no labels (--input_file texts.csv), or use"
        " --method leave-one-out."
    )


def _texts(parsed: Any, data: Any, saved: Any) -> Any:
    """Read the texts of --input_file; None for the run's training rows."""
    if parsed.input_file is None:
        return None
    from attentune.data.unlabelled import read_unlabelled

    return read_unlabelled(
        parsed.input_file, label_space=saved.label_space, is_pair=saved.is_pair, config=saved.with_columns(data)
    )
