"""From presets, files and overrides to one configuration: what goes before what, what is refused, and back to YAML."""

import re
from pathlib import Path

import pytest
import yaml

from attentune.config import Config, load_config, load_preset, preset_names, to_dict, to_yaml
from attentune.config.load import read_yaml
from attentune.errors import ConfigError
from attentune.training.run_folder import RULED


def write(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def problems_of(*args: object, **options: object) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(*args, **options)
    return caught.value.problems


def test_nothing_said_gives_the_defaults() -> None:
    config = load_config()
    assert config == Config()
    assert (config.training.weight_decay, config.training.warmup_ratio) == (0.01, 0.1)
    assert {getattr(config.training, name) for name in RULED} == {None}, "chosen when rows and encoder are known"
    assert (config.training.max_grad_norm, config.data.max_length, config.model.head.dropout) == (1.0, 128, 0.1)


def test_what_is_said_later_goes_before_what_is_said_earlier(tmp_path: Path) -> None:
    # bert-mask: head cls, generator masked-rows, ratio 1.0, mask_share 0.3; bert-mean: head mean
    file = write(tmp_path, "preset: bert-mask\nlabels: {ratio: 2.0}\nmodel: {head: {kind: cls-mean, dropout: 0.2}}\n")
    config = load_config(file)
    assert (config.labels.generator, config.labels.ratio, config.labels.mask_share) == ("masked-rows", 2.0, 0.3)
    assert (config.model.head.kind, config.model.head.dropout, config.model.head.beta) == ("cls-mean", 0.2, 0.5)

    config = load_config(file, preset="bert-mean")
    assert (config.preset, config.model.head.kind, config.model.head.dropout) == ("bert-mean", "mean", 0.2)
    assert (config.labels.generator, config.labels.ratio) == ("none", 2.0), "a preset takes its own settings with it"

    config = load_config(file, {"model.head.kind": "cls", "labels.ratio": "0.5"}, preset="bert-mean")
    assert (config.model.head.kind, config.model.head.dropout, config.labels.ratio) == ("cls", 0.2, 0.5)


def test_another_preset_on_a_complete_file_is_that_preset(tmp_path: Path) -> None:
    file = write(tmp_path, to_yaml(load_config(preset="bert-mask", overrides={"training.seed": 3})))
    assert load_config(file, preset="bert") == load_config(preset="bert", overrides={"training.seed": 3})


def test_a_preset_among_the_overrides_fills_its_sections() -> None:
    assert load_config(None, {"preset": "bert-mask"}) == load_config(preset="bert-mask")
    assert load_config(None, {"labels.ratio": 2, "preset": "bert-mask"}).labels.ratio == 2.0


@pytest.mark.parametrize("empty", ["", "training:\n", "training: null\nmodel:\n  head:\n", "{}", "# nothing\n"])
def test_an_empty_section_says_nothing(tmp_path: Path, empty: str) -> None:
    file = write(tmp_path, empty)
    assert load_config(file) == Config()
    config = load_config(file, {"training.seed": 7, "model.head.kind": "mean"})
    assert (config.training.seed, config.model.head.kind) == (7, "mean")
    assert load_config(write(tmp_path, "preset: bert-mean\nmodel:\n")).model.head.kind == "mean"


def test_overrides_may_hold_sections_and_are_not_changed() -> None:
    overrides = {"model": {"head": {"kind": "mean"}}, "model.head.dropout": 0.3}
    config = load_config(None, overrides, preset="bert-cls-mean")
    assert (config.model.head.kind, config.model.head.dropout, config.model.head.beta) == ("mean", 0.3, 0.5)
    assert overrides == {"model": {"head": {"kind": "mean"}}, "model.head.dropout": 0.3}


def test_a_mapping_that_is_one_setting_is_replaced_whole(tmp_path: Path) -> None:
    file = write(tmp_path, "objective: {class_weights: {bad: 1, good: 2}}\n")
    assert load_config(file).objective.class_weights == {"bad": 1, "good": 2}
    assert load_config(file, {"objective.class_weights": {"no": 3}}).objective.class_weights == {"no": 3}
    assert load_config(file, {"objective.class_weights": None}).objective.class_weights is None


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"training.eval_strategy": "steps"}, "training.eval_steps: eval_strategy 'steps' needs"),
        (
            {"training.eval_strategy": "no", "training.load_best_model_at_end": True},
            "training.load_best_model_at_end: needs scores",
        ),
        (
            {"training.eval_strategy": "no", "training.early_stopping_patience": 3},
            "training.early_stopping_patience: needs scores",
        ),
        ({"training.resume": True, "training.overwrite_output_dir": True}, "training.resume and training.overwrite"),
        ({"objective.loss": "mse", "objective.label_smoothing": 0.1}, "objective.label_smoothing: works with class"),
        (
            {"objective.loss": "pearson", "objective.label_smoothing": 0.1},
            "objective.label_smoothing: works with class",
        ),
        (
            {"objective.loss": "corn", "objective.label_smoothing": 0.1},
            "objective.label_smoothing: works with cross-entropy, binary-cross-entropy and focal only; set it to 0",
        ),
        (
            {"objective.loss": "corn", "objective.class_weights": "balanced"},
            "objective.class_weights: works with cross-entropy, binary-cross-entropy and focal only; leave it out with",
        ),
        ({"objective.focal_gamma": 1}, "objective.focal_gamma: goes with loss focal, but objective.loss is auto."),
        (
            {"objective.loss": "pearson", "objective.class_weights": [1, 2]},
            "objective.class_weights: works with class labels only; leave it out with loss pearson.",
        ),
        (
            {"objective.loss": "pearson", "training.per_device_train_batch_size": 1},
            "training.per_device_train_batch_size: got 1, but a correlation needs at least 2 rows",
        ),
        (
            {"training.freeze_encoder": True, "training.encoder_learning_rate": 1e-5},
            "training.encoder_learning_rate and training.freeze_encoder: choose one;",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: dict[str, object], problem: str) -> None:
    (found,) = problems_of(None, overrides)
    assert found.startswith(problem)
    for name in overrides:
        load_config(None, {key: value for key, value in overrides.items() if key != name and "strategy" not in key})


