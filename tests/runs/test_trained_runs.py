"""Trained runs on the same rows: tests by hand, alignment by id, kinds of labels, and refusals."""

import numpy as np
import pytest
from scipy.stats import binomtest

from attentune.errors import CheckpointError, ConfigError
from attentune.metrics.metrics import METRICS
from attentune.runs.trained_runs import compare_trained_runs, read_run
from attentune.stats.compare import holm


def write(file, rows, header="id,label,prediction"):
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(file)


def drawn(rows=200, seed=0, chance=0.8, labels_seed=9):
    labels = np.array(["bad", "good"])[np.random.default_rng(labels_seed).integers(2, size=rows)]
    right = np.random.default_rng(seed).random(rows) < chance
    given = [label if ok else ("good" if label == "bad" else "bad") for label, ok in zip(labels, right, strict=True)]
    return [(f"r{n}", label, prediction) for n, (label, prediction) in enumerate(zip(labels, given, strict=True))]


def compared(paths, **options):
    return compare_trained_runs([read_run(path) for path in paths], **options)


def test_the_tests_are_those_of_the_counts_by_hand(tmp_path):
    first, second = drawn(seed=1, chance=0.7), drawn(seed=2, chance=0.85)
    paths = [write(tmp_path / "a.csv", first), write(tmp_path / "b.csv", second)]
    found = compared(paths, metrics=("accuracy", "f1"))
    accuracy, f1 = found.tests
    only_second = [n for n in range(200) if first[n][1] != first[n][2] and second[n][1] == second[n][2]]
    only_first = [n for n in range(200) if first[n][1] == first[n][2] and second[n][1] != second[n][2]]
    assert accuracy.difference == pytest.approx((len(only_second) - len(only_first)) / 200)
    counts = len(only_first) + len(only_second)
    assert (accuracy.mcnemar.only_first, accuracy.mcnemar.only_second) == (len(only_first), len(only_second))
    if accuracy.mcnemar.exact:
        assert accuracy.mcnemar.p == pytest.approx(binomtest(len(only_second), counts).pvalue)
    # The normal interval of a mean of 200 differences.
    spread = 1.96 * np.sqrt((counts / 200 - accuracy.difference**2) / 200)
    np.testing.assert_allclose(
        [accuracy.low, accuracy.high], [accuracy.difference - spread, accuracy.difference + spread], atol=0.006
    )
    assert [accuracy.p_holm, f1.p_holm] == pytest.approx(list(holm([accuracy.p, f1.p])))
    labels, given = (np.array([row[k] == "good" for row in second]).astype(int) for k in (1, 2))
    assert f1.second_score == pytest.approx(METRICS["f1"].score(labels, given))
    assert f1.mcnemar is None
    assert accuracy.marks == "**"
    (changed,) = found.changed
    assert (changed.better.tolist(), changed.worse.tolist()) == (only_second, only_first)
    assert len(changed.both_wrong) == 0


def test_equal_runs_differ_in_nothing(tmp_path):
    paths = [write(tmp_path / name, drawn()) for name in ("a.csv", "b.csv")]
    for one in compared(paths).tests:
        assert (one.difference, one.p, one.marks) == (0.0, 1.0, "")


def test_rows_are_paired_by_id_and_rows_that_one_run_lacks_are_left_out(tmp_path):
    first, second = drawn(seed=1), drawn(seed=2)
    whole = compared([write(tmp_path / "a.csv", first[:150]), write(tmp_path / "b.csv", second[:150])])
    mixed = [second[n] for n in np.random.default_rng(0).permutation(200)]
    found = compared([write(tmp_path / "a.csv", first[:150]), write(tmp_path / "b.csv", mixed)])
    assert [one.difference for one in found.tests] == [one.difference for one in whole.tests]
    assert [one.p for one in found.tests] == [one.p for one in whole.tests]
    assert found.notes == (f"{tmp_path}/b.csv: 50 of 200 rows are left out, since not all runs predict them.",)


def test_classes_are_matched_by_name(tmp_path):
    """Files with probabilities list their classes in an order of their own."""
    rows = [(f"r{n}", label, given) for n, (label, given) in enumerate([("x", "x"), ("y", "x"), ("z", "z")] * 10)]
    one = write(tmp_path / "a.csv", [(*row, 0, 0, 0) for row in rows], "id,label,prediction,p_x,p_y,p_z")
    two = write(tmp_path / "b.csv", [(*row, 0, 0, 0) for row in rows], "id,label,prediction,p_z,p_x,p_y")
    found = compared([one, two])
    assert [test.metric for test in found.tests] == ["accuracy", "f1_macro"]
    assert all(test.difference == 0 for test in found.tests)
    assert found.text_of(1, 2) == "z"


