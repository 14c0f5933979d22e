"""`attentune calibrate`: fit the temperature and thresholds of a finished run, and which texts it rejects."""

from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import FORMAT, PRECISION, ROW_SETTINGS, config_from, overrides_of, parser_of
from attentune.cli.inputs import check_columns, check_named, read_file_rows
from attentune.errors import ConfigError

_HELP = f"""
attentune calibrate RUN [flags]

Fit a softmax temperature, decision thresholds, or which texts are rejected as of no class, on held-out rows.

RUN  a run folder
--calibrate temperature|none  temperature: fit a softmax temperature; none: remove it (temperature if neither it
    nor --reject is given)
--thresholds f1|none  f1: fit decision thresholds that maximise F1, for binary and multi-label tasks (default: none)
--out_of_scope_file FILE  with --reject: texts of no class, which then choose the score
--split NAME  split: validation or test (default: validation)
{PRECISION}
{FORMAT}

examples:
  attentune calibrate runs/reviews --validation_file kept.csv
  attentune calibrate runs/topics --validation_file kept.jsonl --thresholds f1
  attentune calibrate runs/reviews --calibrate none     (remove it again)
  attentune calibrate runs/intents --reject             (reject texts of no class: at most 5 % of the right ones)
  attentune calibrate runs/intents --reject 0.02 --out_of_scope_file other.csv
  attentune calibrate runs/intents --reject none        (reject no text any more)

--reject alone leaves temperature and thresholds as they are; it works on every kind of run. What is fitted is saved in
the run folder, and replaces what was fitted before."""

parser = parser_of("calibrate", _HELP, (*ROW_SETTINGS, "training.reject"))


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    given = {*overrides_of(parsed, [])}
    sets_rejection = "training.reject" in given  # a share, or none, which removes it
    given -= {"training.reject"}
    if "data.calibration_file" in given:
        raise ConfigError("--calibration_file: is a setting of training; here --validation_file names the rows.")
    config = config_from(parsed, problems)
    share = config.training.reject
    if parsed.out_of_scope_file is not None and share is None:
        raise ConfigError("--out_of_scope_file: goes with --reject.")
    recalibrates = not sets_rejection or parsed.calibrate is not None or parsed.thresholds != "none"
    data_config = config.data if given else None
    check_named(parsed)
    check_columns(parsed.out_of_scope_file, config.data)

    from attentune.inference.predictor import Predictor
    from attentune.results import to_json
    from attentune.training.calibration import calibrate_run, end_rejection, reject_run
    from attentune.training.card import NO_REJECTION

    found: dict[str, Any] = {}
    sentences = []
    if recalibrates:
        done = calibrate_run(
            parsed.run,
            data_config,
            temperature=parsed.calibrate != "none" and (not sets_rejection or parsed.calibrate is not None),
            thresholds=parsed.thresholds == "f1",
            split=parsed.split,
            precision=parsed.precision,
        )
        found |= done.facts()
        sentences.append(done.sentence())
    if share is not None:
        saved = Predictor.load(parsed.run)
        file = parsed.out_of_scope_file
        outside = None if file is None else read_file_rows(file, config.data, saved, quiet=True)
        options = {"outside": outside, "split": parsed.split, "precision": parsed.precision}
        fitted = reject_run(saved, share, data_config, **options)
        found["rejection"] = fitted.facts()
        sentences.append(fitted.sentence())
    elif sets_rejection:
        end_rejection(parsed.run)
        found["rejection"] = None
        sentences.append(NO_REJECTION)
    print(to_json(found) if parsed.format == "json" else f"{parsed.run}: {' '.join(sentences)}\n", end="")
    return 0