def test_labels_from_the_encoders_gradients_need_an_encoder_that_trains() -> None:
    wanted = {"labels.generator": "gradient", "training.freeze_encoder": True}
    (problem,) = problems_of(None, wanted, preset="ssa-co")
    assert problem.startswith("labels.generator: gradient needs the backward pass through the encoder")
    assert "training.freeze_encoder" in problem
    load_config(None, wanted | {"labels.generator": "flip"}, preset="ssa-co")


def test_labels_that_compare_scores_need_a_loss_with_a_scale() -> None:
    (problem,) = problems_of(None, {"objective.loss": "pearson"}, preset="ssa-co")
    assert problem.startswith("labels.generator: flip compares predictions on the task's own scale")
    assert "objective.loss pearson" in problem
    load_config(None, {"objective.loss": "mse"}, preset="ssa-co")
    load_config(None, {"objective.loss": "pearson"}, preset="bert-mask")
    load_config(None, {"objective.loss": "pearson", "labels.generator": "none"}, preset="ssa-co")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        *(("size", size, f"got {size}, expected an odd number.") for size in (2, 4, 100)),
        *(
            ("layers", layers, f"got {layers!r}, expected all, or numbers such as 1,2,3.")
            for layers in ("", "every", "ALL", "1,", ",1", "1;3", "1 3", "1-3", "-1", "1.5", "1,all")
        ),
    ],
)
def test_a_blur_that_cannot_be_is_refused_once(name: str, value: object, problem: str) -> None:
    for where in ("none", "context"):
        (found,) = problems_of(None, {f"model.blur.{name}": value, "model.blur.where": where})
        assert found == f"model.blur.{name}: {problem}"


