"""The names that `attentune` exports."""

import importlib
import warnings

import pytest

import attentune


def test_dir_and_all_list_the_names_of_the_table() -> None:
    assert {*attentune._PUBLIC, "__version__"} == set(attentune.__all__) == set(dir(attentune))


@pytest.mark.parametrize("name", attentune._PUBLIC)
def test_a_public_name_is_its_module_s_object_and_does_not_warn(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = getattr(attentune, name)
    assert value is getattr(importlib.import_module(attentune._PUBLIC[name]), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nix'"):
        attentune.nix  # noqa: B018
