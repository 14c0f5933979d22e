"""The examples and notebooks do what they say."""

import json
import os
import re
import runpy
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TESTED = {
    "train_own_csv.py",
    "pairs_cross_attention.py",
    "compare_two_presets.py",
    "explain_one_text.py",
    "ssa_in_trainer.py",
}


@pytest.fixture
def started(tiny, tmp_path, monkeypatch, capsys):
    """`started("name.py", more words)`: the lines that an example prints, its folder being `tmp_path / "example"`."""

    def start(name: str, *words: str) -> list[str]:
        script = EXAMPLES / name
        monkeypatch.setattr(sys, "argv", [str(script), str(tiny("bert")), str(tmp_path / "example"), *words])
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return start


@pytest.mark.integration
def test_every_example_is_run_by_a_test_and_is_short():
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED
    assert all(len(path.read_text(encoding="utf-8").splitlines()) < 60 for path in EXAMPLES.glob("*.py"))


@pytest.mark.integration
def test_train_own_csv(started, tmp_path):
    for _ in range(2):  # the second time into the same folder
        first, *predicted = started("train_own_csv.py")
        assert first.startswith("{'accuracy':")
        assert [line.split()[-1] in ("good", "bad") for line in predicted] == [True, True]
    assert json.loads((tmp_path / "example" / "run" / "run.json").read_text())["train"]["steps"] == 12


@pytest.mark.integration
def test_pairs_cross_attention(started, tmp_path):
    for _ in range(2):
        scores, *predicted = started("pairs_cross_attention.py")
        assert scores.startswith("{'accuracy':")
        assert all(line.startswith(("fits {", "does not {")) for line in predicted)
        assert len(predicted) == 2
    config = json.loads((tmp_path / "example" / "run" / "config.json").read_text())
    assert config["head"]["kind"] == "cross-attention"


@pytest.mark.integration
def test_explain_one_text(started):
    lines = started("explain_one_text.py")
    heads = [line for line in lines if not line.startswith(" ")]
    assert [head.split(":")[0] for head in heads] == ["ssa", "leave-one-out"]
    words = [line.split()[0] for line in lines[1 : lines.index(heads[1])]]
    assert words == ["The", "costumes", "were", "lovely", ",", "and", "nobody", "was", "bored", "."]
    assert "1 passes" in heads[0]


@pytest.mark.integration
def test_ssa_in_trainer(started):
    *_, labels, first, second = started("ssa_in_trainer.py")
    assert labels.startswith("labels of the last epoch:")
    assert {first.split()[-1], second.split()[-1]} <= {"good", "bad"}


@pytest.mark.integration
@pytest.mark.slow
def test_compare_two_presets(started, tmp_path):
    lines = started("compare_two_presets.py", "2")
    assert len([line for line in lines if " done " in line]) == 4
    assert "bert-mean" in lines[-1]
    assert "CI" in lines[-1]
    assert (tmp_path / "example" / "report.html").is_file()
    assert started("compare_two_presets.py", "2") == lines  # nothing is done again


# The notebooks in examples/ run from top to bottom with the embedded encoder, and are committed with their outputs:
# `UPDATE=1 pytest tests/test_examples.py -k notebook_runs` writes these


ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
# A machine at rest needs about a minute for each.
LIMIT_S = 900


def test_there_are_five_and_pages_link_to_each():
    assert len(NOTEBOOKS) == 5
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert [path.name for path in NOTEBOOKS if f"`examples/notebooks/{path.name}`" not in pages] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_a_title_and_has_small_outputs_of_no_machine(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# ")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    check_outputs(notebook)
    assert path.stat().st_size < 60_000
    content = json.dumps([cell.outputs for cell in code])
    assert not re.search(r"/(home|root|tmp|work|usr)/|site-packages|[A-Z]:\\\\", content)


def check_outputs(notebook):
    """No cell failed, no progress is a flood of lines, and there is something to see."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.get("text", "") + str(output.get("data", {}).get("text/plain", "")) for output in outputs]
    # A command that fails in a `%run` line does not stop a notebook.
    for words in ("Traceback", "attentune: internal error", "Errno", "unknown flag"):
        assert [text for text in shown if words in text] == []
    assert any(text.strip() for text in shown)
    assert all(output.get("data", {}).get("text/html", "").count("<progress") <= 1 for output in outputs)
    assert all(
        text.count("\n") <= 5 for output, text in zip(outputs, shown, strict=True) if output.get("name") == "stderr"
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_between_notebooks_and_pages_lead_somewhere(path):
    text = "".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    targets = [part.split(")")[0].split("#")[0] for part in text.split("](")[1:]]
    assert [target for target in targets if not (path.parent / target).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    # Packages that import tqdm warn, with their path, where ipywidgets is not installed.
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:IProgress not found")
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    if os.environ.get("UPDATE") == "1":
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, path)
    check_outputs(notebook)
