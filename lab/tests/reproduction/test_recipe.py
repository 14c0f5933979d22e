"""Recipes: their tasks and settings, our scores in the places of the published ones, their commands."""

import json
import math
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from attentune.config import load_config
from attentune.data.builtin import load_spec
from attentune.errors import ConfigError
from attentune.runs.grid import methods_from, methods_named, plan_grid
from attentune.runs.records import Run, RunRecord
from attentune_lab.reproduction.paper_comparison import (
    GLUE_TASKS,
    count_section,
    glue_average,
    method_of_row,
    score_section,
    task_score,
)
from attentune_lab.reproduction.planning import Part, plan_searches
from attentune_lab.reproduction.recipe import (
    BETWEEN,
    NO_TASK,
    TEST,
    Published,
    Recipe,
    load_recipe,
    recipe_names,
    with_task_settings,
)
from attentune_lab.reproduction.steps import count_parts
from helpers.glue_samples import write_glue, write_hans
from helpers.tasks import small_record

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))

# The tables and figures of the three papers that hold results.
WANTED = {
    *("ssa-table-2", "ssa-table-3", "ssa-figure-1", "ssa-figure-6", "ssa-figure-7", "ssa-figure-8"),
    *("sesame-table-1", "sesame-table-2", "sesame-table-3", "sesame-figure-3", "sesame-figure-4"),
    *("task-attention-table-1", "task-attention-table-2", "task-attention-table-3"),
}


def test_all_tables_and_figures_have_one():
    assert set(recipe_names()) == WANTED | {
        *("ssa-original", "ssa-original-large", "ssa-original-roberta", "sesame-original"),
        *("task-attention-original", "task-attention-table-1-original"),
    }


@pytest.mark.integration
@pytest.mark.parametrize("name", recipe_names())
def test_settings_and_methods_are_known(name):
    recipe = load_recipe(name)
    matrix = plan_grid(
        tasks=recipe.tasks,
        methods=methods_named((), with_task_settings(recipe.methods, recipe.task_settings)),
        seeds=(1,),
        overrides={**recipe.settings, **recipe.on_embedded},
    )
    assert len(matrix.runs) == len(recipe.tasks) * len(recipe.methods)
    assert all(load_spec(task).name == task for task in (*recipe.tasks, *recipe.instead, *recipe.instead.values()))
    assert recipe.differences
    assert recipe.published is not None or recipe.claims
    assert (recipe.kind == "explanation") == bool(recipe.sentences)


@pytest.mark.parametrize("name", [name for name in recipe_names() if load_recipe(name).published is not None])
def test_published_rows_belong_to_methods(name):
    recipe = load_recipe(name)
    published = recipe.published
    assert all(len(entries) == len(published.columns) for entries in published.rows.values())
    if published.layout == "methods":
        wanted = {f"{column}{BETWEEN}{row}" for column in published.columns for row in published.rows}
        assert wanted == set(recipe.methods)
        return
    assert {method_of_row(row, recipe) for row in published.rows} - {TEST} == set(recipe.methods)
    assert len([column for column in published.columns if column not in NO_TASK]) == len(recipe.tasks)


def test_a_file_may_hold_a_recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("tasks: [rte]\nmethods: {bert: {preset: bert}}\ntrain_size: 100\n")
    recipe = load_recipe(str(file))
    assert (recipe.name, recipe.title, recipe.kind, recipe.encoder) == ("mine.yaml", "mine", "comparison", "embedded")
    assert (recipe.tasks, recipe.methods, recipe.train_size) == (("rte",), {"bert": {"preset": "bert"}}, 100)


@pytest.mark.parametrize(("text", "message"), MISTAKES["recipes"])
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_recipe(str(tmp_path / "mine.yaml"))
    with pytest.raises(ConfigError, match="other.yaml: no such file"):
        load_recipe(str(tmp_path / "other.yaml"))


