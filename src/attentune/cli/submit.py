"""`attentune submit`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import Parser, add_precision_flag
from attentune.errors import ConfigError

_EXAMPLES = """examples:
  attentune submit runs/cola runs/rte runs/mnli --output_file submission.zip
  attentune submit runs/* --output_file submission.zip --data_dir glue_data --fill_missing

One run a task; a run of MNLI predicts MNLI-m, MNLI-mm and AX. Each run's task comes from its config.yaml."""


def parser() -> Parser:
    """The flags of this command."""
    made = Parser(
        prog="attentune submit",
        usage="attentune submit RUN [RUN ...] --output_file FILE.zip [flags]",
        description="Predict GLUE's test rows and zip the predictions as the GLUE site takes them.",
        epilog=_EXAMPLES,
    )
    made.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs that were trained on GLUE tasks")
    made.add_argument("--output_file", metavar="FILE", required=True, help="the zip to write")
    made.add_argument("--data_dir", metavar="DIR", help="GLUE's folder (default: each run's own)")
    made.add_argument("--fill_missing", action="store_true", help="a constant prediction for tasks without a run")
    made.add_argument("--allow_partial", action="store_true", help="take cut test files, and warn")
    add_precision_flag(made, predicts=True)
    return made


def run(arguments: Sequence[str]) -> int:
    """Write the zip; the exit status is returned."""
    parsed, problems = parser().parse(arguments)
    if problems:
        raise ConfigError(problems)

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
            f"warning: the zip lacks {', '.join(submission.missing)}; the site wants all its tasks. Add runs of them,"
            " or --fill_missing.",
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
    return table(("file", "rows", "predicted by"), rows, right=(1,))
