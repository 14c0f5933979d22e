"""Reproduction of a table or figure of a paper, with a report that compares it with the published one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attentune import __version__
from attentune.errors import ConfigError
from attentune.io.files import read_json, storage_errors, write_text
from attentune.report.charts import check_figure_file
from attentune.report.contents import make_report
from attentune.report.document import Report, Section
from attentune.report.load import collect
from attentune.report.writing import write_figures, write_report
from attentune.results import to_json
from attentune.runs.compare import compare
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import RunRecord
from attentune_lab.reproduction.paper_comparison import count_section, score_section
from attentune_lab.reproduction.planning import (
    COMPARISON_FOLDER,
    ChosenSettings,
    Plan,
    comparison_of,
    plan,
    plan_lines,
    plan_searches,
    run_searches,
    search_tables,
)
from attentune_lab.reproduction.recipe import GRID, Recipe, Request, load_recipe, recipe_names
from attentune_lab.reproduction.steps import count_parts, explain_sentences, measure_layers, score_on_ax, score_on_hans

REPORT_FILES = ("report.html", "report.md")
RECIPE_FILE = "reproduce.json"


def reproduce(request: Request, output_dir: str | Path, *, display: ComparisonProgress | None = None) -> Report:
    """Run a recipe and write its report. The same call resumes an interrupted reproduction."""
    recipe, encoder = load_recipe(request.name), request.encoder
    folder, shown = Path(output_dir), display or ComparisonProgress()
    check_figure_file(folder / "figure.png")
    if recipe.kind == "parameters":
        planned = Plan(encoder, (), () if encoder == recipe.encoder else (f"The encoder is {encoder}.",))
        counted = count_section(recipe, count_parts(recipe, encoder, request.overrides))
        return _written(_report(recipe, planned, [counted], Report("", (), ())), folder)
    planned = plan(recipe, request)
    searches = plan_searches(recipe, encoder, planned.parts, request.overrides, request.search)
    for line in (*planned.notes, *plan_lines(recipe, planned, searches, request.seed_count)):
        shown.info(line)
    _agree(folder, recipe, request)
    compared = folder / COMPARISON_FOLDER
    # The tasks whose trained models are needed after the comparison.
    kept = [part.trained_on for part in planned.parts] if recipe.kind == "explanation" or recipe.then else []
    if recipe.then == "ax":
        kept = [task for task in kept if task == "mnli"]
    chosen: list[ChosenSettings] = []
    records: list[RunRecord] = []
    for part in planned.parts:
        of_part = [one for one in searches if one.part is part]
        found = run_searches(of_part, folder, executor=request.executor, display=shown)
        records += compare(
            compared,
            **comparison_of(recipe, request, part, found),
            executor=request.executor,
            keep_runs=part.trained_on in kept,
            display=shown,
        )
        chosen += found
    runs = {one.run: compared / "runs" / one.run.name for one in records if one.is_done and one.run.task in kept}
    more, notes, ax_scores = score_on_ax(runs, request.data_dir) if recipe.then == "ax" else ([], [], {})
    if recipe.sentences:
        more.append(explain_sentences(recipe.sentences, runs))
    tasks_run = {part.task: part.trained_on for part in planned.parts}
    first = score_section(recipe, records, tasks_run, ax_scores)
    searched = search_tables(chosen)
    sections = [] if first is None else [Section(first.title, (*first.parts, *searched), first.sentences)]
    if recipe.then == "hans":
        more.append(score_on_hans(runs, folder / "hans", data_dir=request.data_dir, fraction=request.fraction))
    elif recipe.then == "layers":
        more.append(measure_layers(runs, folder / "layers"))
    made = make_report(collect([str(compared)]))
    for note in notes:
        shown.info(note)
    report = _report(recipe, planned, [*sections, *more], made, searched=bool(chosen), notes=notes)
    return _written(report, folder)


def _report(
    recipe: Recipe,
    planned: Plan,
    sections: Sequence[Section],
    made: Report,
    *,
    searched: bool = False,
    notes: Sequence[str] = (),
) -> Report:
    sentences = [f"{recipe.source}. Made with attentune {__version__} by: attentune reproduce {recipe.name}."]
    sentences += [f"The paper says: {claim}" for claim in recipe.claims]
    left_out = [] if recipe.search is None or searched else [recipe.search.instead_of]
    differing = "Not as in the paper: " if recipe.name in recipe_names() else ""
    sentences += [f"{differing}{text}" for text in (*planned.notes, *recipe.differences, *left_out) if text]
    sentences += notes
    return Report(recipe.title, (*sentences, *made.sentences), (*sections, *made.sections), made.answer)


def _agree(folder: Path, recipe: Recipe, request: Request) -> None:
    """Record the recipe, encoder, fraction and search in the output folder, or check them against an earlier record."""
    file = folder / RECIPE_FILE
    settings: dict[str, Any] = {"recipe": recipe.name, "encoder": request.encoder, "fraction": request.fraction}
    if recipe.search is not None:
        settings["search"] = request.search or GRID
    if file.is_file():
        try:
            before = read_json(file)
        except (OSError, ValueError):
            before = {}
        if before != settings:
            raise ConfigError(f"{folder}: is of {before}, expected {settings}; name another --output_dir.")
        return
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(file, to_json(settings))


def _written(report: Report, folder: Path) -> Report:
    figures = write_figures(report, folder / "figures")
    for name in REPORT_FILES:
        write_report(report, folder / name, figures)
    return report