@pytest.mark.integration
@pytest.mark.parametrize("name", [name for name in recipe_names() if load_recipe(name).search is not None])
def test_searched_methods_and_settings_are_known(name):
    recipe = load_recipe(name)
    parts = [Part(task, task, None, {"training.learning_rate": 2e-5}, {}) for task in recipe.tasks]
    searches = plan_searches(recipe, recipe.encoder, parts, {}, None)
    assert len(searches) == len(recipe.tasks) * len(recipe.search.spaces)
    assert set(recipe.search.spaces) <= set(recipe.methods)
    assert recipe.search.instead_of
    for one in searches:
        for point in one.space.points():
            load_config(preset=one.method.preset, overrides={**one.settings, **point})
        assert not set(one.settings) & {part.name for part in one.space.dimensions}
    # A number of trials is the same for all methods, up to the size of their grids; fixed settings are not searched.
    few = plan_searches(recipe, recipe.encoder, parts, {}, 3)
    assert {(one.trials, one.options["sampler"]) for one in few} == {(3, "random")}
    fixed = {part.name: part.choices[0] for one in searches for part in one.space.dimensions}
    assert plan_searches(recipe, recipe.encoder, parts, fixed, None) == []
    assert plan_searches(recipe, recipe.encoder, parts, {}, "none") == []


def test_the_released_programs_settings_by_task():
    """The settings published with the program's checkpoints: beta, shared weights and threshold of base and large."""
    tasks = ("cola", "mrpc", "rte", "stsb", "sst2", "qnli", "qqp", "mnli")
    betas = {
        "ssa-original": dict(zip(tasks, (0.999, 0.5, 0.5, 0.9, 0.5, 0.7, 0.9, 0.999), strict=True)),
        "ssa-original-large": dict(zip(tasks, (0.9, 0.5, 0.5, 0.5, 0.999, 0.9, 0.999, 0.2), strict=True)),
    }
    for name, by_task in betas.items():
        recipe = load_recipe(name)
        method = methods_from(recipe.methods, name)["SSA-Hybrid"]
        for task, beta in by_task.items():
            settings = {**recipe.settings, **recipe.task_settings.get(task, {}), **method.by_task[task]}
            gate = load_config(preset=method.preset, overrides=settings).model.token_gate
            unshared = task == "rte" or (name, task) == ("ssa-original", "stsb")
            threshold = 0.1 if (name, task) == ("ssa-original-large", "mnli") else 0.3
            assert (gate.beta, gate.share_weights, gate.attention_threshold) == (beta, not unshared, threshold)


@cache
def grid_of(name: str, task: str):
    recipe = load_recipe(name)
    return plan_grid(
        tasks=[task],
        methods=methods_named((), with_task_settings(recipe.methods, recipe.task_settings)),
        seeds=(1,),
        overrides=recipe.settings,
    )


def settings_of(name: str, method: str, task: str):
    grid = grid_of(name, task)
    return grid.config(next(run for run in grid.runs if run.method == method), Path("unused"))


def test_the_papers_grids_are_searched():
    """SSA, section 4.3; SESAME, section 4."""
    ssa = {
        "training.learning_rate": [1e-5, 2e-5],
        "training.per_device_train_batch_size": [16, 32],
        "training.num_train_epochs": [2, 3, 5],
        "objective.alpha": [0.7, 0.9],
        "model.token_gate.beta": [0.2, 0.5, 0.9],
        "labels.ratio": [0.6, 1.0, 2.0],
    }
    for name in ("ssa-table-2", "ssa-table-3"):
        assert load_recipe(name).search.spaces["SSA-Hybrid"] == ssa
    assert load_recipe("sesame-table-1").search.spaces["SesameBERT"] == {"model.blur.sigma": [0.01, 0.1, 0.3, 0.5]}


