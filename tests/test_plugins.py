"""Parts of other packages: known to settings, trained and saved like ours, missed by name, and checked by contracts."""

import json
import re
import shlex
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from attentune import plugins
from attentune.config import Config, HeadConfig, load_config, preset_names
from attentune.errors import ConfigError
from attentune.inference.predictor import predict
from attentune.metrics.metrics import METRICS
from attentune.plugin_checks import check_package, check_part
from attentune.plugins import full_name, plugin_names
from helpers.plugin_package import BROKEN, EXAMPLE, NAME, PARTS, forget, install, write_example, write_package
from helpers.samples import write_reviews
from helpers.tiny_models import build

ROOT = Path(__file__).parent.parent


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """`installed(name=..., parts=...)`: a package with these parts, by default that of all parts."""

    def add(**options: Any) -> None:
        site = tmp_path / options.get("name", NAME) / "site"
        monkeypatch.syspath_prepend(str(write_package(site, **options)))
        forget()

    yield add
    monkeypatch.undo()
    forget()


@pytest.fixture
def package(installed):
    installed()


@pytest.fixture
def broken(installed):
    installed(name="attentune-broken", parts=BROKEN)


SETTINGS = {
    "model.head.kind": "max",
    "model.layer_mix.kind": "first-and-last",
    "model.token_gate.kind": "soft",
    "model.blur.kind": "wide",
    "objective.loss": "squared",
    "labels.generator": "shuffled",
}


def test_settings_know_parts_by_their_short_and_full_names(package):
    config = load_config(overrides=SETTINGS)
    assert config.model.head.kind == f"{NAME}/max"
    assert config.objective.loss == f"{NAME}/squared"
    assert load_config(overrides={"model.head.kind": f"{NAME}/max"}).model.head == config.model.head
    assert load_config(overrides={"model.head.kind": "mean"}).model.head.kind == "mean"
    with pytest.raises(ConfigError, match=rf"got 'maxx', expected one of cls, .*{NAME}/max.* Did you mean 'max'"):
        load_config(overrides={"model.head.kind": "maxx"})
    assert "cubed_error" in METRICS
    assert not METRICS["cubed_error"].greater_is_better


def test_presets_of_a_package_stand_beside_ours(tmp_path, monkeypatch):
    site = install(tmp_path, "no_parts", "attentune-presets", "", {"attentune.presets": {"all": "more_presets"}})
    (site / "more_presets").mkdir()
    text = "{description: Only the mean of all tokens., source: ours, model: {head: {kind: mean}}}"
    (site / "more_presets/all-mean.yaml").write_text(text)
    (site / "more_presets/bert.yaml").write_text("{labels: {generator: masked-rows}}")
    monkeypatch.syspath_prepend(str(site))
    forget()
    assert "all-mean" in preset_names()
    assert load_config(preset="all-mean").model.head.kind == "mean"
    assert load_config(preset="bert").labels.generator == "none", "the name is that of one of ours"
    monkeypatch.undo()
    forget()
    with pytest.raises(ConfigError, match="preset: got 'all-mean', expected one of bert"):
        load_config(preset="all-mean")


def test_options_go_to_generators_of_packages_alone(package):
    options = {"labels.generator": "shuffled", "labels.options": "{rows: 3}"}
    assert load_config(overrides=options).labels.options == {"rows": 3}
    with pytest.raises(ConfigError, match="labels.options: goes with a generator of another package, but .* is none"):
        load_config(overrides={"labels.options": {"rows": 3}})
    with pytest.raises(ConfigError, match="labels.options: got 'rows', expected a mapping such as"):
        load_config(overrides=options | {"labels.options": "rows"})


def test_without_the_package_a_setting_says_which_is_missing():
    with pytest.raises(ConfigError, match=rf"expected the package {NAME}, which has this part.*pip install {NAME}"):
        load_config(overrides={"model.head.kind": f"{NAME}/max"})
    with pytest.raises(ConfigError, match=r"got 'max', expected one of cls, mean"):
        load_config(overrides={"model.head.kind": "max"})
    assert plugin_names("attentune.heads") == ()


def test_a_name_that_two_packages_use_needs_its_package(package, installed):
    installed(name="attentune-other")
    with pytest.raises(ValueError, match=rf"one of {NAME}/max, attentune-other/max: several packages"):
        full_name("attentune.heads", "max")
    assert full_name("attentune.heads", "attentune-other/max") == "attentune-other/max"


def test_a_run_with_every_kind_of_part_trains_loads_and_says_what_it_needs(
    package, attentune, tiny, tmp_path, monkeypatch
):
    write_reviews(tmp_path / "train.csv", 40)
    write_reviews(tmp_path / "dev.csv", 20)
    flags = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    flags += ["--set", "model.blur.where=context", "--metric_for_best_model", "recall_of_no"]
    files = ("--train_file", tmp_path / "train.csv", "--validation_file", tmp_path / "dev.csv", "--use_cpu")
    encoder = ("--model_name_or_path", tiny("bert"), "--num_train_epochs", "1", "--output_dir", tmp_path / "run")
    attentune.done("train", *files, *encoder, *flags)
    assert json.loads((tmp_path / "run/config.json").read_text())["head"]["kind"] == f"{NAME}/max"
    texts = ["a fine film", "a dull film"]
    before = predict(tmp_path / "run", texts)
    forget()  # the package is found and imported anew
    assert predict(tmp_path / "run", texts) == before
    monkeypatch.setattr("sys.path", [part for part in __import__("sys").path if "site" not in part.split("/")[-1:]])
    forget()
    err = attentune.refused("predict", tmp_path / "run", "--text", "a fine film")
    assert f"the package {NAME}" in err
    assert "Traceback" not in err


