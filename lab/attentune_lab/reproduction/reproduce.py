"""Reproduction of a table or figure of a paper, with a report that compares it with the published one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune import __version__
from attentune.errors import ConfigError
from attentune.execution.executor import ExecutorOptions
from attentune.io.files import read_json, storage_errors, write_text
from attentune.report.charts import check_figure_file
from attentune.report.contents import make_report
from attentune.report.document import Report, Section
from attentune.report.load import collect
from attentune.report.writing import write_figures, write_report
from attentune.results import to_json
from attentune.runs.compare import compare
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import Run, RunRecord
from attentune_lab.reproduction.counting import count_parts
from attentune_lab.reproduction.paper_comparison import count_section, score_section
from attentune_lab.reproduction.planning import EMBEDDED, Part, Plan, plan
from attentune_lab.reproduction.recipe import GRID, Recipe, load_recipe, parse_search, recipe_names
from attentune_lab.reproduction.searching import (
    ChosenSettings,
    PlannedSearch,
    methods_with,
    plan_searches,
    run_searches,
    search_tables,
)
from attentune_lab.reproduction.steps import explain_sentences, measure_layers, score_on_ax, score_on_hans
from attentune_lab.reproduction.timing import TaskTime, expected_times, planned_jobs

REPORT_FILES = ("report.html", "report.md")
RECIPE_FILE, COMPARISON_FOLDER = "reproduce.json", "comparison"


def reproduce(
    name: str,
    output_dir: str | Path,
    *,
    encoder: str = EMBEDDED,
    data_dir: str | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | Sequence[int] = 3,
    fraction: float = 1.0,
    overrides: Mapping[str, Any] | None = None,
    search: str | int | None = None,
    executor: ExecutorOptions | None = None,
    display: ComparisonProgress | None = None,
) -> Report:
    """Run a recipe and write its report. The same call resumes an interrupted reproduction."""
    recipe = load_recipe(name)
    if not 0 < fraction <= 1:
        raise ConfigError(f"fraction: got {fraction:g}, expected a number above 0 and at most 1, such as 0.02.")
    folder, shown = Path(output_dir), display or ComparisonProgress()
    check_figure_file(folder / "figure.png")
    if recipe.kind == "parameters":
        planned = Plan(encoder, (), () if encoder == recipe.encoder else (f"The encoder is {encoder}.",))
        counted = count_section(recipe, count_parts(recipe, encoder, overrides))
        return _written(_report(recipe, planned, [counted], Report("", (), ())), folder)
    planned = plan(recipe, encoder, data_dir=data_dir, tasks=tasks, fraction=fraction, overrides=overrides)
    for note in planned.notes:
        shown.info(note)
    wanted = parse_search(search)
    searches = plan_searches(recipe, encoder, planned.parts, overrides or {}, wanted)
    for line in plan_lines(recipe, planned, searches, seeds):
        shown.info(line)
    _agree(folder, recipe, planned, fraction, wanted)
    choose = "score" if recipe.search is None else recipe.search.choose
    compared = folder / COMPARISON_FOLDER
    kept = [part.trained_on for part in planned.parts if _keeps_runs(recipe, part.trained_on)]
    chosen: list[ChosenSettings] = []
    records: list[RunRecord] = []
    for part in planned.parts:
        of_part = [one for one in searches if one.part is part]
        found = run_searches(of_part, folder, choose=choose, executor=executor, display=shown)
        methods, keep_runs = methods_with(recipe, found), part.trained_on in kept
        records += _compare(methods, part, compared, seeds=seeds, executor=executor, keep_runs=keep_runs, display=shown)
        chosen += found
    runs = {one.run: compared / "runs" / one.run.name for one in records if one.is_done and one.run.task in kept}
    more, notes, ax_scores = _further_sections(recipe, runs, data_dir)
    tasks_run = {part.task: part.trained_on for part in planned.parts}
    first = score_section(recipe, records, tasks_run, ax_scores)
    searched = search_tables(chosen, choose)
    sections = [] if first is None else [Section(first.title, (*first.parts, *searched), first.sentences)]
    further = _further(recipe, runs, folder, planned, fraction, data_dir)
    made = make_report(collect([str(compared), *further]))
    for note in notes:
        shown.info(note)
    report = _report(recipe, planned, [*sections, *more], made, searched=bool(chosen), notes=notes)
    return _written(report, folder)


def _keeps_runs(recipe: Recipe, task: str) -> bool:
    """Whether the trained models of a task are needed after the comparison."""
    if recipe.then == "ax":
        return task == "mnli"
    return recipe.kind == "explanation" or recipe.then is not None


@dataclass(frozen=True)
class ReproductionPlan:
    """What a reproduction would run."""

    notes: tuple[str, ...]  # differences from the recipe, and the numbers of runs, in sentences
    times: tuple[TaskTime, ...]  # the work on each task; empty for recipes without training
    jobs: int  # the number of runs in parallel

    @property
    def hours(self) -> float:
        """The expected time with this number of runs in parallel."""
        return sum(one.hours for one in self.times) / self.jobs


def plan_reproduction(
    name: str,
    *,
    encoder: str = EMBEDDED,
    data_dir: str | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | Sequence[int] = 3,
    fraction: float = 1.0,
    overrides: Mapping[str, Any] | None = None,
    search: str | int | None = None,
    executor: ExecutorOptions | None = None,
    display: ComparisonProgress | None = None,
) -> ReproductionPlan:
    """Count the runs of a recipe and predict their time, without starting them; the arguments are `reproduce`'s."""
    recipe, shown = load_recipe(name), display or ComparisonProgress()
    if recipe.kind == "parameters":
        return ReproductionPlan(("Parameters are counted; nothing is trained.",), (), 1)
    planned = plan(recipe, encoder, data_dir=data_dir, tasks=tasks, fraction=fraction, overrides=overrides)
    searches = plan_searches(recipe, encoder, planned.parts, overrides or {}, parse_search(search))
    count = seeds if isinstance(seeds, int) else len(seeds)
    times = expected_times(recipe, planned.parts, searches, count, shown)
    notes = (*planned.notes, *plan_lines(recipe, planned, searches, seeds))
    return ReproductionPlan(notes, tuple(times), planned_jobs(planned.parts, executor))


