"""`attentune run-ssa`: the released program's flags, and the result files it writes."""

import ast
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError
from attentune.metrics.metrics import score_predictions
from attentune.seeding import numpy_generator
from attentune_lab.released_ssa.flags import (
    FLAGS,
    IGNORED_FLAGS,
    SAME,
    overrides_for,
    preset_of,
    read_flags,
    recorded_flags,
)
from attentune_lab.released_ssa.program import dev_scores
from helpers.glue_samples import write_glue
from helpers.released_checkpoints import namespace, released_state, write_released
from helpers.tiny_models import rows_of


@pytest.fixture
def base(tiny, tmp_path: Path) -> tuple[object, ...]:
    """Flags of a short run on made-up GLUE files."""
    data = write_glue(tmp_path / "glue", rows=18)
    return (
        "run-ssa", f"--data_dir={data}", "--bert_model", tiny("bert"), "--output_dir", tmp_path / "results",
        "--num_train_epochs=2.0", "--train_batch_size", 8, "--learning_rate", "1e-3", "--max_seq_length", 48,
        "--no_cuda", "--set", "training.precision=fp32",
    )  # fmt: skip


def results_in(file: Path) -> dict[str, Any]:
    lines = [line.split(" = ", 1) for line in file.read_text().splitlines()]
    return {name: value if name == "args" else ast.literal_eval(value) for name, value in lines}


def only(folder: Path, pattern: str) -> Path:
    files = list(folder.glob(pattern))
    assert len(files) == 1, files
    return files[0]


def test_training_writes_the_programs_files(base, attentune, tmp_path: Path) -> None:
    status, out, err = attentune(*base, "--task_name=RTE", "--cls_weight=0.3", "--aug_loss_weight", 0.2, "--num_show=3")
    assert status == 0, err
    home = tmp_path / "results" / "RTE"
    file = only(home, "dev_results_*.txt")
    found = results_in(file)
    parts = [found[f"acc_{number}"] for number in range(3)]
    assert found["acc"] == pytest.approx(np.mean(parts))
    assert file.name == f"dev_results_{found['acc']}.txt"
    assert list(found) == sorted(found)
    programs = {
        "eval_total_loss", "eval_seq_loss", "eval_aug_loss", "eval_aug_accuracy", "global_step", "train_loss",
        "best_epoch", "train_batch_size", "args", "tot_time", "acc", "acc_0", "acc_1", "acc_2",
    }  # fmt: skip
    assert set(found) == programs | {"acc_whole"}
    run = json.loads((home / "run" / "run.json").read_text())
    assert found["acc_whole"] == pytest.approx(run["scores"]["validation"]["accuracy"])
    assert found["eval_total_loss"] == pytest.approx(0.8 * found["eval_seq_loss"] + 0.2 * found["eval_aug_loss"])
    assert found["global_step"] == run["train"]["final_step"] == 3 * (found["best_epoch"] + 1)
    assert recorded_flags(home)["cls_weight"] == 0.3, "the file is read back as the program's own is"
    # The dev loss by hand, from the run's own predictions.
    with (home / "run" / "predictions_validation.csv").open() as lines:
        losses = [-np.log(float(row[f"p_{row['label']}"])) for row in csv.DictReader(lines)]
    assert found["eval_seq_loss"] == pytest.approx(np.mean(losses), abs=1e-4)
    with only(home, "test_*.tsv").open() as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    assert [row["index"] for row in rows] == [str(number) for number in range(18)]
    assert {row["prediction"] for row in rows} <= {"entailment", "not_entailment"}
    assert " ".join(out.splitlines()[0].split()) == "metric mean of thirds third 1 third 2 third 3 whole dev set"
    assert "--num_show: ignored (see attentune label)." in err
    config = yaml.safe_load((home / "run" / "config.yaml").read_text())
    assert config["preset"] == "ssa-hybrid-released"
    assert config["model"]["token_gate"]["beta"] == 0.3
    assert config["objective"]["alpha"] == 0.8
    assert config["training"]["num_train_epochs"] == 2.0
    # Again: refused as it stands, anew if asked, and finished where it is.
    assert attentune(*base, "--task_name=RTE")[0] == 2
    status, out, _ = attentune(*base, "--task_name=RTE", "--cls_weight=0.3", "--aug_loss_weight=0.2", "--resume")
    assert status == 0


