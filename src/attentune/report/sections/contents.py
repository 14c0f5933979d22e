"""The contents of a report in order: tables and verdicts, then figures, then costs and settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from attentune.errors import CheckpointError
from attentune.report.analysis import Verdicts, compare_methods
from attentune.report.document import Figure, Report, Section, Table
from attentune.report.load import HANS_FILE, LAYERS_FILE, ReportData
from attentune.report.overview.answer import answer_of
from attentune.report.overview.contents import make_overview
from attentune.report.sections.run_figures import (
    confusion_section,
    hans_section,
    labels_section,
    layers_section,
    loss_section,
)
from attentune.report.sections.run_tables import (
    baselines_table,
    common_table,
    cost_table,
    failed_table,
    methods_table,
    versions_sentence,
)
from attentune.report.sections.score_figures import (
    advantage_section,
    ranks_section,
    seeds_section,
    setting_section,
    sizes_section,
)
from attentune.report.sections.score_tables import (
    averages_table,
    differences_table,
    has_scores,
    others_table,
    results,
    scores_table,
    sentences_table,
    spreads_table,
)
from attentune.runs.records import RunRecord, unpaired


def make_report(data: ReportData, baseline: str | None = None) -> Report:
    """Make all tables and figures for which there are data."""
    title = f"Report on {', '.join(data.folders)}"
    extra_sections = _extra_sections(data)
    if not data.runs:
        return Report(title, (), _with_unique_names(extra_sections))
    verdicts = compare_methods(data.runs, baseline)
    sections = [
        _results_section(verdicts) if has_scores(verdicts.cells) else None,
        advantage_section(verdicts),
        seeds_section(verdicts),
        ranks_section(verdicts),
        sizes_section(verdicts),
        setting_section(verdicts),
        loss_section(verdicts),
        labels_section(verdicts),
        confusion_section(verdicts),
        *extra_sections,
        _table_section("Baselines", [baselines_table(data.runs)]),
        _table_section("Cost", [cost_table(verdicts)]),
        _table_section("Settings and runs", [methods_table(verdicts), common_table(verdicts), failed_table(data.runs)]),
    ]
    overview = None
    if has_scores(verdicts.cells):
        texts = {task: dataclasses.replace(one, explanations=data.explanations) for task, one in data.texts.items()}
        overview = make_overview(verdicts, texts, warnings=tuple(_mismatches(data)))
    records = [one.record for one in data.runs]
    tasks = list(dict.fromkeys(one.run.task for one in records))
    sentences = (
        f"{counts_sentence(records, tasks)} The baseline is {verdicts.baseline}.",
        *_mismatches(data),
        versions_sentence(data.runs),
    )
    return Report(
        title,
        tuple(filter(None, sentences)),
        _with_unique_names(sections),
        answer_of(verdicts),
        results(verdicts),
        overview,
    )


def _with_unique_names(sections: Sequence[Section | None]) -> tuple[Section, ...]:
    """Drop missing sections, and number tables and figures whose names are alike."""
    used: set[str] = set()
    renamed = []
    for section in sections:
        if section is None:
            continue
        parts: list[Table | Figure] = []
        for part in section.parts:
            name, number = part.name, 2
            while name in used:
                name, number = f"{part.name}-{number}", number + 1
            used.add(name)
            parts.append(dataclasses.replace(part, name=name))
        renamed.append(dataclasses.replace(section, parts=tuple(parts)))
    return tuple(renamed)


def _extra_sections(data: ReportData) -> list[Section | None]:
    try:
        return [hans_section(data), layers_section(data)]
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        files = ", ".join([*data.hans, *data.layers])
        raise CheckpointError(
            f"{HANS_FILE} or {LAYERS_FILE} of {files}: expected the format of attentune hans --output_dir and attentune"
            f" layers --output_file ({type(error).__name__}: {error}). Repeat that command, or remove the file."
        ) from error


def _results_section(verdicts: Verdicts) -> Section:
    tables = [scores_table(verdicts)]
    if verdicts.comparisons:
        tables += [sentences_table(verdicts), differences_table(verdicts)]
    further = [table for table in (others_table(verdicts), averages_table(verdicts)) if table is not None]
    return Section("Results", (*tables, *further, spreads_table(verdicts)))


def _table_section(title: str, tables: Sequence[Table | None]) -> Section | None:
    present = tuple(table for table in tables if table is not None)
    return Section(title, present) if present else None


def counts_sentence(runs: Sequence[RunRecord], tasks: Sequence[str], noun: str = "task") -> str:
    """Return the numbers of methods, tasks, seeds and runs with their names."""
    methods = list(dict.fromkeys(one.run.method for one in runs))
    seeds = sorted({one.run.seed for one in runs})
    done = [one for one in runs if one.is_done]
    baselines = sum(one.config.get("baseline") is not None for one in done)
    counts = [
        f"{_count(len(methods), 'method')} ({', '.join(methods)})",
        f"{_count(len(tasks), noun)} ({', '.join(tasks)})",
        f"{_count(len(seeds), 'seed')} ({', '.join(map(str, seeds))})",
    ]
    ends = [_count(len(done) - baselines, "trained model")] if len(done) > baselines or not baselines else []
    ends += [_count(baselines, "fitted baseline")] if baselines else []
    ends += [_count(len(runs) - len(done), "failed run")] if len(done) < len(runs) else []
    return f"{', '.join(counts)}; {', '.join(ends)}."


def _mismatches(data: ReportData) -> list[str]:
    mismatches = unpaired(recorded.record for recorded in data.runs)
    return [f"Runs that cannot be compared, since their rows differ: {text}." for text in mismatches]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