def test_gamma_is_searched_for_bert_with_masked_rows_too():
    recipe = load_recipe("ssa-table-2")
    parts = [Part("rte", "rte", None, {}, {})]
    points = {one.method.name: one.space.points() for one in plan_searches(recipe, recipe.encoder, parts, {}, None)}
    for method, size in {"BERT": 12, "BERT-m": 36, "SSA-Co": 72, "SSA-Hybrid": 216}.items():
        assert len(points[method]) == size
        gammas = {point.get("labels.ratio") for point in points[method]}
        assert gammas == ({None} if method == "BERT" else {0.6, 1.0, 2.0})
    # The embedded encoder has learning rates of its own.
    for encoder, rates in (("embedded", {5e-5, 1e-4}), ("bert-base-uncased", {1e-5, 2e-5})):
        searches = plan_searches(recipe, encoder, parts, {}, None)
        found = {point["training.learning_rate"] for one in searches for point in one.space.points()}
        assert found == rates


def test_figure_7_has_the_six_values_of_gamma_for_each_method():
    gammas = (0.2, 0.4, 0.6, 0.8, 1.0, 2.0)
    methods = {"BERT-m": "bert-mask", "SSA-Co": "ssa-co", "SSA-Hybrid": "ssa-hybrid"}
    expected = {"BERT": {"preset": "bert"}}
    for title, preset in methods.items():
        expected |= {f"{title} {gamma}": {"preset": preset, "set": {"labels.ratio": gamma}} for gamma in gammas}
    assert load_recipe("ssa-figure-7").methods == expected


def test_sesame_original_trains_each_method_in_the_programs_regime():
    """The program's scripts: its BERT trains three epochs, mostly at 3e-5; SesameBERT mostly four at 2e-5."""
    slow, short = ("mrpc", "stsb", "mnli", "wnli"), ("mnli", "qnli", "wnli")
    recipe = load_recipe("sesame-original")
    for task in recipe.tasks:
        bert = settings_of("sesame-original", "BERT", task)
        sesame = settings_of("sesame-original", "SesameBERT", task)
        assert (bert.training.learning_rate, bert.training.num_train_epochs) == (2e-5 if task in slow else 3e-5, 3)
        assert (sesame.training.learning_rate, sesame.training.num_train_epochs) == (2e-5, 3 if task in short else 4)
        for config in (bert, sesame):
            assert (config.training.per_device_train_batch_size, config.data.max_length) == (32, 400)
            assert (config.training.adam_epsilon, config.model.head.pooler) == (1e-6, "auto")
        assert sesame.model.layer_mix.init == "original"
    assert any("a third longer" in " ".join(text.split()) for text in recipe.differences)
    for name in recipe_names():  # all of this paper take the checkpoint's pooler
        if name.startswith("sesame"):
            recipe = load_recipe(name)
            heads = [settings_of(name, method, recipe.tasks[0]).model.head for method in recipe.methods]
            assert {head.pooler for head in heads} == {"auto"}


def test_robertas_recipe_has_what_its_authors_publish():
    config = settings_of("ssa-original-roberta", "SSA-Hybrid", "rte")
    assert (config.training.num_train_epochs, config.training.warmup_ratio, config.training.weight_decay) == (
        *(3, 0.06, 0.1),
    )
    gate = config.model.token_gate
    assert (gate.beta, gate.attention_threshold, gate.share_weights) == (0.5, 0.3, True)


@pytest.mark.parametrize("name", ["task-attention-original", "task-attention-table-1-original"])
def test_the_posters_programs_training(name):
    recipe = load_recipe(name)
    for task in recipe.tasks:
        for method in recipe.methods:
            config = settings_of(name, method, task)
            training = config.training
            assert (training.num_train_epochs, training.per_device_train_batch_size) == (10, 8)
            assert (training.lr_scheduler_type, training.warmup_ratio) == ("constant", 0)
            assert (training.weight_decay, training.max_grad_norm) == (0, 0)
            assert training.learning_rate == (1e-3 if method.endswith("frozen") else 1e-5)
            assert training.freeze_encoder == method.endswith("frozen")
            assert config.model.head.dropout == (0.0 if method.startswith("Experiment") else 0.3)
            assert config.model.head.combine == "dot"
            if method.startswith("first"):
                assert (config.model.head.kind, config.model.head.pooler) == ("cls", "auto")


# Our scores stand in the places of the published ones.