def test_mnli_has_two_test_files_and_only_bert_no_token_head(base, attentune, tmp_path: Path) -> None:
    status, out, err = attentune(
        *base, "--task_name", "MNLI", "--only_bert=1", "--num_train_epochs", 1, "--format", "json"
    )
    assert status == 0, err
    home = tmp_path / "results" / "MNLI"
    shown = json.loads(out)
    score = shown["dev"]["mean_of_parts"]["acc"]
    names = {f"dev_results_{score}.txt", f"test_{score}.tsv", f"test_mm_{score}.tsv"}
    assert {path.name for path in home.iterdir()} == names | {"run"}
    assert {Path(file).name for file in shown["files"]} == names
    assert len((home / f"test_mm_{score}.tsv").read_text().splitlines()) == 20
    found = results_in(home / f"dev_results_{score}.txt")
    assert found["eval_total_loss"] == found["eval_seq_loss"]
    assert json.loads((home / "run" / "run.json").read_text())["config"]["preset"] == "bert"


def test_a_saved_checkpoint_is_scored_or_trained_on(base, attentune, tiny, tmp_path: Path) -> None:
    state = released_state(tiny("bert"), "bert", "hybrid", outputs=1)
    checkpoint = write_released(tmp_path / "ckpt", tiny("bert"), state)
    # As the program's scripts have it: no --use_saved, --do_first_eval without a value.
    first = ("--task_name", "STS-B", "--ckpt", checkpoint, "--cls_weight=0.9")
    status, out, err = attentune(*base, *first, "--do_first_eval", "--format=json")
    assert status == 0, err
    home = tmp_path / "results" / "STS-B"
    assert {path.name for path in home.iterdir()} == {"first_test.tsv", "imported"}
    assert set(json.loads(out)["dev"]["whole"]) == {"pearson", "spearmanr", "corr"}
    with (home / "first_test.tsv").open() as lines:
        scores = [float(row["prediction"]) for row in csv.DictReader(lines, delimiter="\t")]
    assert len(scores) == 18
    assert all(0 <= score <= 5 for score in scores)
    status, out, err = attentune(*base, *first, "--use_saved=1", "--num_train_epochs=1")
    assert status == 0, err
    assert "imported as" in err
    config = load_config(home / "run" / "config.yaml")
    assert config.model.name_or_path == str(home / "imported")
    assert only(home, "dev_results_*.txt")
    # A run of ours is taken as it is.
    status, _, err = attentune(*base, "--task_name=STS-B", "--ckpt", home / "run", "--do_first_eval=1")
    assert (status, "imported" in err) == (0, False)


def test_flags_are_the_settings_that_the_docs_say() -> None:
    problems: list[str] = []
    values = read_flags({}, problems)
    config = load_config(overrides=overrides_for(values, "out"), preset=preset_of(values))
    assert problems == []
    assert (config.preset, config.data.task, config.data.max_length) == ("ssa-hybrid-released", "RTE", 128)
    given = {
        "model_name_or_path": "roberta-base", "warmup_rate": "0.06", "weight_decay": "0.1", "co_training": "1",
        "gradient_accumulation_steps": "4", "aug_loss_weight": "0.1", "share_weight": "0", "double_ori": "1",
        "num_train_epochs": "2.9", "task_name": "mrpc", "aug_ratio_each": "0.3",
    }  # fmt: skip
    values = read_flags(given, problems)
    config = load_config(overrides=overrides_for(values, "out"), preset=preset_of(values))
    assert config.preset == "ssa-co-released"
    assert config.model.name_or_path == "roberta-base"
    assert (config.model.token_gate.beta, config.model.token_gate.share_weights) == (1.0, False)
    assert (config.objective.alpha, config.labels.double_ori, config.labels.aug_ratio_each) == (0.9, True, 0.3)
    training = config.training
    assert (training.warmup_ratio, training.weight_decay, training.num_train_epochs) == (0.06, 0.1, 2.0)
    assert (training.per_device_train_batch_size, training.gradient_accumulation_steps) == (8, 4)
    assert training.metric_for_best_model == "accuracy"


