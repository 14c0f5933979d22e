"""Checkpoints of the released SSA program as run folders: the same logits, and what is refused."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from attentune.config import load_config
from attentune.data.builtin import load_spec
from attentune.errors import CheckpointError, ConfigError
from attentune.inference.predictor import Predictor, evaluate
from attentune_lab.released_ssa.convert import import_ssa
from helpers.glue_samples import write_glue
from helpers.released_checkpoints import namespace, released_logits, released_state, write_released

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


def test_mnli_classes_are_put_into_the_tasks_own_order(tiny, tmp_path: Path) -> None:
    state = released_state(tiny("bert"), "bert", "hybrid", outputs=3)
    folder = write_released(tmp_path / "released", tiny("bert"), state)
    made = import_ssa(folder, tmp_path / "run", flags={"task_name": "MNLI"}, tokenizer=str(tiny("bert")))
    model = Predictor.load(made.folder).model
    released = ("contradiction", "entailment", "neutral")
    for place, name in enumerate(load_spec("mnli").label_names):
        assert model.config.id2label[place] == name
        assert torch.equal(model.classifier.weight[place], state["seq_cls.classifier.weight"][released.index(name)])


def test_regression_and_an_old_files_format_and_name(tiny, tmp_path: Path) -> None:
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
