"""`attentune layers`: the layers' weights as a table, JSON and a figure."""

import json
from pathlib import Path

import pytest
import torch

from attentune.inference.predictor import Predictor
from helpers.interrupted import run as trained


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    trained(folder, tiny("bert"), preset="sesame-weighted")
    return folder / "run"


def test_the_weights_are_those_of_the_model_text_by_text(run: Path, attentune) -> None:
    status, out, _ = attentune("layers", run, "--format", "json", "--precision", "fp32")
    assert status == 0
    lines = json.loads(out)["validation"]
    saved = Predictor.load(run)
    texts = saved.data(None, ("validation",)).splits["validation"].texts
    with torch.no_grad():
        rows = [saved.model(**saved.tokenizer([text], return_tensors="pt")).layer_weights[0] for text in texts]
    weights_NL = torch.stack(rows)
    assert [line["layer"] for line in lines] == [1, 2, 3]
    assert [line["mean"] for line in lines] == pytest.approx(weights_NL.mean(dim=0).tolist(), abs=1e-5)
    assert [line["std"] for line in lines] == pytest.approx(weights_NL.std(dim=0, correction=0).tolist(), abs=1e-5)
    medians = weights_NL.quantile(0.5, dim=0).tolist()
    assert [line["quartiles"][1] for line in lines] == pytest.approx(medians, abs=1e-5)


def test_a_table_and_a_figure(run: Path, tmp_path: Path, attentune) -> None:
    status, out, err = attentune("layers", run, "--figure_file", tmp_path / "layers.png", "--split", "train")
    assert status == 0
    assert out.count("train") == 3
    assert "drawn into" in err
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("kind", "shown"), [("last", None), ("second", None), ("sum-last-4", [2, 3, 4, 5])])
def test_only_layers_that_reach_the_output_are_shown(tiny, tmp_path, attentune, kind, shown):
    """The others' weights have had no gradient: with `last`, as in the preset `sesame`, all but one."""
    given = {"preset": "sesame", "model__layer_mix__kind": kind, "training__max_steps": 1}
    trained(tmp_path, tiny("bert", layers=5), **given)
    status, out, err = attentune("layers", tmp_path / "run", "--format", "json")
    if shown is None:
        assert (status, out) == (2, "")
        assert f"model.layer_mix.kind {kind}, which uses layer {5 if kind == 'last' else 2} alone" in err
        assert "sesame-weighted" in err
    else:
        assert [line["layer"] for line in json.loads(out)["validation"]] == shown