def test_parts_are_equal_and_their_means_are_the_programs() -> None:
    draw = np.random.default_rng(0)
    labels, logits = draw.integers(0, 2, 20), draw.normal(size=(20, 2)).astype(np.float32)
    space = LabelSpace("classification", ("a", "b"))
    rows = rows_of(["x"] * 20, labels=labels)
    found = dev_scores(("f1", "accuracy"), rows, logits, space, seed=3)
    again = dev_scores(("f1", "accuracy"), rows, logits, space, seed=4)
    assert found.whole == again.whole
    assert found.parts != again.parts
    whole = score_predictions(("f1", "accuracy"), labels, logits, space)
    assert found.whole == {"f1": whole["f1"], "acc": whole["accuracy"], "acc_and_f1": sum(whole.values()) / 2}
    assert found.chosen == pytest.approx(np.mean([part["acc"] for part in found.parts]))
    order = numpy_generator("dev parts", 3).permutation(20).tolist()
    for number, part in enumerate(found.parts):
        chosen = order[6 * number : 6 * number + 6]
        said = [int(logits[row][1] > logits[row][0]) for row in chosen]
        hits = [guess == labels[row] for guess, row in zip(said, chosen, strict=True)]
        both = sum(guess and labels[row] for guess, row in zip(said, chosen, strict=True))
        f1 = 2 * both / max(1, sum(said) + sum(int(labels[row]) for row in chosen))
        assert part == pytest.approx({"f1": f1, "acc": sum(hits) / 6, "acc_and_f1": (f1 + sum(hits) / 6) / 2})


def test_recorded_flags_are_read_without_running_them(tmp_path: Path) -> None:
    file = tmp_path / "dev_results_0.5.txt"
    for text, wanted in (
        (namespace(task_name="RTE", cls_weight=0.5), {"task_name": "RTE", "cls_weight": 0.5}),
        ("Namespace(a=__import__('os').getcwd(), b=-1, c=2)", {"c": 2}),
        ("Namespace(" * 3000, {}),
        ("nothing of the kind", {}),
    ):
        file.write_text(f"acc = 0.5\nargs = {text}\n")
        assert recorded_flags(tmp_path) == wanted
    assert recorded_flags(tmp_path / "nowhere") == {}
    (tmp_path / "dev_results_0.6.txt").write_text("acc = 0.6\nargs = Namespace(a=1)\n")
    with pytest.raises(CheckpointError, match="holds 2 result files .* expected one"):
        recorded_flags(tmp_path)


def test_the_docs_tell_what_every_flag_is_here() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "released-ssa.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].split("`")[1]: line.split("|")[1:] for line in page.splitlines() if line[:4] == "| `-"}
    for flag in FLAGS:
        _, default, here = rows[f"--{flag.name}"][:3]
        shown = int(flag.default) if flag.kind is bool else flag.default
        assert default.strip() == (f"`{shown}`" if shown != "" else "none")
        if "." in flag.here.split()[0]:
            assert f"`{flag.here.split()[0].rstrip(',')}" in here
    issue = (
        "data_dir task_name bert_model num_train_epochs train_batch_size learning_rate max_seq_length warmup_proportion"
        " seed only_bert co_training use_saved ckpt cls_weight attention_threshold aug_loss_weight aug_threshold"
        " rm_threshold share_weight double_ori aug_ratio_each do_first_eval output_dir"
    )
    assert set(issue.split()) <= {flag.name for flag in FLAGS}
    for name in (*SAME, *IGNORED_FLAGS):
        assert f"`--{name}`" in page
