"""The names that `attentune` exports, and the deprecated ones that still work."""

from __future__ import annotations

import importlib
import subprocess
import sys
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


@pytest.mark.parametrize("name", attentune._MOVED)
def test_a_moved_name_works_and_the_warning_gives_the_import(name: str) -> None:
    home = attentune._MOVED[name]
    with pytest.warns(FutureWarning, match=f"use `from {home} import {name}` instead") as caught:
        value = getattr(attentune, name)
    assert value is getattr(importlib.import_module(home), name)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_renamed_class_works_and_the_warning_gives_the_new_name() -> None:
    with pytest.warns(FutureWarning, match="attentune.SavedRun is deprecated .* use attentune.Predictor instead"):
        assert attentune.SavedRun is attentune.Predictor


def test_a_from_import_of_a_moved_name_warns_at_the_importing_line() -> None:
    code = "import warnings\nwarnings.simplefilter('error')\nfrom attentune import DataConfig"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "FutureWarning: attentune.DataConfig is deprecated" in done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nix'"):
        attentune.nix  # noqa: B018