def test_scores_are_compared_by_correlation_and_error(tmp_path):
    generator = np.random.default_rng(3)
    labels = generator.normal(size=80)
    near, far = (labels + width * generator.normal(size=80) for width in (0.2, 1.0))
    paths = []
    for name, given in (("far", far), ("near", near)):
        rows = [(n, f"{a:.5f}", f"{b:.5f}") for n, (a, b) in enumerate(zip(labels, given, strict=True))]
        paths.append(write(tmp_path / f"{name}.csv", rows))
    found = compared(paths)
    assert [one.metric for one in found.tests] == ["pearson", "spearmanr", "mean_squared_error"]
    for one in found.tests:
        assert one.difference > 0
        assert one.low > 0
        assert one.marks == "**"
    assert found.tests[2].p_wilcoxon < 0.001
    changed = found.changed[0]
    assert len(changed.better) + len(changed.worse) == 80
    gains = np.abs(far - labels) - np.abs(near - labels)
    assert changed.better[0] == gains.argmax()


def test_several_labels_a_row(tmp_path):
    rows = [(n, "a|b" if n % 2 else "c", "a|b" if n % 3 else "c|a") for n in range(60)]
    header = "id,labels,predictions"
    found = compared([write(tmp_path / "one.csv", rows, header), write(tmp_path / "two.csv", rows[::-1], header)])
    assert [one.metric for one in found.tests] == ["f1_micro", "subset_accuracy"]
    assert found.label_of(1) == "a|b"
    assert found.text_of(0, 0) == "a|c"


def test_three_runs_are_each_compared_with_the_first(tmp_path):
    paths = [write(tmp_path / f"{n}.csv", drawn(seed=n)) for n in range(3)]
    found = compared(paths, metrics=("accuracy",))
    assert [(one.first, one.second) for one in found.tests] == [("0", "1"), ("0", "2")]
    assert [one.p_holm for one in found.tests] == pytest.approx(list(holm([one.p for one in found.tests])))


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    paths = [write(tmp_path / name / "test.csv", drawn(seed=n)) for n, name in enumerate(("one", "two"))]
    assert [run.name for run in compared(paths).runs] == [f"{tmp_path}/one/test.csv", f"{tmp_path}/two/test.csv"]


REFUSALS = {
    "other labels": ([(0, "a", "a"), (1, "b", "b")], [(0, "a", "a"), (1, "a", "b")], "row '1' has the label 'b'"),
    "no common rows": ([(0, "a", "a"), (1, "b", "b")], [(7, "a", "a"), (8, "b", "b")], "have 0 row in common"),
    "equal ids": ([(0, "a", "a"), (0, "b", "b")], [(0, "a", "a"), (1, "b", "b")], "ids that occur twice"),
    "two kinds": (
        [(0, "a", "a"), (1, "b", "b")],
        [(0, 0.5, 0.4), (1, 0.1, 0.2)],
        "some have classes, some have scores",
    ),
    "no labels": ([(0, "", "a"), (1, "b", "b")], [(0, "a", "a"), (1, "b", "b")], "some rows have no label"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_runs_that_cannot_be_compared_are_refused(tmp_path, case):
    first, second, says = REFUSALS[case]
    with pytest.raises(CheckpointError, match=says):
        compared([write(tmp_path / "a.csv", first), write(tmp_path / "b.csv", second)])


def test_other_mistakes_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", drawn())
    with pytest.raises(ConfigError, match="got 1 run, expected at least two"):
        compared([path])
    with pytest.raises(ConfigError, match=r"--metrics: got 'pearsn', expected one of accuracy"):
        compared([path, path], metrics=("pearsn",))
    with pytest.raises(CheckpointError, match="there is no such file or folder"):
        read_run(str(tmp_path / "b.csv"))
    (tmp_path / "run").mkdir()
    write(tmp_path / "run/predictions_test.csv", drawn())
    with pytest.raises(CheckpointError, match=r"no predictions of the validation rows.*has those of test: name one"):
        read_run(str(tmp_path / "run"))
    for text in ("", "id,label\n1,2\n", "text,label,prediction\n1,2,3\n"):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(CheckpointError, match="holds no predictions with labels"):
            read_run(str(tmp_path / "bad.csv"))
