"""`attentune submit`: write a GLUE submission."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from attentune.cli.early_checks import check_named
from attentune.cli.flags import Parser, add_precision_flag
from attentune.errors import ConfigError

_EXAMPLES = """examples:
  attentune submit runs/cola runs/rte runs/mnli --output_file submission.zip
  attentune submit runs/* --output_file submission.zip --data_dir glue_data --fill_missing

One run per task; a run of MNLI predicts MNLI-m, MNLI-mm and AX. The task of a run is read from its config.yaml."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune submit",
        usage="attentune submit RUN [RUN ...] --output_file FILE.zip [flags]",
        description="Predict the GLUE test sets and write a zip for the GLUE leaderboard.",
        epilog=_EXAMPLES,
    )
    made.add_argument("runs", metavar="RUN", nargs="+", help="run folders, trained on GLUE tasks")
    made.add_argument("--output_file", metavar="FILE", required=True, help="the zip to write")
    made.add_argument("--data_dir", metavar="DIR", help="the GLUE folder (default: that of each run)")
    made.add_argument("--fill_missing", action="store_true", help="write constant predictions for tasks without a run")
    made.add_argument("--allow_partial", action="store_true", help="accept truncated test files, with a warning")
    add_precision_flag(made, predicts=True)
    return made


def run(arguments: Sequence[str]) -> int:
    """Write the zip; return the exit status."""
    parsed, problems = parser().parse(arguments)
    if problems:
        raise ConfigError(problems)
    check_named(parsed)

    from attentune.cli.output import progress_lines
    from attentune.suites.glue import check_zip_file, make_submission

    check_zip_file(parsed.output_file)
    submission = make_submission(
        parsed.runs,
        data_dir=parsed.data_dir,
        fill_missing=parsed.fill_missing,
        allow_partial=parsed.allow_partial,
        precision=parsed.precision,
        progress=progress_lines(),
    )
    submission.write(parsed.output_file)
    print(_text(submission))
    for warning in submission.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if submission.missing:
        print(
            f"warning: the zip lacks {', '.join(submission.missing)}; the leaderboard needs all tasks. Add runs for"
            " them, or --fill_missing.",
            file=sys.stderr,
        )
    print(f"written to {parsed.output_file}", file=sys.stderr)
    return 0


def _text(submission: Any) -> str:
    from attentune.cli.output import table

    rows = [
        (name, f"{content.count(chr(10)) - 1:,}", submission.runs[name] or "(filled)")
        for name, content in submission.contents.items()
    ]
    lines = [table(("file", "rows", "predicted by"), rows, right=(1,))]
    if (average := submission.average) is not None:
        wnli = ", with the majority class on WNLI (65.1)" if average.is_complete else ""
        lines.append(f"\n{average.name} on the validation rows: {100 * average.value:.1f}{wnli}")
    return "\n".join(lines)
