"""Our scores stand in the places of the published ones."""

from dataclasses import replace

import pytest

from attentune.runs.records import Run, RunRecord
from attentune_lab.reproduction.paper_comparison import count_section, score_section
from attentune_lab.reproduction.recipe import Published, Recipe, load_recipe
from attentune_lab.reproduction.steps import count_parts
from helpers.tasks import small_record

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


def test_a_task_left_out_and_one_in_the_place_of_another():
    published = Published("tasks", ("MRPC", "RTE"), {"A": ("1", "2")}, scale=1, metric="accuracy")
    scores = {"validation": {"f1": 0.9, "accuracy": 0.125}}
    found = score_section(recipe(published, {"A": {}}), [record("sick", "A", 1, scores)], {"rte": "sick"})
    assert rows_of(found)[1] == ("", "reproduced", "-", "0.125")


def test_several_published_rows_of_one_method_have_ours_last():
    published = Published("tasks", ("MRPC", "RTE"), {"large - A": ("1", "2"), "small - A": ("3", "4")})
    found = score_section(
        recipe(published, {"A": {}}), [record("rte", "A", 1, {"validation": {"accuracy": 0.5}})], {"rte": "rte"}
    )
    assert rows_of(found) == [
        ("large - A", "published", "1", "2"),
        ("small - A", "published", "3", "4"),
        ("A", "reproduced", "-", "50.0"),
    ]


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


def test_methods_that_a_row_and_a_column_make():
    published = Published("methods", ("X", "Y"), {"First": ("1", None)})
    scores = {"validation": {"accuracy": 0.5}}
    found = score_section(recipe(published, {}), [record("rte", "Y - First", 1, scores)], {"rte": "rte"})
    assert rows_of(found) == [("First", "published", "1", "-"), ("", "reproduced", "-", "50.0")]


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
