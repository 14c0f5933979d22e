"""`attentune calibrate`: fit the temperature and thresholds of a finished run."""

from collections.abc import Sequence

from attentune.cli.flags import FORMAT, PRECISION, ROW_SETTINGS, data_from, parser_of
from attentune.cli.inputs import check_named

_HELP = f"""
attentune calibrate RUN [flags]

Fit a softmax temperature and decision thresholds on held-out rows, and save them in a run.

RUN  a run folder
--calibrate temperature|none  temperature: fit a softmax temperature; none: remove it (default: temperature)
--thresholds f1|none  f1: fit decision thresholds that maximise F1, for binary and multi-label tasks (default: none)
--split NAME  split: validation or test (default: validation)
{PRECISION}
{FORMAT}

examples:
  attentune calibrate runs/reviews --validation_file kept.csv
  attentune calibrate runs/topics --validation_file kept.jsonl --thresholds f1
  attentune calibrate runs/reviews --calibrate none     (remove it again)"""

parser = parser_of("calibrate", _HELP, ROW_SETTINGS)


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
    print(to_json(done.facts()) if parsed.format == "json" else f"{done.folder}: {done.sentence()}\n", end="")
    return 0
