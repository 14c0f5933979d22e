"""`attentune auto`: the best model for some rows within a time limit."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attentune.cli.flags import FILE, QUIET, config_from, parser_of
from attentune.cli.inputs import check_command_folder, check_data, check_files_of_rows
from attentune.cli.output import scores_table, stopped, table, tell_next
from attentune.errors import ConfigError
from attentune.training.run_folder import check_feasible

_HELP = f"""
attentune auto --train_file FILE --time_limit 10m --output_dir DIR [flags]

Find and train the best model for labelled texts or pairs within a time limit.

{FILE}
--time_limit TIME  time for everything: 90s, 10m, 1h (default: 10m)
--encoders A,B  encoders to try: names or folders (default: that of --model_name_or_path)
--deliver best|single  deliver the best model or ensemble, or one encoder that learns from it (default: best)
--unlabeled_file FILE  further texts without labels, to adapt encoders to, and for --deliver single to learn from
--portfolio A,B  members to try (default: all that fit the rows)
--exclude A,B  members to leave out
--folds N>=2  number of folds on which members are scored (default: 5, fewer if time is short)
--jobs N  worker processes (default: one per core on a CPU, else 1)
--format text|json  output format of the leaderboard (default: text)
{QUIET}

examples:
  attentune auto --train_file reviews.csv --label_column stars --time_limit 10m --output_dir best
  attentune auto --train_file pairs.csv --text_column first --text_pair_column second --time_limit 1h --output_dir best
  attentune auto --train_file reviews.csv --portfolio tfidf-linear,frozen-linear,bert-mean --output_dir quick
  attentune auto --train_file reviews.csv --time_limit 20m --output_dir best --resume  (after Ctrl-C, or for more time)
  attentune predict best --text "a fine story"

Members of the portfolio are scored on folds of the training rows; validation and test files are scored at the end and
choose no member. Settings given as flags apply to all members."""

parser = parser_of("auto", _HELP, None)


def run(arguments: Sequence[str]) -> int:
    from attentune.automl.budget import parse_duration, worker_slots
    from attentune.automl.portfolio import unknown_members
    from attentune.execution.local import start_server
    from attentune.training.prepare import check_rejection

    began = time.monotonic()
    parsed, problems = parser(arguments).parse(arguments)
    try:
        seconds = parse_duration(parsed.time_limit)
    except ConfigError as error:
        problems += error.problems
    problems += unknown_members(parsed.portfolio or (), parsed.exclude or ())
    config = config_from(parsed, problems)
    check_command_folder(config, "auto", "auto", "the run folder: --output_dir best")
    rows = check_data(config.data, seed=config.training.seed)
    check_rejection(None if rows is None else rows.label_space, config.training.reject)
    check_files_of_rows({"unlabeled_file": parsed.unlabeled_file})
    encoders = parsed.encoders or [config.model.name_or_path]
    for name in encoders:
        check_feasible(replace(config, model=replace(config.model, name_or_path=name)))
    if not parsed.quiet:
        print(f"{time.strftime('%H:%M:%S')} starting ({parsed.time_limit} left)", file=sys.stderr, flush=True)
    # Imported late, so that errors in flags are reported without delay; workers import theirs meanwhile.
    start_server(worker_slots(parsed.jobs, use_cpu=config.training.use_cpu))
    from attentune.automl.auto import auto
    from attentune.automl.work import AutoProgress
    from attentune.results import to_json

    try:
        result = auto(
            config,
            time_limit_s=seconds,
            folds=parsed.folds,
            encoders=encoders,
            portfolio=parsed.portfolio,
            exclude=parsed.exclude or (),
            deliver=parsed.deliver,
            unlabeled_file=parsed.unlabeled_file,
            jobs=parsed.jobs,
            resume=config.training.resume,
            display=AutoProgress(quiet=parsed.quiet, began=began),
        )
    except KeyboardInterrupt:
        return stopped("stopped; the finished folds are kept.", "auto", arguments, resume=True)
    print(to_json(result.to_dict()) if parsed.format == "json" else _text(result), end="")
    if result.stopped:
        return stopped(f"stopped; the best so far is in {result.folder}.", "auto", arguments, resume=True)
    if config.data.train_file != "-" and not parsed.quiet:  # standard input is read once
        from attentune.data.load import load_data

        data = rows or load_data(config.data, seed=config.training.seed, splits=("train",), allow_doubt=True)
        tell_next(result.folder, data.splits["train"])
    return 0


def _text(result: Any) -> str:
    from attentune.automl.leaderboard import leaderboard_cells

    parts = [table(result.header, leaderboard_cells(result.leaderboard), right=(1, 3, 4)), "", *result.sentences]
    parts += [] if result.rejection is None else [result.rejection]
    if result.scores:
        parts += ["", "Rows that chose no member:", scores_table(result.scores)]
    return "\n".join([*parts, "", f"Saved in {result.folder} ({result.seconds:.0f} s).", ""])
