"""`attentune run-ssa` and `import-ssa`: the released program's flags, result files and checkpoints."""

import ast
import csv
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from attentune.config import load_config
from attentune.data.builtin import load_spec
from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError, ConfigError
from attentune.inference.predictor import Predictor, evaluate
from attentune.metrics.metrics import score_predictions
from attentune.seeding import numpy_generator
from attentune_lab.released_ssa.convert import import_ssa
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
from helpers.released_checkpoints import namespace, released_logits, released_state, write_released
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
    out, err = attentune.done(*base, "--task_name=RTE", "--cls_weight=0.3", "--aug_loss_weight", 0.2, "--num_show=3")
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
    attentune.done(*base, "--task_name=RTE", "--cls_weight=0.3", "--aug_loss_weight=0.2", "--resume")


def test_mnli_has_two_test_files_and_only_bert_no_token_head(base, attentune, tmp_path: Path) -> None:
    out, _ = attentune.done(*base, "--task_name", "MNLI", "--only_bert=1", "--num_train_epochs", 1, "--format", "json")
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
    out, _ = attentune.done(*base, *first, "--do_first_eval", "--format=json")
    home = tmp_path / "results" / "STS-B"
    assert {path.name for path in home.iterdir()} == {"first_test.tsv", "imported"}
    assert set(json.loads(out)["dev"]["whole"]) == {"pearson", "spearmanr", "corr"}
    with (home / "first_test.tsv").open() as lines:
        scores = [float(row["prediction"]) for row in csv.DictReader(lines, delimiter="\t")]
    assert len(scores) == 18
    assert all(0 <= score <= 5 for score in scores)
    _, err = attentune.done(*base, *first, "--use_saved=1", "--num_train_epochs=1")
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
    assert config.objective.alpha == 0.9
    assert config.labels.options == {
        "aug_ratio_each": 0.3, "aug_threshold": 0.1, "rm_threshold": 0.7, "double_ori": True,
    }  # fmt: skip
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


# Checkpoints of the released SSA program as run folders: the same logits, and what is refused.


TEXTS = ("Nobody plays the guitar.", "It is neither funny nor sad; it is simply long.", "Birds!")
PAIRS = ("A man is playing.", "The story is weak.", "The river flows past the village and into the sea.")
FORMS = [("hybrid", True), ("hybrid", False), ("co", True), ("co", False), ("plain", True)]


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize(("kind", "shared"), FORMS)
def test_an_imported_model_says_what_the_released_one_says(family, kind, shared, tiny, tmp_path):
    encoder = tiny(family)
    state = released_state(encoder, family, kind, shared=shared)
    folder = write_released(tmp_path / "released", encoder, state)
    flags = {"task_name": "RTE", "cls_weight": 0.3, "attention_threshold": 0.4, "max_seq_length": None}
    made = import_ssa(folder, tmp_path / "run", flags=flags, tokenizer=str(encoder))
    saved = Predictor.load(made.folder)
    batch = dict(saved.tokenizer(list(TEXTS), list(PAIRS), padding=True, return_tensors="pt"))
    special = torch.isin(batch["input_ids"], torch.tensor(saved.model.config.special_token_ids))
    wanted, importance = released_logits(state, family, encoder, batch, special, cls_weight=0.3, threshold=0.4)
    with torch.no_grad():
        output = saved.model(**batch)
    torch.testing.assert_close(output.logits, wanted, rtol=1e-4, atol=1e-4)
    if importance is not None:
        real = batch["attention_mask"].bool()
        torch.testing.assert_close(output.token_scores[real], importance[real], rtol=1e-4, atol=1e-4)
        passes = ~special & (importance >= 0.4)
        # Where none passes, the released program lets padding take part, which is not repeated here.
        assert passes.any(dim=1).all(), "each row must have tokens that pass the threshold"
        assert (passes != ~special).any(), "some tokens must fall under it"
    assert (kind == "plain") == (output.token_scores is None)
    assert saved.config.preset == made.preset
    assert saved.model.config.max_seq_length == (128 if shared else 40)
    if kind == "hybrid":
        assert saved.config.model.token_gate.share_weights is shared
        assert (saved.config.model.token_gate.beta, saved.config.model.token_gate.attention_threshold) == (0.3, 0.4)


