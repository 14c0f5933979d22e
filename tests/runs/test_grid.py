"""Which runs a comparison has, with which settings, and what may not change between two commands into one folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from attentune.config import load_config, to_dict
from attentune.data.load import load_data
from attentune.errors import CheckpointError, ConfigError
from attentune.runs.grid import (
    MANIFEST_FILE,
    Method,
    Run,
    methods_from,
    methods_named,
    open_comparison,
    plan_grid,
    read_manifest,
)
from helpers.samples import write_reviews

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))

FOLDER = Path("somewhere")


def plan(*methods: str | Method, **options):
    given = {"tasks": ["cola", "rte"], "seeds": [1, 2], **options}
    return plan_grid(methods=[name if isinstance(name, Method) else Method(name, name) for name in methods], **given)


def test_every_task_method_size_and_seed_is_there_once_and_a_seed_is_done_before_the_next():
    grid = plan("bert", "sesame", train_sizes=[250, None])
    expected = [
        Run(task, size, method, seed)
        for seed in (1, 2)
        for size in (250, None)
        for task in ("cola", "rte")
        for method in ("bert", "sesame")
    ]
    assert list(grid.runs) == expected
    assert len({run.name for run in grid.runs}) == 16
    assert grid.runs[0].name == "cola/250/bert/seed-1"


def test_a_run_has_the_settings_that_a_training_with_these_flags_would_have():
    overrides = {"training.learning_rate": "2e-5", "data.data_dir": "glue"}
    grid = plan("bert", "ssa-hybrid", train_sizes=[250], overrides=overrides)
    for run in grid.runs:
        expected = load_config(
            preset=run.method,
            overrides={
                **overrides,
                "data.task": run.task,
                "data.max_train_samples": 250,
                "training.seed": run.seed,
                "training.output_dir": "somewhere",
                # The rows that are reported choose no checkpoint.
                "training.load_best_model_at_end": False,
            },
        )
        assert to_dict(grid.config(run, FOLDER)) == to_dict(expected)


def test_methods_of_a_seed_see_the_same_rows_and_seeds_see_others(tmp_path):
    write_reviews(tmp_path / "train.csv", 60)
    overrides = {"data.train_file": str(tmp_path / "train.csv"), "data.max_eval_samples": 4}
    grid = plan("bert", "sesame", tasks=None, train_sizes=[20, None], overrides=overrides)
    found: dict[tuple[int | None, int], list[dict[str, str]]] = {}
    for run in grid.runs:
        config = grid.config(run, FOLDER)
        rows = load_data(config.data, seed=config.training.seed)
        assert run.train_size is None or len(rows.splits["train"]) == 20
        found.setdefault((run.train_size, run.seed), []).append(rows.fingerprint())
    assert len(found) == 4
    for both in found.values():
        assert both[0] == both[1]
    assert len({both[0]["train"] for both in found.values()}) == 4


def test_own_settings_go_before_common_ones_and_those_of_a_task_before_both(tmp_path):
    (tmp_path / "methods.yaml").write_text(
        "quick: {preset: bert-mean, set: {training: {learning_rate: 1.0e-3}, objective.class_weights: {a: 1, b: 2}},"
        " tasks: {sst2: {training.num_train_epochs: 9}, RTE: {training: {learning_rate: 2.0e-3}}}}\n"
        "plain: {tasks: {RTE: {training.num_train_epochs: 5}}}\n"
    )
    named = methods_named((), tmp_path / "methods.yaml")
    common = {"training.learning_rate": 1e-4, "training.num_train_epochs": 2}
    grid = plan(*named, overrides=common, seeds=[7])
    found = {
        (run.method, run.task): (
            grid.config(run, FOLDER).training.learning_rate,
            grid.config(run, FOLDER).training.num_train_epochs,
        )
        for run in grid.runs
    }
    assert found == {
        ("quick", "cola"): (1e-3, 2),
        ("quick", "rte"): (2e-3, 2),
        ("plain", "cola"): (1e-4, 2),
        ("plain", "rte"): (1e-4, 5),
    }
    config = grid.config(grid.runs[0], FOLDER)
    assert config.objective.class_weights == {"a": 1, "b": 2}
    assert config.model.head.kind == "mean"


def test_a_file_s_preset_gives_way_to_a_method_s_and_its_other_settings_stay(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("preset: bert-mean\nmodel: {dropout: 0.2}\ndata: {task: rte, max_train_samples: 99}\n")
    grid = plan("bert-cls-mean", tasks=None, file=file, seeds=[1])
    config = grid.config(grid.runs[0], FOLDER)
    assert grid.runs == (Run("rte", 99, "bert-cls-mean", 1),)
    assert (config.model.head.kind, config.model.dropout, config.preset) == ("cls-mean", 0.2, "bert-cls-mean")


def test_a_task_may_be_named_by_the_settings_and_other_spellings_are_the_same_task():
    assert [run.task for run in plan("bert", tasks=["STS-B", "cola"], seeds=[1]).runs] == ["stsb", "cola"]
    assert [run.task for run in plan("bert", tasks=None, overrides={"data.task": "STS-B"}, seeds=[1]).runs] == ["stsb"]
    own = plan("bert", tasks=None, overrides={"data.train_file": "mine.csv"}, seeds=[1])
    assert own.runs == (Run("own", None, "bert", 1),)
    # Presets are looked up in the file first.
    content = {"bert": {"preset": "bert", "set": {"training.seed_": 1}}, "other": None}
    named = methods_from(content, "x")
    assert methods_named(["bert", "sesame"], content) == [named["bert"], Method("sesame", "sesame")]
    assert methods_named([], content) == list(named.values())


@pytest.mark.parametrize(("options", "messages"), MISTAKES["grids"])
def test_mistakes_are_all_told_and_each_once(options, messages):
    with pytest.raises(ConfigError) as caught:
        plan("bert", "bert-mean", **options)
    assert len(caught.value.problems) == len(messages)
    for problem, message in zip(caught.value.problems, messages, strict=True):
        assert problem.startswith(message) or message in problem
    with pytest.raises(ConfigError, match=r"^bert on cola \(and 1 more\): labels.generator: flip makes token labels"):
        plan("bert", "ssa-co", overrides={"labels.generator": "flip"})


@pytest.mark.parametrize(("content", "message"), MISTAKES["methods"])
def test_mistakes_in_a_file_of_methods(content, message):
    with pytest.raises(ConfigError, match=message):
        methods_from(content, "x")


# What may not change between two commands into one folder.


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


def test_settings_left_open_are_as_the_comparison_began_or_refused(tmp_path):
    open_comparison(tmp_path / "open", grid("bert"))
    assert grid("bert").configs["bert"]["cola"]["training.learning_rate"] is None
    open_comparison(tmp_path / "open", grid("bert", "sesame"))
    # What is not computed with may change.
    open_comparison(tmp_path / "open", grid("bert", training__logging_steps=1))
    open_comparison(tmp_path / "given", grid("bert", training__learning_rate=3e-5))
    open_comparison(tmp_path / "given", grid("bert", "sesame", training__learning_rate=3e-5))
    for method, where in (("bert", "bert on cola: "), ("bert-mean", "")):
        with pytest.raises(CheckpointError, match=f"compared: {where}training.learning_rate: was 3e-05, now None"):
            open_comparison(tmp_path / "given", grid(method))


def test_settings_that_are_a_method_s_or_a_task_s_own_may_differ(tmp_path):
    rate = {"training.learning_rate": 1e-3}
    open_comparison(tmp_path, grid("bert"))
    open_comparison(tmp_path, grid(Method("quick", "bert", rate), "sesame"))
    longer = Method("bert", "bert", by_task={"rte": {"training.num_train_epochs": 9}})
    open_comparison(tmp_path, grid(longer, tasks=("cola", "rte")))
    with pytest.raises(CheckpointError, match="quick on cola: training.learning_rate: was 0.001, now 0.002"):
        open_comparison(tmp_path, grid(Method("quick", "bert", {"training.learning_rate": 2e-3})))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("letter.txt", "dear", r"holds letter.txt and no compare.json"),
        (MANIFEST_FILE, "{", r"compare.json: cannot be read"),
        (MANIFEST_FILE, "[]", r"compare.json: (cannot be read|is of format)"),
        (MANIFEST_FILE, '{"format": 9, "methods": {}}', r"compare.json: is of format 9"),
    ],
)
def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        open_comparison(tmp_path, grid("bert"))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_setting_that_is_newer_than_the_folder_had_its_default(tmp_path):
    open_comparison(tmp_path, grid("bert"))
    content = read_manifest(tmp_path)
    del content["methods"]["bert"]["tasks"]["cola"]["training.weight_decay"]
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(content))
    open_comparison(tmp_path, grid("bert"))
    with pytest.raises(CheckpointError, match="training.weight_decay: was 0.01, now 0.5"):
        open_comparison(tmp_path, grid("bert", training__weight_decay=0.5))
