"""What the package exports, the record of a run, and its only source of randomness."""

import dataclasses
import importlib
import itertools
import json
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attentune
from attentune.errors import CheckpointError
from attentune.results import RunResult, to_json, versions, without_nan
from attentune.seeding import derive_key, numpy_generator, seed_global, torch_generator


def test_dir_and_all_list_the_names_of_the_table():
    assert set(attentune.__all__) == set(attentune._PUBLIC) == set(dir(attentune)) - {"__version__"}


@pytest.mark.parametrize("name", attentune._PUBLIC)
def test_a_public_name_is_its_module_s_object_and_does_not_warn(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = getattr(attentune, name)
    assert value is getattr(importlib.import_module(attentune._PUBLIC[name]), name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nix'"):
        attentune.nix  # noqa: B018


# The record of a run goes to JSON that any reader takes, and back


RESULT = RunResult(
    scores={"validation": {"pearson": 0.5, "spearmanr": float("nan")}},
    train={"seconds": 1.5, "tokens": 30, "tokens_per_second": 20.0, "peak_memory_bytes": 1 << 30},
    best={"metric": "pearson", "value": 0.5, "step": 3},
    config={"data": {"label_names": ["naïve 😀", "b"]}},
    seed=3,
    versions={"torch": "2.13.0"},
    data_fingerprint={"train": "ab"},
    notes=["said"],
)


def test_a_record_goes_to_a_file_and_back(tmp_path):
    file = tmp_path / "run.json"
    file.write_text(RESULT.to_json(), encoding="utf-8")
    undefined = {"validation": {"pearson": 0.5, "spearmanr": None}}
    assert RunResult.load(file) == dataclasses.replace(RESULT, scores=undefined)
    assert "naïve 😀" in RESULT.to_json()
    assert RESULT.metrics() == {"train": RESULT.train, **RESULT.scores}


@pytest.mark.parametrize(
    "content", [None, b"\xff\xfe", b"", b"[]", b"3", b"{}", b'{"scores": {}}', b"{" * 10, b'"text"']
)
def test_a_file_that_is_no_record_is_refused_and_named(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"run\.json: is not the record of a finished run"):
        RunResult.load(tmp_path / "run.json")


def test_what_is_no_number_becomes_null():
    nested = {"a": [1.0, math.nan, {"b": -math.inf}], "c": (math.inf, 0), "d": np.float64("nan"), "e": "NaN"}
    assert without_nan(nested) == {"a": [1.0, None, {"b": None}], "c": [None, 0], "d": None, "e": "NaN"}
    text = to_json(nested)
    assert json.loads(text, parse_constant=pytest.fail) == without_nan(nested)
    assert text.endswith("}\n")
    assert math.isnan(nested["a"][1])  # the input is left as it was


def test_versions_name_what_a_result_depends_on():
    found = versions()
    assert {"python", "platform", "attentune", "torch", "transformers", "tokenizers", "numpy"} <= set(found)
    assert found["torch"].startswith("2.")
    assert "not installed" not in found.values()


# Keys and generators: the same on every machine, different for every key, and blind to what was drawn before


PARTS = st.lists(st.one_of(st.integers(), st.text(st.characters(codec="utf-8", exclude_characters="\x1f"))), max_size=4)


def test_keys_are_what_they_always_were():
    """A change here changes every run that anyone has recorded."""
    assert derive_key() == 6510301506637419378
    assert derive_key("a") == 4130140272143641223
    assert derive_key("ü") == 3653988829707620377
    assert derive_key(42, "order", 0) == 8098883307743301636
    assert derive_key(-1, 2**70) == 7233344425403887328
    assert numpy_generator("mask", 42, 1, 3).integers(0, 1000, 5).tolist() == [986, 951, 410, 534, 281]
    assert torch.randint(0, 1000, (4,), generator=torch_generator("x", 1)).tolist() == [68, 282, 904, 517]


def test_ten_thousand_keys_are_ten_thousand_numbers():
    keys = itertools.product(("order", "mask"), range(5), range(10), range(100))
    assert len({derive_key(*key) for key in keys}) == 10_000


@given(PARTS, PARTS)
def test_a_key_depends_on_every_part_its_type_and_its_place(one, other):
    assert (derive_key(*one) == derive_key(*other)) == (one == other)
    assert 0 <= derive_key(*one) < 2**63


def test_order_types_and_borders_of_the_parts_matter():
    keys = [(1, 2), (2, 1), (1,), ("1",), (12,), ("ab", "c"), ("a", "bc"), ("a",), ("a", "")]
    assert len({derive_key(*key) for key in keys}) == len(keys)
    assert {derive_key(kind(3)) for kind in (int, np.int64, np.int32, np.uint8)} == {derive_key(3)}


def test_generators_of_one_key_draw_the_same_whatever_was_drawn_before():
    first = numpy_generator("a", 1).random(3)
    numpy_generator("b").random(100)
    np.random.seed(0)
    assert np.array_equal(numpy_generator("a", 1).random(3), first)
    assert not np.array_equal(numpy_generator("a", 2).random(3), first)
    drawn = torch.rand(3, generator=torch_generator("a", 1))
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    assert torch.equal(torch.rand(3, generator=torch_generator("a", 1)), drawn)
    assert not torch.equal(torch.rand(3, generator=torch_generator("a", 2)), drawn)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_seed_global_sets_what_dropout_draws():
    with torch.random.fork_rng(devices=[]):
        drawn = []
        for key in ((1, "step", 5), (1, "step", 6), (1, "step", 5)):
            seed_global(*key)
            drawn.append(torch.nn.functional.dropout(torch.ones(200)))
            torch.rand(7)
        assert torch.equal(drawn[0], drawn[2])
        assert not torch.equal(drawn[0], drawn[1])