def test_classes_formats_and_names_of_the_released_checkpoints(tiny, tmp_path: Path) -> None:
    state = released_state(tiny("bert"), "bert", "hybrid", outputs=3)
    folder = write_released(tmp_path / "released", tiny("bert"), state)
    made = import_ssa(folder, tmp_path / "run", flags={"task_name": "MNLI"}, tokenizer=str(tiny("bert")))
    model = Predictor.load(made.folder).model
    released = ("contradiction", "entailment", "neutral")
    for place, name in enumerate(load_spec("mnli").label_names):
        assert model.config.id2label[place] == name
        assert torch.equal(model.classifier.weight[place], state["seq_cls.classifier.weight"][released.index(name)])
    # Regression and an old files format and name.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    state = released_state(tiny("bert"), "bert", "hybrid", outputs=1)
    state = {f"module.{name}".replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in state.items()}
    folder = write_released(tmp_path / "old", tiny("bert"), state, config_name="bert_config.json", legacy=True)
    data = write_glue(tmp_path / "glue")
    flags = {"task_name": "sts-b"}
    made = import_ssa(folder, tmp_path / "run", flags=flags, tokenizer=str(tiny("bert")), data_dir=str(data))
    assert Predictor.load(made.folder).label_space.task_type == "regression"
    assert set(evaluate(made.folder, precision="fp32")["validation"]) == {"pearson", "spearmanr"}


def test_what_no_weight_tells_comes_from_the_programs_own_file(tiny, tmp_path: Path) -> None:
    state = released_state(tiny("bert"), "bert", "hybrid")
    folder = write_released(tmp_path / "RTE" / "dev_0.7", tiny("bert"), state)
    told = namespace(task_name="RTE", cls_weight=0.9, attention_threshold=0.1, max_seq_length=64, bert_model="x-base")
    (tmp_path / "RTE" / "dev_results_0.7.txt").write_text(f"acc = 0.7\nargs = {told}\n")
    said: list[str] = []
    made = import_ssa(folder, tmp_path / "run", flags={"cls_weight": 0.2}, tokenizer=str(tiny("bert")), say=said.append)
    config = load_config(made.folder / "config.yaml")
    assert (config.model.token_gate.beta, config.model.token_gate.attention_threshold) == (0.2, 0.1)
    assert (config.data.task, config.data.max_length, config.model.name_or_path) == ("rte", 64, "x-base")
    assert "cls_weight 0.2: as given" in said
    assert "attention_threshold 0.1: from dev_results_*.txt" in said
    assert "aug_loss_weight 0.3: the program's default, because it is recorded nowhere" in said


def test_a_vocabulary_makes_berts_tokenizer(tiny, tmp_path: Path) -> None:
    vocabulary = json.loads((tiny("bert") / "tokenizer.json").read_text())["model"]["vocab"]
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)) + "\n")
    folder = write_released(tmp_path / "released", tiny("bert"), released_state(tiny("bert"), "bert", "co"))
    made = import_ssa(folder, tmp_path / "a", flags={"task_name": "RTE"}, tokenizer=str(tmp_path / "vocab.txt"))
    (tmp_path / "vocab.txt").rename(folder / "vocab.txt")
    own = import_ssa(folder, tmp_path / "b", flags={"task_name": "RTE"})
    from_folder = import_ssa(folder, tmp_path / "c", flags={"task_name": "RTE"}, tokenizer=str(tiny("bert")))
    rows = [Predictor.load(run.folder).tokenizer(list(TEXTS), list(PAIRS)) for run in (made, own, from_folder)]
    assert rows[0]["input_ids"] == rows[1]["input_ids"] == rows[2]["input_ids"]
    assert rows[0]["token_type_ids"] == rows[2]["token_type_ids"]


