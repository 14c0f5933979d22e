"""What a report has in it, and in which order: tables and verdicts first, then figures, then costs and settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from attentune.errors import CheckpointError
from attentune.experiments.comparison.records import unpaired
from attentune.report.analysis import Verdicts, compare_methods
from attentune.report.document import Figure, Report, Section, Table
from attentune.report.load import HANS_FILE, LAYERS_FILE, ReportData
from attentune.report.sections.methods import advantage_section, ranks_section
from attentune.report.sections.run_tables import (
    common_table,
    cost_table,
    failed_table,
    methods_table,
    versions_sentence,
)
from attentune.report.sections.runs import confusion_section, hans_section, labels_section, layers_section, loss_section
from attentune.report.sections.score_tables import (
    differences_table,
    flat_lines,
    has_scores,
    scores_table,
    sentences_table,
    spreads_table,
)
from attentune.report.sections.scores import seeds_section, setting_section, sizes_section


def make_report(material: ReportData, baseline: str | None = None) -> Report:
    """All tables and figures that the material has data for.

    Args:
        material: what was found in the folders.
        baseline: the method that the others are compared with; the first one if not given.

    Raises:
        ConfigError: there is no such method.
        CheckpointError: predictions cannot be read or do not belong to their record.
    """
    title = f"Report on {', '.join(material.folders)}"
    extras = _extras(material)
    if not material.kept:
        return Report(title, (), _apart(extras))
    verdicts = compare_methods(material.kept, baseline)
    scored = has_scores(verdicts.cells)
    sections = [
        _results(verdicts) if scored else None,
        advantage_section(verdicts),
        seeds_section(verdicts),
        ranks_section(verdicts),
        sizes_section(verdicts),
        setting_section(verdicts),
        loss_section(verdicts),
        labels_section(verdicts),
        confusion_section(verdicts),
        *extras,
        _section("Cost", [cost_table(verdicts)]),
        _section("Settings and runs", [methods_table(verdicts), common_table(verdicts), failed_table(material.kept)]),
    ]
    return Report(title, tuple(_sentences(material, verdicts)), _apart(sections), flat_lines(verdicts))


def _apart(sections: Sequence[Section | None]) -> tuple[Section, ...]:
    """The sections that are there, no two figures with the same name."""
    taken: set[str] = set()
    found = []
    for section in sections:
        if section is None:
            continue
        parts: list[Table | Figure] = []
        for part in section.parts:
            name, number = part.name, 2
            while name in taken:
                name, number = f"{part.name}-{number}", number + 1
            taken.add(name)
            parts.append(dataclasses.replace(part, name=name))
        found.append(dataclasses.replace(section, parts=tuple(parts)))
    return tuple(found)


def _extras(material: ReportData) -> list[Section | None]:
    try:
        return [hans_section(material), layers_section(material)]
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        files = ", ".join([*material.hans, *material.layers])
        raise CheckpointError(
            f"{HANS_FILE} or {LAYERS_FILE} of {files}: is not as attentune hans --output_dir and attentune layers"
            f" --output_file write it ({type(error).__name__}: {error}). Make it again, or take it away."
        ) from error


def _results(verdicts: Verdicts) -> Section:
    tables = [scores_table(verdicts)]
    if verdicts.comparisons:
        tables += [sentences_table(verdicts), differences_table(verdicts)]
    return Section("Results", (*tables, spreads_table(verdicts)))


def _section(title: str, tables: Sequence[Table | None]) -> Section | None:
    parts: tuple[Table | Figure, ...] = tuple(table for table in tables if table is not None)
    return Section(title, parts) if parts else None


def _sentences(material: ReportData, verdicts: Verdicts) -> list[str]:
    runs = [one.record.run for one in material.kept]
    done = sum(one.record.is_done for one in material.kept)
    tasks = list(dict.fromkeys(run.task for run in runs))
    seeds = sorted({run.seed for run in runs})
    failed = f", {len(runs) - done} failed" if done < len(runs) else ""
    parts = [
        f"{len(verdicts.methods)} method{'s' * (len(verdicts.methods) > 1)} ({', '.join(verdicts.methods)})",
        f"{len(tasks)} task{'s' * (len(tasks) > 1)} ({', '.join(tasks)})",
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)} ({', '.join(map(str, seeds))})",
    ]
    sentences = [
        f"{', '.join(parts)}; {done} finished run{'s' * (done != 1)}{failed}. The baseline is {verdicts.baseline}."
    ]
    shown, compared = sum(one.shown for one in verdicts.comparisons), len(verdicts.comparisons)
    if compared > 1:
        sentences.append(f"{shown or 'None'} of the {compared} differences to it {'are' if shown > 1 else 'is'} shown.")
    wrong = unpaired(one.record for one in material.kept)
    sentences += [f"Not trained and scored on the same rows, so they cannot be compared: {text}." for text in wrong]
    sentences.append(versions_sentence(material.kept))
    return [sentence for sentence in sentences if sentence]
