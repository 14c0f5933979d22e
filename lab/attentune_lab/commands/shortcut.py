"""`attentune shortcut`: methods on synthetic reviews with a planted shortcut that is reversed in a test set."""

import shlex
import sys
from collections.abc import Sequence

from attentune.cli.flags import Parser, names_in, number_from
from attentune.cli.output import number, table
from attentune.config import TrainingConfig, load_preset, model_preset_names
from attentune.config.parse import parse_section
from attentune.errors import ConfigError

SUMMARY = "train methods on reviews with a planted shortcut, and see who relies on it"
_DESCRIPTION = """Trains several methods with three seeds on synthetic film reviews with a shortcut, a cinema that
agrees with the label in training and validation and contradicts it in a challenge set. After an interruption, the
same command resumes."""


def parser() -> Parser:
    made = Parser(prog="attentune shortcut", usage="attentune shortcut [flags]", description=_DESCRIPTION)
    made.add_argument("--presets", default="", help="presets, or all (default: one of each paper and two poolings)")
    made.add_argument("--output_dir", default="runs/shortcut", help="where data and runs go (default: runs/shortcut)")
    made.add_argument("--model_name_or_path", default="embedded", help="the encoder (default: embedded)")
    made.add_argument("--num_train_epochs", help="passes over the rows (default: 3)")
    made.add_argument("--seed", default="42", help="seed of the reviews, and the first of three of training")
    made.add_argument("--jobs", metavar="N", help="parallel runs (default: one per core on a CPU, else 1)")
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format of the results")
    made.add_argument("--quiet", action="store_true", help="no progress on standard error")
    return made


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    given = {"seed": parsed.seed}
    if parsed.num_train_epochs is not None:
        given["num_train_epochs"] = parsed.num_train_epochs
    training = parse_section(TrainingConfig, given, "training", problems)
    overrides: dict[str, object] = {"model.name_or_path": parsed.model_name_or_path}
    if parsed.num_train_epochs is not None:
        overrides["training.num_train_epochs"] = training.num_train_epochs
    presets = model_preset_names() if parsed.presets.strip() == "all" else tuple(names_in(parsed.presets))
    for name in presets:
        try:
            load_preset(name)
        except ConfigError as error:
            problems += error.problems
    jobs = number_from("--jobs", parsed.jobs, problems)
    if problems:
        raise ConfigError(problems)

    from attentune.results import to_json, without_nan
    from attentune.runs.compare import ComparisonStopped
    from attentune_lab.shortcut import DEFAULT_PRESETS, NOTES, run_shortcut, sentences

    try:
        lines = run_shortcut(
            parsed.output_dir, presets=presets or DEFAULT_PRESETS, seed=training.seed, overrides=overrides, jobs=jobs,
            quiet=parsed.quiet,
        )  # fmt: skip
    except (ComparisonStopped, KeyboardInterrupt) as stop:
        again = shlex.join(["attentune", "shortcut", *arguments])
        print(f"attentune: {stop or 'stopped; what is finished is kept.'} Resume with:\n  {again}", file=sys.stderr)
        return 130
    if parsed.format == "json":
        print(to_json(without_nan([line.to_dict() for line in lines])), end="")
        return 0
    header = ("preset", "validation", "challenge", "fall", "95 % interval", "seconds")
    rows = [
        (
            line.preset,
            number(line.validation.value, 3),
            number(line.challenge.value, 3),
            number(line.fall.value, 3),
            f"{line.fall.low:.3f} to {line.fall.high:.3f}",
            number(line.seconds, 0),
        )
        for line in lines
    ]
    print(table(header, rows, right=range(1, len(header))))
    print("\n" + "\n".join([*NOTES, *sentences(lines)]))
    print(f"\nData and runs: {parsed.output_dir}")
    print(f'Next: attentune predict {lines[0].folders[0]} --text "The story was not dull at all."')
    return 0
