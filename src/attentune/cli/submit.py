"""`attentune submit`: write a GLUE submission."""

from collections.abc import Sequence

from attentune.cli.flags import PRECISION, check, parser_of
from attentune.cli.inputs import check_named, tell
from attentune.cli.output import progress_lines, table

_HELP = f"""
attentune submit RUN [RUN ...] --output_file FILE.zip [flags]

Predict the GLUE test sets and write a zip for the GLUE leaderboard.

RUN...  run folders, trained on GLUE tasks
--output_file FILE  the zip to write
--data_dir DIR  the GLUE folder (default: that of each run)
--fill_missing  write constant predictions for tasks without a run
--allow_partial  accept truncated test files, with a warning
{PRECISION}

examples:
  attentune submit runs/cola runs/rte runs/mnli --output_file submission.zip
  attentune submit runs/* --output_file submission.zip --data_dir glue_data --fill_missing

One run per task; a run of MNLI predicts MNLI-m, MNLI-mm and AX. The task of a run is read from its config.yaml."""

parser = parser_of("submit", _HELP)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    if parsed.output_file is None:
        problems.append("--output_file: is missing; name the zip to write: --output_file submission.zip")
    check(problems)
    check_named(parsed)

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
    rows = [
        (name, f"{content.count(chr(10)) - 1:,}", submission.runs[name] or "(filled)")
        for name, content in submission.contents.items()
    ]
    print(table(("file", "rows", "predicted by"), rows, right=(1,)))
    tell(f"warning: {warning}" for warning in submission.warnings)
    if submission.missing:
        lacks = f"the zip lacks {', '.join(submission.missing)}; the leaderboard needs all tasks"
        tell([f"warning: {lacks}. Add runs for them, or --fill_missing."])
    tell([f"written to {parsed.output_file}"])
    return 0
