"""`attentune run-ssa`: run with the flags of the released SSA program."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attentune.cli.flags import Parser, overrides_of
from attentune.errors import ConfigError
from attentune_lab.released_ssa.flags import FLAGS, IGNORED_FLAGS, SAME, read_flags

if TYPE_CHECKING:
    from attentune_lab.released_ssa.program import Outcome

SUMMARY = "run with the flags of the released SSA program, and write its result files"
_EXAMPLES = """examples:
  attentune run-ssa --data_dir ./glue_data/ --task_name RTE --num_train_epochs 5.0 --use_saved 0
  attentune run-ssa --data_dir ./glue_data/ --task_name CoLA --cls_weight 0.999 --output_dir results
  attentune run-ssa --data_dir ./glue_data/ --task_name RTE --only_bert 1
  attentune run-ssa --task_name RTE --use_saved 1 --ckpt ssa_ckpt_base/RTE/ssa_base --do_first_eval 1

The flags have their original meaning; the page "Moving from the released SSA program" lists our settings for them."""
# Flags that some scripts of the program give without a value.
_BARE = {flag.name for flag in FLAGS if flag.kind is bool} | {"do_train", "do_eval", "do_test"}


def parser() -> Parser:
    made = Parser(
        prog="attentune run-ssa",
        usage="attentune run-ssa [the released program's flags]",
        description="Run with the flags of the program released by SSA's authors, and write the same result files.",
        epilog=_EXAMPLES,
    )
    group = made.add_argument_group("flags of the released program")
    for flag in FLAGS:
        default = int(flag.default) if flag.kind is bool else flag.default
        shown = f"{flag.here} (default: {default})".replace("%", "%%")
        metavar = {bool: "0|1", int: "N", float: "X"}.get(flag.kind, "VALUE")
        group.add_argument(f"--{flag.name}", metavar=metavar, help=shown, **_bare(flag.name))
    for name, other in SAME.items():
        group.add_argument(f"--{name}", metavar="VALUE", help=f"same as --{other}")
    for name, instead in IGNORED_FLAGS.items():
        group.add_argument(f"--{name}", metavar="VALUE", help=f"ignored: {instead}", **_bare(name))
    ours = made.add_argument_group("further flags")
    ours.add_argument("--resume", action="store_true", help="continue from the newest intact checkpoint of the run")
    ours.add_argument("--overwrite_output_dir", action="store_true", help="train again if the run exists")
    ours.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any setting of attentune train"
    )
    ours.add_argument("--quiet", action="store_true", help="no progress on standard error")
    ours.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    return made


def _bare(name: str) -> dict[str, Any]:
    return {"nargs": "?", "const": "1"} if name in _BARE else {}


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    given = {name: value for name, value in vars(parsed).items() if isinstance(value, str)}
    values = read_flags(given, problems)
    more = overrides_of(parsed, problems)
    if problems:
        raise ConfigError(problems)

    from attentune.training.callbacks import ProgressDisplay
    from attentune.training.run_folder import Interrupted
    from attentune_lab.released_ssa.program import run_ssa

    more |= {f"training.{name}": True for name in ("resume", "overwrite_output_dir") if getattr(parsed, name)}
    display = ProgressDisplay(quiet=parsed.quiet)
    for name in sorted(set(given) & set(IGNORED_FLAGS)):
        display.info(f"--{name}: ignored ({IGNORED_FLAGS[name]}).")
    try:
        outcome = run_ssa(values, more=more, display=display, say=display.info)
    except Interrupted as stop:
        print(f"attentune: {stop}", file=sys.stderr)
        return 130
    _show(outcome, parsed.format)
    for file in outcome.files:
        display.info(f"written: {file}")
    return 0


def _show(outcome: Outcome, form: str) -> None:
    from attentune.cli.output import number, table
    from attentune.results import to_json

    scores = outcome.scores
    if form == "json":
        files = [str(file) for file in outcome.files]
        content = {"mean_of_parts": scores.means, "parts": list(scores.parts), "whole": scores.whole}
        print(to_json({"run": str(outcome.run), "files": files, "dev": content}), end="")
        return
    rows = [
        (name, number(mean), *(number(part[name]) for part in scores.parts), number(scores.whole[name]))
        for name, mean in scores.means.items()
    ]
    header = ("metric", "mean of thirds", "third 1", "third 2", "third 3", "whole dev set")
    print(table(header, rows, right=range(1, len(header))))
