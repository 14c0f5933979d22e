"""`attentune reproduce`: reproduce tables and figures of the papers."""

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import (
    EXECUTOR,
    Parser,
    add_config_flags,
    names_in,
    overrides_of,
    seed_numbers,
)
from attentune.cli.inputs import executor_options
from attentune.cli.output import table
from attentune.errors import ConfigError
from attentune_lab.reproduction.recipe import EMBEDDED, Request, load_recipe, parse_search, recipe_names, select_tasks

SUMMARY = "reproduce a table or figure of a paper, next to the published numbers"
_EXAMPLES = """examples:
  attentune reproduce                                     (lists the recipes)
  attentune reproduce ssa-table-2 --data_dir data --fraction 0.02 --search 4 --plan
  attentune reproduce ssa-table-2 --data_dir data --fraction 0.02 --search 4 --output_dir reproduced/ssa-table-2
  attentune reproduce sesame-table-3 --data_dir data --model_name_or_path bert-base-uncased --output_dir layers
  attentune reproduce mine.yaml --data_dir data --seeds 5 --output_dir mine
  attentune reproduce mine.yaml --data_dir data --seeds 5 --output_dir mine --tasks cola  (one task; others later)

A recipe is one table or figure of a paper, run with its settings on the given encoder and data. The report shows the
published numbers next to ours, and lists the differences. A file with a recipe of yours compares methods, each with
settings searched for each task. After an interruption, the same command continues."""


def parser() -> Parser:
    made = Parser(
        prog="attentune reproduce",
        usage="attentune reproduce [NAME] --output_dir DIR [flags]",
        description="Reproduce a table or figure of a paper, next to the published numbers.",
        epilog=_EXAMPLES,
    )
    made.add_argument("name", metavar="NAME", nargs="?", help="the recipe, or a YAML file with one (default: list all)")
    made.add_argument("--tasks", metavar="NAME,NAME", help="some of the recipe's tasks (default: all)")
    made.add_argument("--seeds", default="3", help="number of seeds, or a list such as 3,7,11 (default: 3)")
    made.add_argument("--fraction", default="1", help="fraction of the rows of each task, such as 0.02 (default: 1)")
    made.add_argument(
        "--search",
        metavar="grid|none|N",
        help="for tables whose paper searched settings: the whole grid (default), none, or a number of trials",
    )
    made.add_argument("--plan", action="store_true", help="print the planned runs, and end")
    made.add_lines(EXECUTOR)
    made.add_argument("--quiet", action="store_true", help="no progress on standard error")
    add_config_flags(made)
    return made


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    if parsed.name is None and not arguments:
        recipes = [load_recipe(name) for name in recipe_names()]
        print(table(("recipe", "source", "title"), [(one.name, one.source, one.title) for one in recipes]))
        return 0
    request, folder = _request(parsed, problems)
    if problems:
        raise ConfigError(problems)
    select_tasks(load_recipe(request.name), request.tasks)  # report misspelt names before PyTorch is loaded

    from attentune.runs.compare import ComparisonStopped
    from attentune.runs.progress import ComparisonProgress
    from attentune_lab.reproduction.planning import plan_reproduction
    from attentune_lab.reproduction.reproduce import REPORT_FILES, reproduce

    if parsed.plan:
        print("\n".join(plan_reproduction(request)))
        return 0
    try:
        report = reproduce(request, folder, display=ComparisonProgress(quiet=parsed.quiet))
    except ComparisonStopped as stop:
        again = shlex.join(["attentune", "reproduce", *arguments])
        print(f"attentune: {stop} Continue with:\n  {again}", file=sys.stderr)
        return 130
    print(_text(report), end="")
    print(f"written to {folder}: {', '.join(REPORT_FILES)}, figures", file=sys.stderr)
    return 0


def _request(parsed: Any, problems: list[str]) -> tuple[Request, str]:
    """Return what is asked for and the output folder; append errors to `problems`."""
    if parsed.name is None:
        problems.append("reproduce: got no recipe; `attentune reproduce` alone lists them.")
    overrides = overrides_of(parsed, problems)
    folder = overrides.pop("training.output_dir", None)
    if folder is None and not parsed.plan:
        problems.append("--output_dir: is missing; name a folder: --output_dir reproduced/ssa-table-2")
    if parsed.preset is not None:
        problems.append("--preset: is set by the recipe; leave it out, or use attentune compare.")
    one = overrides.pop("data.task", None)
    search = None
    try:
        search = parse_search(parsed.search)
    except ConfigError as error:
        problems += error.problems
    request = Request(
        name=parsed.name,
        encoder=overrides.pop("model.name_or_path", None) or EMBEDDED,
        data_dir=overrides.pop("data.data_dir", None),
        tasks=names_in(parsed.tasks) or ([one] if one else None),
        seeds=seed_numbers(parsed.seeds, problems),
        fraction=_fraction(parsed.fraction, problems),
        overrides=overrides,
        search=search,
        executor=executor_options(parsed, problems),
    )
    return request, folder


def _fraction(text: str, problems: list[str]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        problems.append(f"--fraction: got {text!r}, expected a number above 0 and at most 1, such as 0.02.")
    return value


def _text(report: Any) -> str:
    """Format the tables of the report's first section: those of the recipe, or the results."""
    from attentune.report.document import Table

    lines = [report.title, *report.sentences, ""]
    for part in report.sections[0].parts:
        if isinstance(part, Table):
            right = range(part.left, len(part.header))
            lines += [part.title, "", table(part.header, part.rows, right=right), *part.notes, ""]
    return "\n".join(lines)
