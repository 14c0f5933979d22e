"""`attentune auto`: the best model for some rows within a time limit."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attentune.cli.early_checks import check_command_folder, check_data, check_files_of_rows
from attentune.cli.flags import MOST_USED, Parser, add_config_flags, add_train_file, config_from, names_in, whole_number
from attentune.errors import ConfigError
from attentune.training.run_folder import check_feasible

_EXAMPLES = """examples:
  attentune auto --train_file reviews.csv --label_column stars --time_limit 10m --output_dir best
  attentune auto --train_file pairs.csv --text_column first --text_pair_column second --time_limit 1h --output_dir best
  attentune auto --train_file reviews.csv --encoders embedded,models/e5-small --output_dir best
  attentune auto --train_file reviews.csv --portfolio tfidf-linear,frozen-linear,bert-mean --output_dir quick
  attentune auto --train_file reviews.csv --time_limit 20m --output_dir best --resume  (after Ctrl-C, or for more time)
  attentune predict best --text "a fine story"

Members of the portfolio are scored on folds of the training rows; validation and test files are scored at the end and
choose nothing. Settings given as flags apply to all members."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune auto",
        usage="attentune auto --train_file FILE --time_limit 10m --output_dir DIR [flags]",
        description="Find and train the best model for labelled texts or pairs within a time limit.",
        epilog=_EXAMPLES,
    )
    made.add_argument(
        "--time_limit", metavar="TIME", default="10m", help="time for everything: 90s, 10m, 1h (default: 10m)"
    )
    made.add_argument(
        "--encoders", metavar="A,B", help="encoders to try: names or folders (default: that of --model_name_or_path)"
    )
    made.add_argument(
        "--deliver",
        metavar="best|single",
        default="best",
        help="deliver the best model or ensemble, or one encoder that learns from it (default: best)",
    )
    made.add_argument(
        "--unlabeled_file",
        metavar="FILE",
        help="further texts without labels, to adapt encoders to, and for --deliver single to learn from",
    )
    made.add_argument("--portfolio", metavar="A,B", help="members to try (default: all that fit the rows)")
    made.add_argument("--exclude", metavar="A,B", help="members to leave out")
    made.add_argument("--cv_folds", metavar="N", help="number of folds (default: 5, fewer if time is short)")
    made.add_argument("--jobs", metavar="N", help="worker processes (default: one per core on a CPU, else 1)")
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format of the leaderboard")
    made.add_argument("--quiet", action="store_true", help="no progress on standard error")
    add_train_file(made)
    add_config_flags(made, first=MOST_USED)
    return made


def run(arguments: Sequence[str]) -> int:
    """Find the best model; return the exit status."""
    from attentune.automl.budget import parse_duration
    from attentune.automl.portfolio import unknown_members

    parsed, problems = parser().parse(arguments)
    try:
        seconds = parse_duration(parsed.time_limit)
    except ConfigError as error:
        problems += error.problems
    jobs = whole_number("--jobs", parsed.jobs, problems)
    folds = whole_number("--cv_folds", parsed.cv_folds, problems, minimum=2)
    problems += unknown_members(_names(parsed.portfolio) or (), _names(parsed.exclude) or ())
    config = config_from(parsed, problems)
    check_command_folder(config, "auto", "auto", "the run folder: --output_dir best")
    check_data(config.data, seed=config.training.seed)
    check_files_of_rows({"unlabeled_file": parsed.unlabeled_file})
    encoders = _names(parsed.encoders) or [config.model.name_or_path]
    for name in encoders:
        check_feasible(replace(config, model=replace(config.model, name_or_path=name)))
    # Imported late, so that errors in flags are reported without delay.
    from attentune.automl.auto import auto
    from attentune.automl.leaderboard import AutoProgress
    from attentune.results import to_json

    try:
        result = auto(
            config,
            time_limit_s=seconds,
            folds=folds,
            encoders=encoders,
            portfolio=_names(parsed.portfolio),
            exclude=_names(parsed.exclude) or (),
            deliver=parsed.deliver,
            unlabeled_file=parsed.unlabeled_file,
            jobs=jobs,
            resume=config.training.resume,
            display=AutoProgress(quiet=parsed.quiet),
        )
    except KeyboardInterrupt:
        print(f"attentune: stopped; the finished folds are kept. Resume with:\n  {_again(arguments)}", file=sys.stderr)
        return 130
    print(to_json(result.to_dict()) if parsed.format == "json" else auto_text(result), end="")
    if result.stopped:
        print(
            f"attentune: stopped; the best so far is in {result.folder}. Resume with:\n  {_again(arguments)}",
            file=sys.stderr,
        )
        return 130
    return 0


def auto_text(result: Any) -> str:
    """Format the leaderboard, what was delivered and why, and the estimate for new rows."""
    from attentune.automl.leaderboard import LEADERBOARD_HEADER, estimate_sentence, leaderboard_cells
    from attentune.cli.output import scores_table, table

    header = (LEADERBOARD_HEADER[0], result.metric, *LEADERBOARD_HEADER[2:])
    parts = [table(header, leaderboard_cells(result.leaderboard), right=(1, 3, 4)), "", result.reason]
    parts.append(estimate_sentence(result.estimate))
    if result.scores:
        parts += ["", "Rows that chose nothing:", scores_table(result.scores)]
    return "\n".join([*parts, "", f"Saved in {result.folder} ({result.seconds:.0f} s).", ""])


def _names(text: str | None) -> list[str] | None:
    """Split a comma-separated list; None if it is not given."""
    return None if text is None else names_in(text)


def _again(arguments: Sequence[str]) -> str:
    """Return the command that resumes."""
    kept = [word for word in arguments if word not in ("--resume", "--overwrite_output_dir", "--overwrite-output-dir")]
    return shlex.join(["attentune", "auto", *kept, "--resume"])