def _compare(methods: Mapping[str, Any], part: Part, folder: Path, **options: Any) -> list[RunRecord]:
    return compare(
        folder,
        settings=methods,
        tasks=[part.trained_on],
        train_sizes=[part.train_size],
        overrides={**part.settings, "data.task_settings": {part.trained_on: part.own}},
        **options,
    )


def _further(
    recipe: Recipe, runs: Mapping[Run, Path], folder: Path, planned: Plan, fraction: float, data_dir: str | None
) -> list[str]:
    """Run the recipe's further evaluation of the trained models, and return the folders with its results."""
    if recipe.then == "hans":
        score_on_hans(runs, folder / "hans", data_dir=data_dir, fraction=fraction)
        return [str(folder / "hans")]
    if recipe.then == "layers":
        return [str(place) for place in measure_layers(runs, folder / "layers")]
    return []


def _further_sections(
    recipe: Recipe, runs: Mapping[Run, Path], data_dir: str | None
) -> tuple[list[Section], list[str], dict[str, list[float]]]:
    """Return the sections of further evaluations, sentences on what could not be evaluated, and scores on AX."""
    if recipe.then == "ax":
        return score_on_ax(runs, data_dir)
    return ([explain_sentences(recipe.sentences, runs)] if recipe.sentences else []), [], {}


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
    return Report(recipe.title, (*sentences, *made.sentences), (*sections, *made.sections), made.answer, made.results)


def plan_lines(
    recipe: Recipe, planned: Plan, searches: Sequence[PlannedSearch], seeds: int | Sequence[int]
) -> list[str]:
    """Return how many runs are planned, in sentences."""
    count = seeds if isinstance(seeds, int) else len(seeds)
    tasks = ", ".join(
        f"{part.trained_on} ({'all' if part.train_size is None else f'{part.train_size:,}'} rows)"
        for part in planned.parts
    )
    runs = len(planned.parts) * len(recipe.methods) * count
    lines = [f"{runs} runs: {len(recipe.methods)} methods, {count} seeds, {tasks}."]
    if searches:
        trials = sum(one.trials for one in searches)
        lines.insert(0, f"{trials} trials of {len(searches)} searches first, each on four fifths of the training rows.")
    return lines


def _agree(folder: Path, recipe: Recipe, planned: Plan, fraction: float, search: str | int | None) -> None:
    """Record the recipe, encoder, fraction and search in the output folder, or check them against an earlier record."""
    file = folder / RECIPE_FILE
    settings: dict[str, Any] = {"recipe": recipe.name, "encoder": planned.encoder, "fraction": fraction}
    if recipe.search is not None:
        settings["search"] = search or GRID
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
