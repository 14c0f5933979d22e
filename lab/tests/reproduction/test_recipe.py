"""Every recipe is whole: its tasks, methods and settings exist, and its published rows belong to its methods."""

from functools import cache
from pathlib import Path

import pytest

from attentune.config import load_config
from attentune.data.builtin import load_spec
from attentune.errors import ConfigError
from attentune.runs.grid import methods_from, plan_grid, select_methods
from attentune_lab.reproduction.paper_comparison import method_of_row
from attentune_lab.reproduction.planning import Part, plan_searches
from attentune_lab.reproduction.recipe import BETWEEN, NO_TASK, TEST, load_recipe, recipe_names

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
        methods=select_methods((), methods_from(recipe.methods, name)),
        seeds=(1,),
        overrides={**recipe.settings, **recipe.on_embedded, "data.task_settings": recipe.task_settings},
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
    assert published is not None
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks: [rte]", "mine.yaml: lacks 'methods', which a recipe needs"),
        ("[rte]", "mine.yaml: got list, expected a mapping with some of title, source"),
        ("tasks: [rte]\nmethod: {}", "got the key 'method', expected some of .* Did you mean 'methods'"),
        ("tasks: [rte]\nmethods: {a: {}}\nkind: table", "mine.yaml: is no recipe .*unknown kind 'table'"),
        ("tasks: [rte]\nmethods: {a: {}}\nsearch: {space: {}}", "mine.yaml: is no recipe"),
        ("tasks: [", "mine.yaml: cannot be read as YAML"),
    ],
)
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
            load_config(preset=one.method.preset, overrides={**one.settings, **one.space.settings_of(point)})
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
        methods=select_methods((), methods_from(recipe.methods, name)),
        seeds=(1,),
        overrides={**recipe.settings, "data.task_settings": recipe.task_settings},
    )


def settings_of(name: str, method: str, task: str):
    """Return the resolved configuration of a recipe's run with the paper's encoder."""
    grid = grid_of(name, task)
    return grid.config(next(run for run in grid.runs if run.method == method), Path("unused"))


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
