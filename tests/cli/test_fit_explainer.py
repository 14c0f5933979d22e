"""`attentune explain --fit`: from a finished run to an explanation with every prediction."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from attentune.config import load_config
from attentune.explain.texts import explain_texts
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import settings

Tiny = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]
TEXT = "the film was great and the story never dull"


@pytest.fixture(scope="module")
def trained(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit-explainer")
    overrides = settings(folder, tiny("bert"), preset="ssa-hybrid", training__max_steps=2)
    train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True))
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the share of variance that heads are found to explain, which a few rows do not decide."""
    return lambda value: monkeypatch.setattr("attentune.explain.fast_shap._explained_variance", lambda *words: value)


def test_a_fitted_run_explains_by_fast_shap_in_one_pass(
    run: Path, attentune: Command, share: Callable[[float], None]
) -> None:
    share(0.5)
    status, out, err = attentune("explain", run, "--fit", "--copies", "2", "--format", "json")
    facts = json.loads(out)
    assert (status, facts["run"], facts["copies"], facts["seed"]) == (0, str(run), 2, 0)
    assert (facts["explained_variance"], facts["is_default"]) == (0.5, True)
    assert facts["texts"] > facts["held_out_texts"] > 0
    assert "head fitted:" in err
    (line,) = attentune("explain", run, "--text", TEXT, "--format", "json")[1].splitlines()
    found = json.loads(line)
    assert (found["method"], found["signed"], found["passes"]) == ("fast-shap", True, 1)
    assert [token["text"] for token in found["tokens"]] == TEXT.split()


def test_predictions_have_the_scores_and_stay_the_same(
    run: Path, tmp_path: Path, attentune: Command, share: Callable[[float], None]
) -> None:
    share(0.9)
    (tmp_path / "new.csv").write_text("text\n" + "".join(f"{TEXT} {n}\n" for n in range(5)))
    flags = ("predict", run, "--input_file", tmp_path / "new.csv", "--precision", "fp32")
    _, before, _ = attentune(*flags)
    assert attentune("explain", run, "--fit", "--copies", "2")[0] == 0
    status, out, _ = attentune(*flags, "--explain")
    rows = list(csv.DictReader(io.StringIO(out)))
    explanations = [json.loads(row.pop("explanation")) for row in rows]
    assert (status, rows) == (0, list(csv.DictReader(io.StringIO(before))))
    texts = [f"{TEXT} {n}" for n in range(5)]
    for found, expected in zip(explanations, explain_texts(run, texts, precision="fp32"), strict=True):
        assert expected.method == "fast-shap"
        scores = [token.score for token in expected.tokens]
        assert found["unit"] == expected.unit
        assert [token["score"] for token in found["tokens"]] == pytest.approx(scores, rel=1e-3, abs=1e-5)


def test_training_can_end_with_it(tiny: Tiny, tmp_path: Path, attentune: Command) -> None:
    own = settings(tmp_path, tiny("bert"), training__max_steps=2)
    flags = [word for name, value in own.items() if value is not None for word in ("--set", f"{name}={value}")]
    status, _, err = attentune("train", *flags, "--fit_explainer")
    assert status == 0, err
    assert "Fitted on" in err
    assert (tmp_path / "run" / "attribution_head.json").is_file()
    status, _, err = attentune("train", "--tasks", "sst5,quora", "--fit_explainer", "--output_dir", tmp_path / "x")
    assert status == 2
    assert "--fit_explainer: works with one task" in err


@pytest.mark.parametrize("value", [0.49, 0.8])
def test_a_head_that_explains_too_little_is_not_used_by_itself(
    run: Path, tmp_path: Path, attentune: Command, share: Callable[[float], None], value: float
) -> None:
    share(value)
    lines = [f"{word} {n} film" for word in ("great", "dull", "long", "new") for n in range(5)]
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(lines) + "\n")
    status, out, _ = attentune("explain", run, "--fit", "--input_file", tmp_path / "texts.csv", "--copies", "2")
    assert status == 0
    assert f"Fitted on 14 texts; on 6 others its scores explain {value:.0%} of how" in out
    assert ("leave-one-out stays the default" in out) == (value < 0.5)
    card = (run / "README.md").read_text()
    assert card.count("## Explanations") == 1
    assert f"explain {value:.0%}" in card.split("## Explanations")[1]
    assert attentune("explain", run, "--fit", "--input_file", tmp_path / "texts.csv", "--copies", "2")[0] == 0
    assert (run / "README.md").read_text() == card  # the section is replaced

    def method_of(*flags: str) -> tuple[str, bool]:
        status, out, err = attentune("explain", run, "--text", TEXT, "--format", "json", *flags)
        assert status == 0, err
        return json.loads(out)["method"], "so leave-one-out is the default" in err

    assert method_of() == (("fast-shap", False) if value >= 0.5 else ("leave-one-out", True))
    assert method_of("--method", "fast-shap") == ("fast-shap", False)
    status, out, _ = attentune("predict", run, "--text", TEXT, "--explain")
    assert status == 0
    # Without the head, this run's token gate scores the words.
    assert ("token head" in out) == (value < 0.5)


def test_predictions_are_not_explained_by_a_weak_head(
    tiny: Tiny, tmp_path: Path, attentune: Command, share: Callable[[float], None]
) -> None:
    share(0.1)
    train(
        load_config(overrides=settings(tmp_path, tiny("bert"), training__max_steps=1)),
        display=ProgressDisplay(quiet=True),
    )
    assert attentune("explain", tmp_path / "run", "--fit", "--copies", "2")[0] == 0
    status, _, err = attentune("predict", tmp_path / "run", "--text", TEXT, "--explain")
    assert (status, "explains 10%" in err, "--fit --input_file" in err) == (2, True, True)
