"""Reads the texts of a report's validation rows from the data files that its runs name, and asks the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attentune.config.parse import parse_section
from attentune.config.schema import DataConfig
from attentune.data.checks.doctor import examine
from attentune.data.load import load_data
from attentune.errors import AttentuneError
from attentune.experiments.comparison.records import RunRecord
from attentune.report.load import RecordedRun, TaskTexts

# Larger files are not read for a report.
MOST_BYTES = 200_000_000
_KEPT_FINDINGS = 20


def texts_of(runs: Sequence[RecordedRun]) -> dict[str, TaskTexts]:
    """Read the texts by task, from the data of the task's first finished run.

    A task whose rows cannot be read, or are not those that the run was scored on, gets a sentence that says why. The
    doctor is asked where there is one method only, since that needs all rows.
    """
    with_doctor = len({run.record.run.method for run in runs}) == 1
    texts: dict[str, TaskTexts] = {}
    for run in runs:
        if run.record.is_done and run.record.run.task not in texts:
            texts[run.record.run.task] = _texts_of_run(run.record, with_doctor=with_doctor)
    return texts


def _texts_of_run(record: RunRecord, *, with_doctor: bool) -> TaskTexts:
    problems: list[str] = []
    config = parse_section(DataConfig, record.config.get("data", {}), "data", problems)
    if problems:
        return TaskTexts(problem=f"The texts are not shown: {problems[0]}")
    if config.dataset_name is not None:
        return TaskTexts(problem=f"The texts are not shown: a report does not load the data set {config.dataset_name}.")
    large = [path for path in _files(config) if path.is_file() and path.stat().st_size > MOST_BYTES]
    if large:
        return TaskTexts(problem=f"The texts are not shown: {large[0]} is larger than {MOST_BYTES / 1e6:.0f} MB.")
    try:
        data = load_data(config, seed=record.seed, splits=None if with_doctor else ("validation",))
    except (AttentuneError, OSError, ValueError) as error:
        return TaskTexts(problem=f"The texts are not shown: {' '.join(str(error).split())}")
    rows = data.splits.get(record.split or "")
    if rows is None or rows.fingerprint() != record.data_fingerprint.get(record.split or ""):
        return TaskTexts(
            problem="The texts are not shown: the data files have other rows than those that the runs were scored on."
        )
    pairs = rows.pairs or (None,) * len(rows)
    texts = {one: (text, pair) for one, text, pair in zip(rows.ids, rows.texts, pairs, strict=True)}
    if not with_doctor:
        return TaskTexts(texts)
    findings = examine(data, max_length=config.longest_row).findings
    return TaskTexts(texts, findings[:_KEPT_FINDINGS])


def _files(config: DataConfig) -> list[Path]:
    names = (config.train_file, config.validation_file, config.test_file)
    return [Path(name) for name in names if name is not None]
