"""Recipes through the command line: on made-up data in the published layouts, and all of them on the real ones."""

import json
import shutil

import pytest

from attentune_lab.reproduction.recipe import recipe_names
from helpers.glue_samples import write_glue, write_hans

FAST = ("--num_train_epochs", "1", "--max_length", "32", "--per_device_train_batch_size", "8", "--use_cpu", "--quiet")


def test_the_list(attentune):
    status, out, err = attentune("reproduce")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[2:]] == list(recipe_names())


@pytest.mark.integration
def test_hans_with_models_that_were_just_trained(attentune, tiny, tmp_path):
    write_glue(tmp_path / "data")
    (tmp_path / "data" / "hans").mkdir()
    write_hans(tmp_path / "data" / "hans" / "heuristics_evaluation_set.txt", 3)
    words = ("reproduce", "sesame-figure-3", "--data_dir", tmp_path / "data", "--model_name_or_path", tiny("bert"))
    words = (*words, "--output_dir", tmp_path / "out", "--seeds", "1", *FAST)
    status, out, err = attentune(*words)
    assert status == 0, err
    assert "SesameBERT gets almost three times as many right as BERT" in out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "HANS" in page
    assert json.loads((tmp_path / "out" / "hans" / "hans.json").read_text())["methods"] == ["BERT", "SesameBERT"]
    assert (tmp_path / "out" / "figures" / "hans.png").is_file()
    # Again: nothing is trained twice, and another part of the rows is refused.
    stamps = {file: file.stat().st_mtime_ns for file in (tmp_path / "out" / "comparison").rglob("seed-1.json")}
    assert len(stamps) == 2
    assert attentune(*words)[0] == 0
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in stamps.items())
    status, _, err = attentune(*words, "--fraction", "0.5")
    assert status == 2
    assert "name another --output_dir" in err


@pytest.mark.integration
def test_layers_on_what_is_at_hand(attentune, tiny, tmp_path):
    write_glue(tmp_path / "data", rows=80)
    status, out, err = attentune(
        *("reproduce", "sesame-figure-4", "--data_dir", tmp_path / "data", "--model_name_or_path", tiny("bert")),
        *("--output_dir", tmp_path / "out", "--seeds", "1", "--fraction", "0.5", *FAST),
    )
    assert status == 0, err
    assert "A part of the rows, 0.5 of each task's" in out
    weights = json.loads((tmp_path / "out" / "layers" / "SE-BERT" / "layers.json").read_text())["validation"]
    assert all(0 < line["mean"] < 1 for line in weights)
    records = [json.loads(file.read_text()) for file in (tmp_path / "out").rglob("seed-1.json")]
    assert {record["run"]["train_size"] for record in records} == {64}


def test_without_any_data_it_says_where_to_get_them(attentune, tmp_path):
    words = ("reproduce", "sesame-table-3", "--data_dir", tmp_path, "--output_dir", tmp_path / "out")
    status, _, err = attentune(*words)
    assert (status, "RTE" in err, (tmp_path / "out").exists()) == (2, True, False)


SEARCHED = ("--set", "training.num_train_epochs=1", "--set", "training.per_device_train_batch_size=16")


@pytest.mark.integration
def test_a_recipe_searches_each_method_and_trains_the_winners(attentune, tiny, tmp_path):
    write_glue(tmp_path / "data", rows=80)
    for name in ("STS-B", "MNLI"):
        shutil.rmtree(tmp_path / "data" / name)
    place = ("--data_dir", tmp_path / "data", "--model_name_or_path", tiny("bert"), "--seeds", "1", "--fraction", "0.9")
    short = ("--max_length", "24", "--use_cpu", "--quiet", *SEARCHED)
    words = ("reproduce", "sesame-table-1", *place, *short, "--output_dir", tmp_path / "out", "--search", "2")
    folder = tmp_path / "out/search"
    status, out, err = attentune(*words, "--tasks", "rte")
    assert status == 0, err
    assert "tasks, rte are run" in out
    assert [path.name for path in folder.iterdir()] == ["rte"]
    stamps = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("seed-*.json")}
    assert len(stamps) == 4  # two trials, and a run of each method
    # All tasks: those of before are not repeated.
    status, out, err = attentune(*words)
    assert status == 0, err
    assert {file: file.stat().st_mtime_ns for file in stamps} == stamps
    tasks = sorted(path.name for path in folder.iterdir())
    assert tasks == ["cola", "rte"]
    assert "Chosen settings" in out
    assert "Sigma is chosen on a fifth" in out
    assert "as the search was left out" not in out
    for task in tasks:
        found = json.loads((folder / task / "SesameBERT/trials.json").read_text())
        assert [trial["status"] for trial in found["trials"]] == ["done", "done"]
        best = found["trials"][0]["params"]["model.blur.sigma"]
        record = json.loads((tmp_path / f"out/comparison/records/{task}/72/SesameBERT/seed-1.json").read_text())
        assert record["config"]["model"]["blur"]["sigma"] == best
        assert record["run"]["train_size"] == 72  # all rows of the fraction, not those of the search
    # Again: nothing is trained twice, and another search is refused.
    stamps = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("seed-*.json")}
    assert attentune(*words)[0] == 0
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("seed-*.json")} == stamps
    status, _, err = attentune(*words[:-1], "none")
    assert status == 2
    assert "name another --output_dir" in err


