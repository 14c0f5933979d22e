"""Weights of rows: the losses against loops over rows and tokens, whole runs, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError, ConfigError, LabelError
from attentune.training.callbacks import ProgressDisplay
from attentune.training.objective import build_objective
from attentune.training.run import train
from attentune.training.tasks import train_tasks
from helpers.interrupted import assert_same, die_after_step, log_of, outcome, run
from helpers.samples import settings, write_reviews

WEIGHTS = np.array([1.0, 0.5, 0.25, 3.0, 1.0, 0.5])
TOKEN_LABELS_BT = torch.tensor(
    [[1, 0, -1, -1], [-1, 0.25, 0.5, -1], [-1, -1, -1, -1], [0, 1, 1, 0], [-1, -1, -1, 1], [-1, -1, -1, -1]]
)
SPACES = {
    "classes": (LabelSpace("classification", ("a", "b", "c")), np.array([0, 2, 1, 0, 2, 1])),
    "two": (LabelSpace("classification", ("a", "b")), np.array([0, 1, 1, 0, 1, 1])),
    "stars": (LabelSpace("ordinal", ("1", "2", "3")), np.array([0, 2, 1, 0, 2, 1])),
    "scores": (LabelSpace("regression"), np.array([0.0, 2.5, 1, 0, -2, 1], dtype=np.float32)),
    "sets": (
        LabelSpace("multi_label", ("a", "b", "c")),
        np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]]),
    ),
}
CASES = [
    ("classes", {}),
    ("classes", {"class_weights": [0.5, 1.0, 4.0], "label_smoothing": 0.1}),
    ("classes", {"loss": "focal", "class_weights": [0.5, 1.0, 4.0]}),
    ("two", {"loss": "binary-cross-entropy"}),
    ("stars", {"loss": "corn"}),
    ("scores", {}),
    ("sets", {}),
    ("sets", {"loss": "focal", "class_weights": [2.0, 1.0, 3.0]}),
]


def outputs(columns: int, rows: slice = slice(None)) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(4)
    logits, tokens = (torch.randn(*shape, generator=generator) for shape in ((6, columns), (6, 4, 2)))
    if columns == 3:
        logits = logits.log_softmax(dim=-1)  # what corn takes; any other loss takes it too
    return SimpleNamespace(logits=logits[rows].requires_grad_(), token_logits=tokens[rows].requires_grad_())


def written_out(space: LabelSpace, labels: np.ndarray, options: dict, alpha: float) -> float:
    """(1 - share) sum(w l) / sum(c) + share sum(w t) / tokens, each row's l and c from this row's loss alone."""
    objective = build_objective(space, labels, alpha=alpha, **options)
    given, above, below, tokens, count = outputs(space.num_labels), [], [], [], 0
    for row, weight in enumerate(WEIGHTS.tolist()):
        alone = objective.rows(given.logits[row : row + 1], torch.from_numpy(labels[row : row + 1]))
        above.append(weight * float(alone.loss_B.detach()))
        below.append(float(alone.weight_B))
        for place in range(4):
            label = float(TOKEN_LABELS_BT[row, place])
            no, yes = given.token_logits[row, place].tolist()
            total = math.log(math.exp(no) + math.exp(yes))
            if label >= 0:
                tokens.append(weight * (-label * (yes - total) - (1 - label) * (no - total)))
                count += 1
    return alpha * math.fsum(above) / math.fsum(below) + (1 - alpha) * math.fsum(tokens) / count


@pytest.mark.parametrize("parts", [[slice(0, 6)], [slice(0, 1), slice(1, 2), slice(2, 6)]], ids=["whole", "parts"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name}-{number}" for number, (name, _) in enumerate(CASES)])
def test_every_loss_is_that_of_a_plain_loop(name: str, options: dict, parts: list[slice]) -> None:
    space, labels = SPACES[name]
    objective = build_objective(space, labels, row_weights=WEIGHTS, alpha=0.7, **options)
    denominators = objective.denominators(labels, int((TOKEN_LABELS_BT >= 0).sum()), 0.0)
    weights_B, total = torch.from_numpy(WEIGHTS.astype(np.float32)), 0.0
    for part in parts:  # batches of one step, or the shares of several processes
        sums_3 = objective.sums(
            outputs(space.num_labels, part), torch.from_numpy(labels)[part], TOKEN_LABELS_BT[part], weights_B[part]
        )
        total += float(denominators.combine(sums_3).detach())
    assert total == pytest.approx(written_out(space, labels, options, 0.7), rel=1e-5)


def test_a_row_alone_in_its_batch_keeps_its_weight() -> None:
    """Which a division by the weights of the batch would take from it."""
    space, labels = SPACES["classes"]
    objective = build_objective(space, labels, row_weights=WEIGHTS)
    given, one = outputs(3, slice(1, 2)), torch.from_numpy(labels[1:2])
    whole = objective.denominators(labels[1:2], 0, 0.0).combine(objective.sums(given, one, None))
    half = objective.denominators(labels[1:2], 0, 0.0).combine(objective.sums(given, one, None, torch.tensor([0.5])))
    torch.testing.assert_close(half, 0.5 * whole)


def test_balanced_classes_are_balanced_by_what_their_rows_weigh() -> None:
    space, labels = SPACES["classes"]
    found = build_objective(space, labels, row_weights=WEIGHTS, class_weights="balanced").class_weights
    weighed = np.array([WEIGHTS[labels == label].sum() for label in range(3)])
    np.testing.assert_allclose(found.numpy(), WEIGHTS.sum() / (3 * weighed), rtol=1e-6)
    np.testing.assert_allclose(found.numpy() * weighed, np.full(3, WEIGHTS.sum() / 3), rtol=1e-6)
    plain = build_objective(space, labels, class_weights="balanced").class_weights
    np.testing.assert_allclose(plain, compute_class_weight("balanced", classes=np.arange(3), y=labels), rtol=1e-6)
    space, labels = SPACES["sets"]
    found = build_objective(space, labels, row_weights=WEIGHTS, class_weights="balanced").class_weights
    present = (labels * WEIGHTS[:, None]).sum(axis=0)
    np.testing.assert_allclose(found.numpy(), (WEIGHTS.sum() - present) / present, rtol=1e-6)


def test_a_correlation_has_no_weights_of_rows() -> None:
    space, labels = SPACES["scores"]
    with pytest.raises(ConfigError, match="pearson has one loss for a whole batch, so rows cannot have weights"):
        build_objective(space, labels, row_weights=WEIGHTS, loss="pearson")


# Whole runs


def extra(folder: Path, weight: float | None = 0.5, rows: int = 16, seed: int = 9) -> dict[str, object]:
    write_reviews(folder / "silver.csv", rows, seed=seed)
    weights = {} if weight is None else {"data__extra_train_weights": [weight]}
    return {"data__extra_train_files": [str(folder / "silver.csv")], **weights}


def test_weight_one_is_a_longer_file_and_weight_zero_the_file_alone(tiny, tmp_path: Path) -> None:
    homes = {name: tmp_path / name for name in ("one", "longer", "zero", "plain")}
    for home in homes.values():
        home.mkdir()
    run(homes["one"], tiny("bert"), preset="ssa-co", **extra(homes["one"], None))
    run(homes["zero"], tiny("bert"), preset="ssa-co", **extra(homes["zero"], 0.0))
    run(homes["plain"], tiny("bert"), preset="ssa-co")
    write_reviews(homes["longer"] / "validation.csv", 20, seed=2)
    lines = (homes["one"] / "train.csv").read_text(), (homes["one"] / "silver.csv").read_text()
    # Of one file every id stands once.
    more = [line.replace("r", "s", 1) for line in lines[1].splitlines(keepends=True)[1:]]
    (homes["longer"] / "train.csv").write_text(lines[0] + "".join(more))
    run(homes["longer"], tiny("bert"), preset="ssa-co")
    found = {name: outcome(home / "run") for name, home in homes.items()}
    for name, other in (("one", "longer"), ("zero", "plain")):
        for value in (found[name], found[other]):
            value["train"].pop("rows_from", None)
            value.pop("labels", None)  # the file names its rows by their print, ids and all
        assert_same(found[name], found[other])
    assert found["one"]["weights"] != found["plain"]["weights"]


def test_the_first_step_is_the_weighted_loss_of_its_rows(tiny, tmp_path: Path) -> None:
    """One step of all rows, in batches of 8, from fresh weights and without dropout, against single rows."""
    from attentune.training.building import load_inputs, new_model
    from attentune.training.objective import new_objective
    from attentune.training.prepare import prepare_rows

    whole = {
        "training__max_steps": 1,
        "training__gradient_accumulation_steps": 8,
        "model__dropout": 0,
        "model__head__dropout": 0,
        "training__precision": "fp32",
        **extra(tmp_path),
    }
    config = load_config(overrides=settings(tmp_path, tiny("bert"), **whole))
    inputs = load_inputs(prepare_rows(config), ProgressDisplay(quiet=True))
    model, features = new_model(inputs, new_objective(inputs)).eval(), inputs.features["train"]
    losses = []
    for row in range(len(features)):
        ids = torch.from_numpy(features.ids[features.row(row)].astype(np.int64))[None]
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        losses.append(float(-logits.log_softmax(dim=-1)[0, inputs.labels[row]]))
    assert len(losses) == 64
    expected = math.fsum(losses[:48]) / 64 + 0.5 * math.fsum(losses[48:]) / 64
    run(tmp_path, tiny("bert"), **whole)
    (first, *_) = [line for line in log_of(tmp_path / "run") if "loss" in line]
    assert first["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.integration
@pytest.mark.parametrize("generator", ["gradient", "flip", "masked-rows"])
def test_a_killed_run_goes_on_with_the_weights_it_had(tiny, tmp_path: Path, monkeypatch, generator: str) -> None:
    preset = "bert" if generator == "masked-rows" else "ssa-co"
    method = {"preset": preset, "labels__generator": generator, "training__save_steps": 3}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for home in (whole, broken):
        home.mkdir()
    run(whole, tiny("bert"), **method, **extra(whole))
    more = extra(broken)
    die_after_step(monkeypatch, 11, lambda: run(broken, tiny("bert"), **method, **more))
    if generator == "flip":
        before = (broken / "silver.csv").read_text()
        extra(broken, seed=10)
        with pytest.raises(CheckpointError, match=r"cannot be resumed: the rows \(train\) changed since it was begun"):
            run(broken, tiny("bert"), **method, **more, training__resume=True)
        (broken / "silver.csv").write_text(before)
        with pytest.raises(CheckpointError, match=r"data.extra_train_weights: was \[0.5\], now \[0.25\]"):
            run(broken, tiny("bert"), **method, **more | {"data__extra_train_weights": [0.25]}, training__resume=True)
    run(broken, tiny("bert"), **method, **more, training__resume=True)
    found, expected = outcome(broken / "run"), outcome(whole / "run")
    for value in (found, expected):
        for part in value["train"].pop("rows_from"):
            assert (part["rows"], part["weight"]) in ((48, 1.0), (16, 0.5))
    assert_same(found, expected)


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
def test_one_of_several_tasks_has_an_extra_file(tiny, tmp_path: Path, data_dir: Path, together: bool) -> None:
    (tmp_path / "more.csv").write_text("sentence1,sentence2,label\na man sings,a man is singing,entailment\n")
    config = load_config(
        overrides={
            "data.tasks": ["rte", "wnli"],
            "data.task_settings": {"rte": {"data.extra_train_files": str(tmp_path / "more.csv")}},
            "data.data_dir": str(data_dir),
            "data.max_train_samples": 12,
            "data.max_eval_samples": 6,
            "data.max_length": 24,
            "model.name_or_path": str(tiny("bert")),
            "training.output_dir": str(tmp_path / "runs"),
            "training.multi_task": together,
            "training.num_train_epochs": 1,
            "training.use_cpu": True,
        }
    )
    train_tasks(config, display=ProgressDisplay(quiet=True))
    rows = {task: json.loads((tmp_path / "runs" / task / "run.json").read_text())["train"] for task in ("rte", "wnli")}
    assert (rows["rte"]["rows"], rows["wnli"]["rows"]) == (13, 12)
    assert [part["rows"] for part in rows["rte"]["rows_from"]] == [12, 1]
    assert "rows_from" not in rows["wnli"]


def test_a_run_with_extra_rows_of_another_kind_is_refused_before_anything_is_written(tiny, tmp_path: Path) -> None:
    more = extra(tmp_path)
    (tmp_path / "silver.csv").write_text("text,label\na,fine\n")
    with pytest.raises(LabelError, match="unknown labels: 'fine'"):
        train(load_config(overrides=settings(tmp_path, tiny("bert"), **more)), display=ProgressDisplay(quiet=True))
    assert not (tmp_path / "run").exists()


def kinds(folder: Path) -> dict[str, dict[str, object]]:
    """Settings of each kind of task and way of reading, with files train.csv and silver.csv of that kind."""
    return {
        "scores": {"data__task_type": "regression", "labels__generator": "flip", "preset": "ssa-hybrid"},
        "ordered": {"data__task_type": "ordinal", "objective__loss": "corn", "preset": "ssa-co"},
        "sets": {"data__task_type": "multi_label", "objective__class_weights": "balanced", "preset": "ssa-co"},
        "pairs": {"preset": "bi-encoder-mean", "model__head__combine": "concat"},
        "windows": {"data__long_texts": "windows", "data__max_length": 8, "data__stride": 2, "preset": "ssa-co"},
        "frozen": {"training__freeze_encoder": True},
        "calibrated": {"training__calibrate": "temperature", "data__calibration_share": 0.25},
        "masked": {"preset": "bert-mask"},
    }


LABELS = {"scores": "{}.5", "ordered": "{}", "sets": "a|{}"}


@pytest.mark.integration
@pytest.mark.parametrize("name", list(kinds(Path())))
def test_every_kind_of_task_takes_extra_rows(tiny, tmp_path: Path, name: str) -> None:
    for file, rows in (("train.csv", 30), ("validation.csv", 9), ("silver.csv", 12)):
        header = "text,text_pair,label" if name == "pairs" else "text,label"
        lines = [header]
        for number in range(rows):
            texts = [f"we saw the film {file[0]} {number} and it was so very fine in town"]
            texts += [f"a story {number}"] if name == "pairs" else []
            lines.append(",".join([*texts, LABELS.get(name, "{}").format(number % 3)]))
        (tmp_path / file).write_text("\n".join(lines) + "\n")
    files = {"data__extra_train_files": str(tmp_path / "silver.csv"), "data__extra_train_weights": "0.4"}
    run(tmp_path, tiny("bert"), **files, **kinds(tmp_path)[name], training__num_train_epochs=2)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    own = 22 if name == "calibrated" else 30
    assert [(part["rows"], part["weight"]) for part in record["train"]["rows_from"]] == [(own, 1.0), (12, 0.4)]
    assert record["train"]["rows"] == own + 12
    losses = [line["loss"] for line in log_of(tmp_path / "run") if "loss" in line]
    assert len(losses) > 3
    assert np.isfinite(losses).all()
