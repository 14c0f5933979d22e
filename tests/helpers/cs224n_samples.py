"""Writes a small CS224N folder in the published layout, with synthetic sentences."""

from __future__ import annotations

from pathlib import Path

from helpers.glue_samples import text_of


def write_cs224n(folder: Path, rows: int = 24) -> Path:
    """Write SST-5, Quora (with twice as many training rows) and STS; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", rows), ("dev", rows // 2)):
        stars = [f"s{number}\t{text_of(number)}\t{number % 5}" for number in range(count)]
        _write(folder / f"ids-sst-{split}.csv", "id\tsentence\tsentiment", stars)
        pairs = [f"q{number}\t{text_of(number)}\t{text_of(number, 4)}\t{number % 2}.0" for number in range(2 * count)]
        _write(folder / f"quora-{split}.csv", "id\tsentence1\tsentence2\tis_duplicate", pairs)
        scores = [f"t{number}\t{text_of(number)}\t{text_of(number, 2)}\t{number % 6}.0" for number in range(count)]
        _write(folder / f"sts-{split}.csv", "id\tsentence1\tsentence2\tsimilarity", scores)
    tests = [f"s{number}\t{text_of(number, 1)}" for number in range(5)]
    _write(folder / "ids-sst-test-student.csv", "id\tsentence", tests)
    return folder


def _write(file: Path, header: str, lines: list[str]) -> None:
    file.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
