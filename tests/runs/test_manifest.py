"""What may not change between two commands into one folder."""

import json
from typing import Any

import pytest

from attentune.errors import CheckpointError
from attentune.runs.grid import MANIFEST_FILE, Method, open_comparison, plan_grid, read_manifest, with_saved_choices


def grid(*methods: str | Method, tasks: tuple[str, ...] = ("cola",), **overrides: Any):
    chosen = [name if isinstance(name, Method) else Method(name, name) for name in methods]
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    return plan_grid(tasks=tasks, methods=chosen, seeds=[1], overrides=given)


def test_methods_and_tasks_may_be_added(tmp_path):
    open_comparison(tmp_path / "c", grid("bert"))
    name = read_manifest(tmp_path / "c")["id"]
    open_comparison(tmp_path / "c", grid("sesame", "ssa-co"))
    open_comparison(tmp_path / "c", grid("bert", tasks=("rte", "cola")))
    assert read_manifest(tmp_path / "c")["id"] == name
    found = read_manifest(tmp_path / "c")["methods"]
    assert {method: set(part["tasks"]) for method, part in found.items()} == {
        "bert": {"cola", "rte"},
        "sesame": {"cola"},
        "ssa-co": {"cola"},
    }


def test_what_is_not_computed_with_may_change(tmp_path):
    open_comparison(tmp_path, grid("bert"))
    open_comparison(tmp_path, grid("bert", training__logging_steps=1, training__save_total_limit=1))


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (grid("bert", training__learning_rate=1), "bert on cola: training.learning_rate: was None, now 1.0"),
        (grid("bert", tasks=("rte",), data__max_length=9), ": data.max_length: was 128, now 9"),
        (grid("sesame", training__learning_rate=1), ": training.learning_rate: was None, now 1.0"),
        (grid("bert-mean", model__dropout=0.5), ": model.dropout: was None, now 0.5"),
        (grid(Method("bert", "bert-mean")), "bert on cola: preset: was 'bert', now 'bert-mean'"),
    ],
)
def test_other_settings_are_refused_with_what_differs(tmp_path, now, message):
    open_comparison(tmp_path, grid("bert"))
    before = (tmp_path / MANIFEST_FILE).read_bytes()
    with pytest.raises(CheckpointError, match=r"was begun with other settings") as caught:
        open_comparison(tmp_path, now)
    assert message in str(caught.value)
    assert (tmp_path / MANIFEST_FILE).read_bytes() == before


def test_settings_left_open_are_those_that_the_comparison_began_with(tmp_path):
    began = grid("bert", training__learning_rate=3e-5, training__eval_strategy="epoch")
    open_comparison(tmp_path, began)
    assert grid("sesame").configs["sesame"]["cola"]["training.learning_rate"] is None
    again = with_saved_choices(tmp_path, grid("bert", "sesame"))
    for method in ("bert", "sesame"):
        flat = again.configs[method]["cola"]
        assert (flat["training.learning_rate"], flat["training.eval_strategy"]) == (3e-5, "epoch")
        assert flat["training.num_train_epochs"] is None
    open_comparison(tmp_path, again)
    given = with_saved_choices(tmp_path, grid("bert", training__learning_rate=1))
    assert given.configs["bert"]["cola"]["training.learning_rate"] == 1, "what is given is not replaced"


def test_settings_that_are_a_method_s_or_a_task_s_own_may_differ(tmp_path):
    rate = {"training.learning_rate": 1e-3}
    open_comparison(tmp_path, grid("bert"))
    open_comparison(tmp_path, grid(Method("quick", "bert", rate), "sesame"))
    tasks = {"rte": {"training.num_train_epochs": 9}}
    open_comparison(tmp_path, grid("bert", tasks=("cola", "rte"), data__task_settings=tasks))
    with pytest.raises(CheckpointError, match="quick on cola: training.learning_rate: was 0.001, now 0.002"):
        open_comparison(tmp_path, grid(Method("quick", "bert", {"training.learning_rate": 2e-3})))


def test_a_setting_that_is_newer_than_the_folder_had_its_default(tmp_path):
    open_comparison(tmp_path, grid("bert"))
    content = read_manifest(tmp_path)
    del content["methods"]["bert"]["tasks"]["cola"]["training.weight_decay"]
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(content))
    open_comparison(tmp_path, grid("bert"))
    with pytest.raises(CheckpointError, match="training.weight_decay: was 0.01, now 0.5"):
        open_comparison(tmp_path, grid("bert", training__weight_decay=0.5))


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(CheckpointError, match=r"holds letter.txt and no compare.json"):
        open_comparison(tmp_path, grid("bert"))
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 9, "methods": {}}'])
def test_a_manifest_that_is_none_is_named(tmp_path, content):
    (tmp_path / MANIFEST_FILE).write_text(content)
    with pytest.raises(CheckpointError, match=r"compare.json: (cannot be read|is of format 9)"):
        open_comparison(tmp_path, grid("bert"))
