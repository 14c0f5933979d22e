"""Reproduction of a table or figure of a paper, with a report that compares it with the published one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attentune import __version__
from attentune.errors import ConfigError
from attentune.experiments.comparison.progress import ComparisonProgress
from attentune.experiments.comparison.records import Run, RunRecord
from attentune.experiments.comparison.runner import compare
from attentune.io.files import read_json, storage_errors, write_text
from attentune.report.document import Report, Section
from attentune.report.figures.base import check_figure_file
from attentune.report.load import collect
from attentune.report.sections.contents import make_report
from attentune.report.writing import write_figures, write_report
from attentune.reproduction.counting import count_parts
from attentune.reproduction.paper_comparison import count_section, score_section
from attentune.reproduction.planning import EMBEDDED, Part, Plan, plan
from attentune.reproduction.recipe import Recipe, load_recipe
from attentune.reproduction.steps import explain_sentences, measure_layers, score_on_hans
from attentune.results import to_json

REPORT_FILES = ("report.html", "report.md")
RECIPE_FILE, COMPARISON_FOLDER = "reproduce.json", "comparison"


def reproduce(
    name: str,
    output_dir: str | Path,
    *,
    encoder: str = EMBEDDED,
    data_dir: str | None = None,
    seeds: int | Sequence[int] = 3,
    fraction: float = 1.0,
    overrides: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    display: ComparisonProgress | None = None,
) -> Report:
    """Run a recipe and write its report. The same call resumes an interrupted reproduction.

    Args:
        name: the name of a recipe; see `recipe.recipe_names`.
        output_dir: the folder for `report.html`, `report.md`, `figures/` and the runs (in `comparison/`).
        encoder: the name or folder of the encoder.
        data_dir: the folder of the data sets; by default the folder in ATTENTUNE_DATA.
        seeds: the number of seeds, or the seeds.
        fraction: the share of each task's rows to use, above 0 and at most 1.
        overrides: settings, by dotted name, that override the recipe's.
        jobs: the number of runs in parallel.
        display: the progress display; by default on standard error.

    Returns:
        The report that was written.

    Raises:
        AttentuneError: an error that the user can fix.
        ComparisonStopped: the user stopped the comparison; finished runs are kept.
    """
    recipe = load_recipe(name)
    if not 0 < fraction <= 1:
        raise ConfigError(f"fraction: got {fraction:g}, expected a number above 0 and at most 1, such as 0.02.")
    folder, shown = Path(output_dir), display or ComparisonProgress()
    check_figure_file(folder / "figure.png")
    if recipe.kind == "parameters":
        planned = Plan(encoder, (), () if encoder == recipe.encoder else (f"The encoder is {encoder}.",))
        counted = count_section(recipe, count_parts(recipe, encoder, overrides))
        return _written(_report(recipe, planned, [counted], Report("", (), ())), folder)
    planned = plan(recipe, encoder, data_dir=data_dir, fraction=fraction, overrides=overrides)
    for note in planned.notes:
        shown.info(note)
    _agree(folder, recipe, planned, fraction)
    compared = folder / COMPARISON_FOLDER
    keep = recipe.kind == "explanation" or recipe.then is not None
    records = [
        record
        for part in planned.parts
        for record in _compare(recipe, part, compared, seeds=seeds, jobs=jobs, keep_runs=keep, display=shown)
    ]
    first = score_section(recipe, records, {part.task: part.trained_on for part in planned.parts})
    sections = [] if first is None else [first]
    runs = {record.run: compared / "runs" / record.run.name for record in records if record.is_done} if keep else {}
    further = _further(recipe, runs, folder, planned, fraction, data_dir)
    made = make_report(collect([str(compared), *further]))
    return _written(_report(recipe, planned, [*sections, *_explained(recipe, runs)], made), folder)


def _compare(recipe: Recipe, part: Part, folder: Path, **options: Any) -> list[RunRecord]:
    return compare(
        folder,
        settings=recipe.methods,
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


def _explained(recipe: Recipe, runs: Mapping[Run, Path]) -> list[Section]:
    return [explain_sentences(recipe.sentences, runs)] if recipe.sentences else []


def _report(recipe: Recipe, planned: Plan, sections: Sequence[Section], made: Report) -> Report:
    sentences = [f"{recipe.source}. Made with attentune {__version__} by: attentune reproduce {recipe.name}."]
    sentences += [f"The paper says: {claim}" for claim in recipe.claims]
    sentences += [f"Not as in the paper: {text}" for text in (*planned.notes, *recipe.differences)]
    return Report(recipe.title, (*sentences, *made.sentences), (*sections, *made.sections), made.results)


def _agree(folder: Path, recipe: Recipe, planned: Plan, fraction: float) -> None:
    """Record the recipe, encoder and fraction in the output folder, or check them against an earlier record.

    Raises:
        ConfigError: the folder belongs to a reproduction with another recipe, encoder or fraction.
    """
    file = folder / RECIPE_FILE
    settings = {"recipe": recipe.name, "encoder": planned.encoder, "fraction": fraction}
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