BROKEN_PARTS = {
    ("heads", "padded"): "padding has an effect",
    ("heads", "idle"): r"weights without a gradient: head\.dense",
    ("heads", "random"): "other logits the second time",
    ("heads", "constant"): "tokens have no effect",
    ("heads", "forgetful"): "a saved and loaded model gives other logits",
    ("losses", "mean"): r"got losses and weights of shapes \(\(\), \(\)\), expected \(8,\)",
    ("metrics", "turned"): "perfect predictions score 0, random ones",
}


@pytest.mark.parametrize(("kind", "name"), BROKEN_PARTS)
def test_a_broken_part_is_told_what_is_wrong(broken, tmp_path, kind, name):
    with pytest.raises(AssertionError, match=BROKEN_PARTS[kind, name]):
        check_part(f"attentune.{kind}", name, tmp_path)


def test_what_cannot_be_imported_or_found_is_named(broken, tmp_path):
    with pytest.raises(ConfigError, match=r"attentune-broken/absent: attentune_broken:NoSuchHead .* cannot be"):
        check_part("attentune.heads", "absent", tmp_path)
    with pytest.raises(ConfigError, match="got a part of attentune.heads, expected"):
        check_part("attentune.heads", "nothing", tmp_path)
    with pytest.raises(ConfigError, match="no-package: has no entry points"):
        check_package("no-package", tmp_path)


@pytest.mark.integration
def test_a_generator_whose_choices_are_not_functions_of_the_seed_is_found(broken, tmp_path):
    with pytest.raises(AssertionError, match="two runs with one seed end with other weights"):
        check_part("attentune.label_generators", "careless", tmp_path)


def test_a_model_with_such_a_part_is_not_exported_with_our_code_alone(package, tiny, tmp_path):
    from attentune.integrations.transformers import _check_own_parts

    settings = replace(Config().model, name_or_path=str(tiny("bert")), head=HeadConfig(kind=f"{NAME}/max"))
    model, _ = build(tiny("bert"), settings=settings)
    with pytest.raises(ConfigError, match=rf"export: the model has {NAME}/max of another package"):
        _check_own_parts(model.config)


@pytest.mark.integration
def test_the_example_passes_its_contract(tmp_path, monkeypatch):
    site = write_example(tmp_path / "site")
    assert len((site / "layer_attention.py").read_text().splitlines()) < 60
    monkeypatch.syspath_prepend(str(site))
    forget()
    assert check_package("attentune-layer-attention", tmp_path) == ["attentune-layer-attention/layer-attention"]
    methods = yaml.safe_load((EXAMPLE / "methods.yaml").read_text())
    for method in methods.values():
        load_config(preset=method["preset"], overrides=method.get("set", {}))
    monkeypatch.undo()
    forget()


@pytest.mark.integration
def test_every_kind_of_part_passes_its_contract(package, tmp_path):
    names = check_package(NAME, tmp_path)
    assert names == [f"{NAME}/{point}" for points in PARTS.values() for point in sorted(points)]


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted({*EXTRAS} - {"dev", "bench", "mutation"}))
def test_the_command_that_installs_an_extra_works_in_a_clone_and_without_one(extra, tmp_path, monkeypatch):
    pip = [sys.executable, "-m", "pip"]
    assert shlex.split(plugins.install_command(extra)) == [*pip, "install", "-e", f"{ROOT}[{extra}]"]
    monkeypatch.setattr(plugins, "__file__", str(tmp_path / "site-packages/attentune/plugins.py"))
    given = shlex.split(plugins.install_command(extra))
    assert given[:4] == [*pip, "install"]
    assert {str(Requirement(one)) for one in given[4:]} == {str(Requirement(one)) for one in EXTRAS[extra]}


@pytest.mark.parametrize(
    ("found", "has_pip", "expected"),
    [
        ("HERE/pip", True, "pip"),  # the environment is activated
        ("/usr/bin/pip", True, f"{sys.executable} -m pip"),
        (None, True, f"{sys.executable} -m pip"),
        ("/usr/bin/uv", False, f"uv pip install --python {sys.executable}"),
    ],
)
def test_the_command_installs_into_this_environment(found, has_pip, expected, monkeypatch):
    path = found and found.replace("HERE", str(Path(sys.executable).parent))
    monkeypatch.setattr("shutil.which", lambda name: path if path and path.endswith(name) else None)
    if not has_pip:
        monkeypatch.setitem(sys.modules, "pip", None)
    assert plugins.install_command("search").startswith(f"{expected} ")


def test_no_message_names_the_package_to_an_index():
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    assert not [found for text in sources for found in re.findall(r"pip install .*attentune\[.*", text)]