@pytest.mark.integration
@pytest.mark.parametrize("has_labels", [True, False])
def test_models_of_mnli_are_scored_on_ax(attentune, tiny, tmp_path, has_labels):
    write_glue(tmp_path / "data", rows=40)
    for name in ("CoLA", "STS-B", "RTE"):
        shutil.rmtree(tmp_path / "data" / name)
    if not has_labels:
        (tmp_path / "data/diagnostic/diagnostic-full.tsv").unlink()
    place = ("--data_dir", tmp_path / "data", "--model_name_or_path", tiny("bert"), "--seeds", "2", "--search", "none")
    short = ("--max_length", "24", "--use_cpu", "--quiet", *SEARCHED)
    status, _, err = attentune("reproduce", "sesame-table-1", *place, *short, "--output_dir", tmp_path / "out")
    assert status == 0, err
    report = (tmp_path / "out/report.md").read_text()
    ours = [line.split("|")[-3:-1] for line in report.splitlines() if line.startswith("|  | reproduced |")]
    if not has_labels:
        assert "AX is not scored: " in report
        return
    assert all(one[0].strip() not in ("", "-") for one in ours)
    row = next(line for line in report.splitlines() if line.startswith("| Logic | Negation | 40 |"))
    runs = [tmp_path / "out/comparison/runs/mnli/all/BERT" / f"seed-{seed}" for seed in (1, 2)]
    scores = []
    for run in runs:
        words = ("evaluate", run, "--task", "ax", "--data_dir", tmp_path / "data", "--format", "json")
        scores.append(json.loads(attentune(*words)[1])["validation"]["matthews_correlation"])
    assert row.split("|")[4].strip() == f"{100 * sum(scores) / 2:.1f}"


def test_the_plan_counts_trials_and_runs(attentune, tiny, tmp_path):
    write_glue(tmp_path / "data", rows=80)
    words = ("reproduce", "sesame-table-1", "--data_dir", tmp_path / "data", "--seeds", "2", "--plan")
    for search in ("grid", "none"):
        status, out, err = attentune(*words, "--model_name_or_path", tiny("bert"), "--search", search)
        assert status == 0, err
        assert ("16 trials of 4 searches first" in out) == (search == "grid")
        tasks = ", ".join(f"{task} (all rows)" for task in ("cola", "stsb", "mnli", "rte"))
        assert out.endswith(f"\n16 runs: 2 methods, 2 seeds, {tasks}.\n")
    status, out, _ = attentune("reproduce", "task-attention-table-2", "--plan")
    assert (status, out) == (0, "Parameters are counted; nothing is trained.\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_each_recipe_on_real_rows(name, attentune, tiny, data_dir, tmp_path):
    status, out, err = attentune(
        *("reproduce", name, "--data_dir", data_dir, "--model_name_or_path", tiny("bert"), "--seeds", "1"),
        *("--fraction", "0.02", "--output_dir", tmp_path / "out", "--search", "1", *FAST),
    )
    assert status == 0, err
    assert "Not as in the paper:" in out
    assert (tmp_path / "out" / "report.html").stat().st_size > 2000
    assert (tmp_path / "out" / "report.md").is_file()
