"""What users of the lab get wrong: status 2 and one message that names place and cure; nothing is written."""

import pytest

from helpers.interrupted import run as trained

TABLE_2 = "reproduce ssa-table-2"
# Command lines, and what the message must contain.
MISTAKES = [
    ("faithfulness RUN --method sssa", "method: got 'sssa', expected one of fast-shap, ssa, "),
    ("faithfulness RUN --erasures blur", "erasures: got 'blur', expected some of mask, delete, attention."),
    ("faithfulness RUN --max-samples 0", "--max_samples: got '0', expected a whole number of at least 1."),
    ("faithfulness RUN --demo --task cola", "--demo: uses synthetic reviews; leave out data.task."),
    (
        "faithfulness RUN --demo --split test",
        "predicts bad, good; expected a run of single texts, negative or positive",
        "split: got 'test', expected one of the demo's: validation, challenge",
    ),
    ("faithfulness RUN --split dev", "split: got 'dev', expected train, validation or test."),
    ("label RUN --max_samples many", "--max_samples: got 'many'"),
    ("layers RUN --figure_file layers.txt", "ends in .png"),
    ("layers RUN", "trained without squeeze-and-excitation"),
    ("stress RUN RUN RUN", "expected one, or two"),
    (
        "import-ssa . --cls_weight much --max_seq_length 1.5",
        "--cls_weight: got 'much', expected",
        "--max_seq_length: got '1.5', expected",
        "--output_dir: is missing; name a new folder: --output_dir runs/rte",
    ),
    (
        "run-ssa --train_batch_size=x --use_saved=1 --cls_wait=3 --only_bert=2",
        "--cls_wait: unknown flag. Did you mean '--cls_weight'?",
        "--train_batch_size: got 'x', expected",
        "--only_bert: got '2', expected true or false.",
        "--use_saved: needs the folder of a saved model: --ckpt",
    ),
    ("run-ssa --only_bert=1 --co_training", "choose one"),
    ("run-ssa --task_name hans", "expected one of the released program's tasks"),
    ("run-ssa --aug_threshold=7 --data_dir=x", "labels.aug_threshold"),
    ("shortcut --presets auto,brt --output_dir out", "preset: got 'auto'", "Did you mean 'bert'"),
    ("reproduce ssa-table-9 --output_dir x", "'ssa-table-9': there is no such recipe"),
    ("reproduce ssa-tabel-2 --output_dir x", "Did you mean 'ssa-table-2'?"),
    (f"{TABLE_2} --search grdi --output_dir x", "Did you mean 'grid'?"),
    (TABLE_2, "--output_dir: is missing"),
    (f"{TABLE_2} --output_dir x --search all", "--search: got 'all', expected grid, none or a number"),
    (f"{TABLE_2} --output_dir x --fraction 2", "--fraction: got '2', expected a number above 0"),
    (f"{TABLE_2} --output_dir x --preset bert", "--preset: is set by the recipe"),
    (f"{TABLE_2} --output_dir x --tasks rte,foo", "--tasks: got foo, expected some of cola"),
    (f"{TABLE_2} --output_dir x --task foo", "--tasks: got foo, expected some of cola"),
    ("reproduce --seeds 2 --output_dir x", "got no recipe"),
]


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    trained(folder, tiny("bert"), training__max_steps=1)
    return folder / "run"


@pytest.mark.parametrize(("line", "expected"), [(line, expected) for line, *expected in MISTAKES])
def test_a_mistake_is_told_in_one_message(run, attentune, tmp_path, monkeypatch, line, expected):
    monkeypatch.chdir(tmp_path)
    status, out, err = attentune(*(run if word == "RUN" else word for word in line.split()))
    assert (status, out) == (2, "")
    assert [words for words in expected if words not in err] == []
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
