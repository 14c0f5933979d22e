"""`attentune compare --folds`: every preset on every fold, paired, with verdicts that allow for the overlap."""

import json
from pathlib import Path

import pytest

from attentune.config import load_config
from attentune.runs.grid import fingerprint_rows, rows_of_task
from helpers.samples import write_reviews

QUICK = ("--num_train_epochs", "1", "--per_device_train_batch_size", "8", "--max_length", "16", "--use_cpu")


def words(folder: Path, tiny, *more: object) -> tuple[object, ...]:
    if not (folder / "rows.csv").exists():
        write_reviews(folder / "rows.csv", 30)
    own = ("--train_file", folder / "rows.csv", "--model_name_or_path", tiny("bert"), *QUICK)
    return ("compare", "--presets", "bert,bert-mean", *own, "--output_dir", folder / "c", "--quiet", *more)


@pytest.mark.slow
def test_all_folds_of_all_cuts(attentune, tiny, tmp_path: Path) -> None:
    status, out, err = attentune(*words(tmp_path, tiny, "--folds", "2", "--seeds", "2", "--format", "json"))
    assert status == 0, err
    found = json.loads(out)
    assert [cell["n"] for cell in found["cells"]] == [4, 4]
    (one,) = found["comparisons"]
    assert (one["over"], one["seeds"], one["p_sign_flip"]) == ("folds", 4, None)
    assert "corrected resampled t test" in " ".join(one["notes"])
    scored: dict[int, list[str]] = {1: [], 2: []}
    for seed in range(1, 5):
        prints = []
        for method in ("bert", "bert-mean"):
            file = tmp_path / "c" / "records" / "own" / "all" / method / f"seed-{seed}.json"
            record = json.loads(file.read_text())
            assert record["config"]["data"]["folds"] == 2
            assert record["config"]["data"]["fold"] == (seed - 1) % 2 + 1
            assert record["config"]["data"]["fold_seed"] == (seed - 1) // 2 + 1
            assert record["train"]["rows"] == 15
            prints.append(record["data_fingerprint"])
        assert prints[0] == prints[1], "paired"
        lines = file.with_name(record["predictions"]["validation"]).read_text().splitlines()[1:]
        scored[(seed - 1) // 2 + 1] += [line.split(",")[0] for line in lines]
    assert sorted(scored[1]) == sorted(scored[2]) == sorted(f"r{number}" for number in range(30))
    assert scored[1] != scored[2]
    # A third cut is added; nothing is done again.
    before = (tmp_path / "c/records/own/all/bert/seed-1.json").stat().st_mtime_ns
    status, out, _ = attentune(*words(tmp_path, tiny, "--folds", "2", "--seeds", "3"))
    assert status == 0
    assert (tmp_path / "c/records/own/all/bert/seed-1.json").stat().st_mtime_ns == before
    assert "6 folds" in out
    status, _, err = attentune("report", tmp_path / "c", "--output_file", tmp_path / "report.md")
    assert status == 0, err
    assert "6 folds" in (tmp_path / "report.md").read_text()


def test_all_folds_have_the_same_fingerprints(tmp_path: Path) -> None:
    """Else a comparison that is resumed at a later fold would be refused, because its rows seem to have changed."""
    write_reviews(tmp_path / "rows.csv", 30)
    prints = []
    for fold, fold_seed in ((1, 1), (2, 1), (1, 2)):
        folds = {"train_file": str(tmp_path / "rows.csv"), "folds": 2, "fold": fold, "fold_seed": fold_seed}
        config = load_config(overrides={f"data.{name}": value for name, value in folds.items()})
        prints.append(fingerprint_rows("own", rows_of_task(config)))
    assert prints[0] == prints[1] == prints[2]
    assert sorted(prints[0]) == ["train rows of own", "validation rows of own"]