@pytest.mark.parametrize("name", ["size", "layers"])
def test_a_blur_that_can_be_is_taken(name: str) -> None:
    for value in {"size": (1, 3, 101), "layers": ("all", "1", "3, 1", "12,0")}[name]:
        assert getattr(load_config(None, {f"model.blur.{name}": value}).model.blur, name) == value


def test_sigma_that_is_not_learned_may_be_written_as_yaml_reads_it(tmp_path: Path) -> None:
    for word, expected in (("false", "no"), ("no", "no"), ("off", "no"), ("layer", "layer"), ("'no'", "no")):
        config = load_config(write(tmp_path, f"model: {{blur: {{learnable: {word}, layers: 1}}}}\n"))
        assert (config.model.blur.learnable, config.model.blur.layers) == (expected, "1")


@pytest.mark.parametrize("generator", ["none", "masked-rows"])
def test_a_token_head_may_stand_without_labels_and_rows_may_be_made_without_one(generator: str) -> None:
    for kind in ("none", "ssa"):
        assert load_config(None, {"labels.generator": generator, "model.token_gate.kind": kind})


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [1, 2]\nb: *x\n",
        "a: &a [1]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: &d [*c, *c]\n",
        "training: &t {seed: 1}\n",
        "<<: *nothing\n",
        "a: !!python/object/apply:os.system ['echo hacked']\n",
        "training: !!python/object:attentune.config.Config {}\n",
        "training: {seed: 1\n",
        "training:\n\tseed: 1\n",
        "? [seed]\n: 1\n",
        "[" * 20_000,
        "training: {seed: 2001-99-99}\n",
        "training: {seed: !!int abc}\n",
        'training: {seed: !!int ""}\n',
        "training: {seed: !!bool x}\n",
        "training: {seed: !!timestamp x}\n",
        f"training: {{seed: {'9' * 5000}}}\n",
        "training: {seed: \0}\n",
        "- training\n",
        "training\n",
        "3\n",
        "#" + "x" * (1 << 20),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_and_named(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert re.match(rf"{re.escape(str(file))}:(\d+:)? ", str(caught.value))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"data: {task: caf\xe9}\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path / "latin.yaml")


def test_an_ampersand_in_a_text_is_no_anchor(tmp_path: Path) -> None:
    file = write(tmp_path, "data: {text_column: 'R&D', label_column: A&B}\n")
    config = load_config(file)
    assert (config.data.text_column, config.data.label_column) == ("R&D", "A&B")


def test_yaml_goes_there_and_back(tmp_path: Path) -> None:
    overrides = {
        "training.learning_rate": 1e-5,
        "training.eval_strategy": "no",
        "training.max_steps": 3,
        "data.label_names": ["no", "yes", "null", "3", "1e3", "a: b", "naïve 😀", " spaced "],
        "data.text_column": "off",
        "data.train_file": "C:\\data #1.csv",
        "objective.class_weights": {"no": 1.5, "yes": 0.1},
        "model.dropout": 0,
    }
    config = load_config(None, overrides, preset="bert-mask")
    text = to_yaml(config)
    assert load_config(write(tmp_path, text)) == config
    assert to_yaml(load_config(write(tmp_path, text))) == text
    assert yaml.safe_load(text) == to_dict(config)
    assert list(to_dict(config)) == ["preset", "baseline", "model", "objective", "labels", "training", "data"]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_says_what_it_is_and_fills_only_known_settings(name: str, tmp_path: Path) -> None:
    content = load_preset(name)
    assert len(content["description"]) > 20
    assert content["source"]
    config = load_config(preset=name)
    assert config.preset == name
    values = to_dict(config)
    _assert_within({name: part for name, part in content.items() if name not in ("description", "source")}, values)
    assert load_config(write(tmp_path, to_yaml(config))) == config


def _assert_within(part: dict, whole: dict) -> None:
    for key, value in part.items():
        if isinstance(value, dict):
            _assert_within(value, whole[key])
        else:
            assert whole[key] == value