PARTS = {"matched": 0.5, "mismatched": 0.25}


def record(task: str, method: str, seed: int, scores: dict, *, seconds: float = 10.0, **changes: str) -> RunRecord:
    made = small_record(Run(task, None, method, seed), **changes)
    return replace(made, scores=scores, train={"seconds": seconds})


def recipe(published: Published, methods: dict, tasks: tuple[str, ...] = ("mrpc", "rte")) -> Recipe:
    return Recipe("some", "Some", "Source", "comparison", "bert", tasks, methods, {}, ("all",), published=published)


def rows_of(section) -> list[tuple[str, ...]]:
    return list(section.parts[0].rows)


def test_scores_of_several_seeds_metrics_and_splits():
    published = Published("tasks", ("MRPC", "MNLI"), {"A": ("88.0/84.0", None)})
    found = score_section(
        recipe(published, {"A": {}}, ("mrpc", "mnli")),
        [
            record("mrpc", "A", 1, {"validation": {"f1": 0.8, "accuracy": 0.7}}),
            record("mrpc", "A", 2, {"validation": {"f1": 0.9, "accuracy": 0.7}}),
            record("mrpc", "A", 3, {}, status="failed"),
            record("mnli", "A", 1, {f"validation_{part}": {"accuracy": score} for part, score in PARTS.items()}),
        ],
        {"mrpc": "mrpc", "mnli": "mnli"},
    )
    assert rows_of(found) == [
        ("A", "published", "88.0/84.0", "-"),
        ("", "reproduced", "85.0 +- 7.1/70.0 +- 0.0", "50.0/25.0"),
    ]


def test_tasks_left_out_and_several_rows_of_one_method():
    published = Published("tasks", ("MRPC", "RTE"), {"A": ("1", "2")}, scale=1, metric="accuracy")
    scores = {"validation": {"f1": 0.9, "accuracy": 0.125}}
    found = score_section(recipe(published, {"A": {}}), [record("sick", "A", 1, scores)], {"rte": "sick"})
    assert rows_of(found)[1] == ("", "reproduced", "-", "0.125")
    # Several published rows of one method have ours last.
    published = Published("tasks", ("MRPC", "RTE"), {"large - A": ("1", "2"), "small - A": ("3", "4")})
    found = score_section(
        recipe(published, {"A": {}}), [record("rte", "A", 1, {"validation": {"accuracy": 0.5}})], {"rte": "rte"}
    )
    assert rows_of(found) == [
        ("large - A", "published", "1", "2"),
        ("small - A", "published", "3", "4"),
        ("A", "reproduced", "-", "50.0"),
    ]
    # Methods that a row and a column make.
    published = Published("methods", ("X", "Y"), {"First": ("1", None)})
    scores = {"validation": {"accuracy": 0.5}}
    found = score_section(recipe(published, {}), [record("rte", "Y - First", 1, scores)], {"rte": "rte"})
    assert rows_of(found) == [("First", "published", "1", "-"), ("", "reproduced", "-", "50.0")]


def test_seconds_are_summed_over_tasks_and_averaged_over_seeds():
    published = Published("tasks", ("MRPC", "RTE", "seconds"), {"A": ("1", "2", "3")})
    scores = {"validation": {"accuracy": 0.5}}
    runs = [
        record(task, "A", seed, scores, seconds=took)
        for task, seed, took in (("mrpc", 1, 10), ("rte", 1, 20), ("mrpc", 2, 30), ("rte", 2, 40))
    ]
    both = {"mrpc": "mrpc", "rte": "rte"}
    assert rows_of(score_section(recipe(published, {"A": {}}), runs, both))[1][-1] == "50"
    assert rows_of(score_section(recipe(published, {"A": {}}), runs, {"rte": "rte"}))[1][-1] == "-"


