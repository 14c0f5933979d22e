"""`--best`: predict and others with the best run of a comparison or search, which leave a model for it."""

import json
import shutil
from pathlib import Path

import pytest

from helpers.comparisons import command
from helpers.samples import write_reviews

pytestmark = pytest.mark.integration
QUICK = {"training__num_train_epochs": 1}


def test_a_comparison_keeps_the_best_run_of_each_preset_and_makes_a_lost_one_again(attentune, tiny, tmp_path) -> None:
    line = command(tmp_path, tiny("bert"), "--presets", "bert,majority", "--seeds", "2", "--jobs", "2", **QUICK)
    folder = tmp_path / "comparison"
    status, _, err = attentune(*line)
    assert status == 0, err
    assert not (folder / "runs").exists()
    status, _, err = attentune("predict", folder, "--best", "--text", "a dull film")
    assert status == 2
    assert "were not kept" in err
    # The cure of the message.
    record = Path(err.split("delete ")[1].split(" and repeat")[0])
    before = json.loads(record.read_text())["score"]
    record.unlink()
    status, _, err = attentune(*line, "--keep_best")
    assert status == 0, err
    assert json.loads(record.read_text())["score"] == before
    method, seed = record.parent.name, record.stem
    assert [path.parent.name for path in folder.glob("runs/*/*/*/*/run.json")] == [seed]
    status, out, err = attentune("predict", folder, "--best", "--text", "a dull film")
    assert status == 0, err
    assert out.startswith("id,label,prediction")
    assert err.startswith(f"attentune: using {folder}/runs/own/all/{method}/{seed} ({method}, the best of 2")
    status, _, err = attentune("predict", folder, "--text", "a dull film")
    assert status == 2
    assert "is the folder of a comparison or search, not a run folder. Add --best" in err


def test_of_several_tasks_the_run_of_the_named_one_is_used_for_other_texts(attentune, tiny, tmp_path) -> None:
    rows = {"cola": tmp_path / "glue/CoLA", "sst2": tmp_path / "glue/SST-2"}
    for folder in rows.values():
        folder.mkdir(parents=True)
    for name in ("train", "dev"):
        (rows["cola"] / f"{name}.tsv").write_text("".join(f"x\t{n % 2}\t*\tthe film was dull {n}\n" for n in range(24)))
        texts = "".join(f"a lovely film {n}\t{n % 2}\n" for n in range(24))
        (rows["sst2"] / f"{name}.tsv").write_text(f"sentence\tlabel\n{texts}")
    status, _, err = attentune(
        "compare", "--tasks", "cola,sst2", "--data_dir", tmp_path / "glue", "--presets", "bert", "--seeds", "1",
        "--model_name_or_path", tiny("bert"), "--num_train_epochs", 1, "--max_length", 16, "--use_cpu",
        "--output_dir", tmp_path / "c", "--keep_best", "--quiet",
    )  # fmt: skip
    assert status == 0, err
    status, _, err = attentune("evaluate", tmp_path / "c", "--best")
    assert status == 2
    assert "name one with --task cola" in err
    for words in (
        ("evaluate", tmp_path / "c", "--best", "--task", "sst2"),
        ("predict", tmp_path / "c", "--best", "--task", "sst2", "--text", "fine"),
        ("explain", tmp_path / "c", "--best", "--task", "sst2", "--text", "fine"),
        ("export", tmp_path / "c", "--best", "--task", "sst2", "--format", "transformers", "--output_dir",
         tmp_path / "out"),
    ):  # fmt: skip
        status, _, err = attentune(*words)
        assert status == 0, err
        assert "c/runs/sst2/all/bert/seed-1" in err


def test_a_search_trains_its_best_settings_and_goes_on_with_an_unfinished_model(attentune, tiny, tmp_path) -> None:
    write_reviews(tmp_path / "rows.csv", 60)
    words = (
        "search", tmp_path / "rows.csv", "--model_name_or_path", tiny("bert"), "--search",
        "training.learning_rate=1e-3,3e-3", "--num_train_epochs", 2, "--max_length", 16, "--use_cpu", "--output_dir",
        tmp_path / "s", "--jobs", 2, "--baselines", "none", "--save_steps", 3, "--per_device_train_batch_size", 8,
    )  # fmt: skip
    status, out, err = attentune(*words, "--settings_only")
    assert status == 0, err
    assert "train with it: attentune train --config" in out
    assert not (tmp_path / "s/best").exists()
    status, out, err = attentune(*words)
    assert status == 0, err
    assert f"model with its settings, trained on all training rows: {tmp_path / 's/best'} (validation: accuracy" in out
    result = json.loads((tmp_path / "s/trials.json").read_text())
    record = json.loads((tmp_path / "s/best/run.json").read_text())
    assert (result["model"], result["model_scores"]) == (str(tmp_path / "s/best"), record["scores"])
    trials = [json.loads(file.read_text()) for file in (tmp_path / "s/records").rglob("seed-*.json")]
    assert [trial["train"]["rows"] for trial in trials] == [round(0.8 * record["train"]["rows"])] * 2
    # Killed between its checkpoint and its end: the same command finishes it, with the same weights.
    weights = (tmp_path / "s/best/model.safetensors").read_bytes()
    for name in ("run.json", "model.safetensors"):
        (tmp_path / "s/best" / name).unlink()
    newest = max((tmp_path / "s/best").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    shutil.rmtree(newest)
    status, _, err = attentune(*words)
    assert status == 0, err
    assert "resuming from" in err
    assert (tmp_path / "s/best/model.safetensors").read_bytes() == weights
    # A finished one is left as it is; one with the settings of another trial is replaced.
    stamp = (tmp_path / "s/best/run.json").stat().st_mtime_ns
    assert attentune(*words)[0] == 0
    assert (tmp_path / "s/best/run.json").stat().st_mtime_ns == stamp
    other = (tmp_path / "s/best/config.yaml").read_text().replace("learning_rate: 0.00", "learning_rate: 0.01")
    (tmp_path / "s/best/config.yaml").write_text(other)
    status, out, err = attentune("predict", tmp_path / "s", "--best", "--text", "a fine film")
    assert status == 2
    assert "has other settings than trial-000" in err
    assert attentune(*words)[0] == 0
    status, out, err = attentune("predict", tmp_path / "s", "--best", "--text", "a fine film")
    assert status == 0, err
    assert out.startswith("id,label,prediction")
    assert f"using {tmp_path / 's/best'} (trained on all training rows with the settings of" in err