def test_the_command_writes_a_run_that_is_scored(tiny, tmp_path: Path, attentune) -> None:
    encoder = tiny("bert")
    folder = write_released(tmp_path / "released", encoder, released_state(encoder, "bert", "hybrid"))
    data, run = write_glue(tmp_path / "glue"), tmp_path / "run"
    flags = ("--task_name", "RTE", "--cls_weight", "0.3", "--attention_threshold", "0.4", "--max_seq_length", "24")
    words = ("--output_dir", run, "--tokenizer", encoder, "--data_dir", data, *flags)
    status, out, err = attentune("import-ssa", folder, *words)
    assert (status, out) == (0, f"{run}: preset ssa-hybrid-released, task rte\n"), err
    gate = Predictor.load(run).config.model.token_gate
    assert (gate.beta, gate.attention_threshold) == (0.3, 0.4)
    assert Predictor.load(run).model.config.max_seq_length == 24
    assert attentune("evaluate", run)[0] == 0


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("ran"),))


@pytest.mark.parametrize("legacy", [True, False])
def test_a_pickle_with_code_is_not_run(legacy: bool, tiny, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_released(tmp_path / "released", tiny("bert"), {"bert.x": torch.zeros(1)})
    torch.save({"bert.x": _Evil()}, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match="could not be read as a file of tensors alone"):
        import_ssa(folder, tmp_path / "run", flags={"task_name": "RTE"})
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"bert.x": _Evil()}))
    with pytest.raises(CheckpointError, match="tensors alone"):
        import_ssa(folder, tmp_path / "run", flags={"task_name": "RTE"})
    assert not Path("ran").exists()
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_is_said(tiny, tmp_path: Path) -> None:
    encoder, state = tiny("bert"), released_state(tiny("bert"), "bert", "hybrid")

    def refused(error: type[Exception], words: str, **options: object) -> None:
        arguments = {"flags": {"task_name": "RTE"}, "tokenizer": str(encoder), **options}
        with pytest.raises(error, match=words):
            import_ssa(folder, tmp_path / "run", **arguments)
        assert not (tmp_path / "run").exists()

    folder = write_released(tmp_path / "good", encoder, state)
    refused(ConfigError, "--task_name: is missing, and no dev_results", flags={})
    refused(ConfigError, "--task_name: got 'hans', expected one of the released", flags={"task_name": "hans"})
    refused(CheckpointError, "has 2 classes, but mnli has 3", flags={"task_name": "MNLI"})
    refused(CheckpointError, "knows 455 tokens, but the checkpoint has embeddings", tokenizer=str(tiny("roberta")))
    refused(CheckpointError, "nowhere: no tokenizer could be loaded", tokenizer="./nowhere")
    (folder / "config.json").unlink()
    refused(CheckpointError, "holds neither config.json nor bert_config.json")
    (folder / "pytorch_model.bin").unlink()
    refused(CheckpointError, "holds no pytorch_model.bin, expected a folder that the released program wrote")
    folder = write_released(tmp_path / "other", encoder, {"encoder.weight": torch.zeros(2)})
    refused(CheckpointError, "has weights such as encoder.weight, but the released program's")
    folder = write_released(tmp_path / "cut", encoder, {name: w for name, w in state.items() if "layer.1." not in name})
    refused(CheckpointError, "its weights do not make a bert encoder with its config.json: Missing key")
    torch.save([torch.zeros(1)], folder / "pytorch_model.bin")
    refused(CheckpointError, "holds no state dict, expected tensors by name")
    ops = released_state(encoder, "bert", "hybrid", shared=False)
    ops.pop("token_cls.op.3.weight")
    folder = write_released(tmp_path / "ops", encoder, ops)
    refused(CheckpointError, "lacks some of the token head's weights token_cls.op.0 to 39")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        import_ssa(folder, tmp_path / "full", flags={"task_name": "RTE"}, replace=True)