def test_times_are_divided_by_the_baselines_of_the_same_regime_and_test_rows_are_published_only():
    rows = {"Baseline - frozen": ("1", "2", "1"), "New - frozen": ("1", "2", "1.1"), "New - test": ("5", None, None)}
    published = Published("tasks", ("RTE", "seconds", "time ratio"), rows, scale=1)
    methods = {name: {} for name in ("Baseline - tuned", "Baseline - frozen", "New - frozen")}
    took = {"Baseline - tuned": 100, "Baseline - frozen": 8, "New - frozen": 10}
    runs = [
        record("rte", name, 1, {"validation": {"accuracy": 0.5}}, seconds=seconds) for name, seconds in took.items()
    ]
    found = rows_of(score_section(recipe(published, methods, ("rte",)), runs, {"rte": "rte"}))
    assert found == [
        ("Baseline - frozen", "published", "1", "2", "1"),
        ("", "reproduced", "0.500", "8", "1.000"),
        ("New - frozen", "published", "1", "2", "1.1"),
        ("", "reproduced", "0.500", "10", "1.250"),
        ("New - test", "published", "5", "-", "-"),
    ]


# BERT-base of the SESAME paper's table 1, with second metrics that are made up.
SCORES = {
    "cola": {"validation": {"matthews_correlation": 0.521}},
    "sst2": {"validation": {"accuracy": 0.935}},
    "mrpc": {"validation": {"f1": 0.889, "accuracy": 0.848}},
    "stsb": {"validation": {"pearson": 0.871, "spearmanr": 0.858}},
    "qqp": {"validation": {"f1": 0.712, "accuracy": 0.892}},
    "mnli": {"validation_matched": {"accuracy": 0.846}, "validation_mismatched": {"accuracy": 0.834}},
    "qnli": {"validation": {"accuracy": 0.905}},
    "rte": {"validation": {"accuracy": 0.664}},
}


def test_all_tasks_are_averaged_with_wnli_as_the_majority_class():
    found = glue_average({**SCORES, "wnli": {"validation": {"accuracy": 0.2}}, "ax": {"validation": {"accuracy": 0.3}}})
    by_hand = [0.521, 0.935, (0.889 + 0.848) / 2, (0.871 + 0.858) / 2, (0.712 + 0.892) / 2, 0.84, 0.905, 0.664, 0.651]
    assert found == (pytest.approx(sum(by_hand) / 9), GLUE_TASKS)


def test_without_some_tasks_it_says_what_is_averaged_and_only_validation_splits_count():
    found = glue_average({"rte": SCORES["rte"], "mnli": SCORES["mnli"], "reviews": {"validation": {"accuracy": 1.0}}})
    assert found == (pytest.approx((0.664 + 0.84) / 2), ("mnli", "rte"))
    assert glue_average({"rte": SCORES["rte"], "wnli": SCORES["rte"]}) is None
    assert task_score({"train": {"accuracy": 1.0}, "validation": {"accuracy": 0.5}, "test": {"accuracy": 0.0}}) == 0.5
    assert math.isnan(task_score({"test": {"accuracy": 0.5}}))
    assert math.isnan(glue_average({"rte": SCORES["rte"], "stsb": {"validation": {"pearson": None}}})[0])


def test_averages_go_by_glues_rule_for_each_seed_and_name_missing_tasks():
    tasks = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
    titles = tuple(task.upper() for task in tasks)
    published = Published("tasks", (*titles, "AX", "Avg"), {"A": (*titles, "34.2", "78.3")})

    def averages(run_tasks, ax_scores=None):
        runs = [
            record(task, "A", seed, {"validation": {"f1": base, "accuracy": base + 0.2}})
            for task in run_tasks
            for seed, base in ((1, 0.4), (2, 0.5))
        ]
        done = {task: task for task in run_tasks}
        return rows_of(score_section(recipe(published, {"A": {}}, tasks), runs, done, ax_scores))[1][-2:]

    # By hand: eight tasks at 50 or 60 and WNLI at 65.1.
    first, second = (8 * 50 + 65.1) / 9, (8 * 60 + 65.1) / 9
    mean, deviation = (first + second) / 2, abs(second - first) / 2**0.5
    assert averages(tasks, {"A": [0.3, 0.5]}) == ("40.0 +- 14.1", f"{mean:.1f} +- {deviation:.1f}")
    assert averages(tasks[:3]) == ("-", "55.0 +- 7.1 (3 tasks)")
    assert averages(tasks[:1]) == ("-", "-")


def test_counts_and_no_table_without_published_figures():
    assert score_section(load_recipe("ssa-figure-6"), [], {}) is None
    published = Published("tasks", ("MRPC", "RTE"), {"A": ("1.00M param", "3840 param")})
    found = count_section(recipe(published, {"A": {}}), {"A": {"mrpc": 1_250_000, "rte": 3840}})
    assert rows_of(found)[1] == ("", "reproduced", "1.25M param", "3840 param")
    assert found.parts[0].notes == ()


def test_the_papers_counts_are_ours_at_its_width(tiny):
    """The counts grow with the square of the width: those of a tiny encoder give those of one 768 wide."""
    encoder = tiny("bert")
    width = 32
    recipe = load_recipe("task-attention-table-2")
    sts = {name: 4 * width if name == "model.head.projection" else v for name, v in recipe.task_settings["sts"].items()}
    counts = count_parts(replace(recipe, task_settings={**recipe.task_settings, "sts": sts}), str(encoder))
    published = {
        "Experiment 1": {"sst5": 4.72e6, "quora": 3.54e6, "sts": 11.2e6},
        "Baseline": {"quora": 0.59e6, "sts": 2.36e6},
    }
    assert counts["Baseline"].pop("sst5") * (768 / width) == 3840
    grown = {name: {task: count * (768 / width) ** 2 for task, count in row.items()} for name, row in counts.items()}
    assert grown == {name: pytest.approx(row, rel=2e-3) for name, row in published.items()}


# Recipes through the command line: on made-up data in the published layouts, and all of them on the real ones.


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
    out, _ = attentune.done(*words)
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
    err = attentune.refused(*words, "--fraction", "0.5")
    assert "name another --output_dir" in err


@pytest.mark.integration
def test_layers_on_what_is_at_hand(attentune, tiny, tmp_path):
    write_glue(tmp_path / "data", rows=80)
    out, _ = attentune.done(
        *("reproduce", "sesame-figure-4", "--data_dir", tmp_path / "data", "--model_name_or_path", tiny("bert")),
        *("--output_dir", tmp_path / "out", "--seeds", "1", "--fraction", "0.5", *FAST),
    )
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
    out, _ = attentune.done(*words, "--tasks", "rte")
    assert "tasks, rte are run" in out
    assert [path.name for path in folder.iterdir()] == ["rte"]
    stamps = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("seed-*.json")}
    assert len(stamps) == 4  # two trials, and a run of each method
    # All tasks: those of before are not repeated.
    out, _ = attentune.done(*words)
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
    err = attentune.refused(*words[:-1], "none")
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
    attentune.done("reproduce", "sesame-table-1", *place, *short, "--output_dir", tmp_path / "out")
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
        out, _ = attentune.done(*words, "--model_name_or_path", tiny("bert"), "--search", search)
        assert ("16 trials of 4 searches first" in out) == (search == "grid")
        tasks = ", ".join(f"{task} (all rows)" for task in ("cola", "stsb", "mnli", "rte"))
        assert out.endswith(f"\n16 runs: 2 methods, 2 seeds, {tasks}.\n")
    status, out, _ = attentune("reproduce", "task-attention-table-2", "--plan")
    assert (status, out) == (0, "Parameters are counted; nothing is trained.\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_each_recipe_on_real_rows(name, attentune, tiny, data_dir, tmp_path):
    out, _ = attentune.done(
        *("reproduce", name, "--data_dir", data_dir, "--model_name_or_path", tiny("bert"), "--seeds", "1"),
        *("--fraction", "0.02", "--output_dir", tmp_path / "out", "--search", "1", *FAST),
    )
    assert "Not as in the paper:" in out
    assert (tmp_path / "out" / "report.html").stat().st_size > 2000
    assert (tmp_path / "out" / "report.md").is_file()
