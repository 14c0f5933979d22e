"""From presets, files and overrides to one configuration: what goes before what, what is refused, and back to YAML."""

import dataclasses
import json
import re
import typing
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import Config, load_config, load_preset, preset_names, to_dict, to_flat, to_yaml
from attentune.config.load import read_yaml
from attentune.config.parse import format_value
from attentune.errors import CheckpointError, ConfigError
from attentune.nn.blur import BLUR_PLACES, LEARNABLE
from attentune.nn.classifiers import COMBINATIONS
from attentune.nn.heads import HEADS, TOKEN_GATES
from attentune.nn.layer_mix import LAYER_MIXES
from attentune.report.writing import html_templates
from attentune.results import RunResult
from attentune.runs.records import RunRecord
from attentune.token_labels.planner import GENERATORS
from attentune.training.callbacks import TrainingState
from attentune.training.checkpoint import verify_checkpoint
from attentune.training.run_folder import RULED
from helpers.bad_files import texts
from helpers.every_setting import every_setting, value_of


def write(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_nothing_said_gives_the_defaults():
    config = load_config()
    assert config == Config()
    assert (config.training.weight_decay, config.training.warmup_ratio) == (0.01, 0.1)
    assert {getattr(config.training, name) for name in RULED} == {None}, "chosen when rows and encoder are known"
    assert (config.training.max_grad_norm, config.data.max_length, config.model.head.dropout) == (1.0, 128, 0.1)


def test_what_is_said_later_goes_before_what_is_said_earlier(tmp_path):
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


def test_another_preset_on_a_complete_file_is_that_preset(tmp_path):
    file = write(tmp_path, to_yaml(load_config(preset="bert-mask", overrides={"training.seed": 3})))
    assert load_config(file, preset="bert") == load_config(preset="bert", overrides={"training.seed": 3})


def test_a_preset_among_the_overrides_fills_its_sections():
    assert load_config(None, {"preset": "bert-mask"}) == load_config(preset="bert-mask")
    assert load_config(None, {"labels.ratio": 2, "preset": "bert-mask"}).labels.ratio == 2.0


@pytest.mark.parametrize("empty", ["", "training:\n", "training: null\nmodel:\n  head:\n", "{}", "# nothing\n"])
def test_an_empty_section_says_nothing(tmp_path, empty):
    file = write(tmp_path, empty)
    assert load_config(file) == Config()
    config = load_config(file, {"training.seed": 7, "model.head.kind": "mean"})
    assert (config.training.seed, config.model.head.kind) == (7, "mean")
    assert load_config(write(tmp_path, "preset: bert-mean\nmodel:\n")).model.head.kind == "mean"


def test_overrides_may_hold_sections_and_are_not_changed():
    overrides = {"model": {"head": {"kind": "mean"}}, "model.head.dropout": 0.3}
    config = load_config(None, overrides, preset="bert-cls-mean")
    assert (config.model.head.kind, config.model.head.dropout, config.model.head.beta) == ("mean", 0.3, 0.5)
    assert overrides == {"model": {"head": {"kind": "mean"}}, "model.head.dropout": 0.3}


def test_a_mapping_that_is_one_setting_is_replaced_whole(tmp_path):
    file = write(tmp_path, "objective: {class_weights: {bad: 1, good: 2}}\n")
    assert load_config(file).objective.class_weights == {"bad": 1, "good": 2}
    assert load_config(file, {"objective.class_weights": {"no": 3}}).objective.class_weights == {"no": 3}
    assert load_config(file, {"objective.class_weights": None}).objective.class_weights is None


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("ssa-co", {"labels.generator": "flip", "training.freeze_encoder": True}),
        ("ssa-co", {"objective.loss": "mse"}),
        ("bert-mask", {"objective.loss": "pearson"}),
        ("ssa-co", {"objective.loss": "pearson", "labels.generator": "none"}),
        *((None, {"labels.generator": name, "model.token_gate.kind": "ssa"}) for name in ("none", "masked-rows")),
        *((None, {"labels.generator": name, "model.token_gate.kind": "none"}) for name in ("none", "masked-rows")),
        (None, {"objective.loss": "pearson", "data.extra_train_files": "a,b", "data.extra_train_weights": [1, 0]}),
    ],
)
def test_settings_that_go_together_are_taken(preset, changes):
    assert load_config(preset=preset, overrides=changes)


def test_sigma_that_is_not_learned_may_be_written_as_yaml_reads_it(tmp_path):
    for word, expected in (("false", "no"), ("no", "no"), ("off", "no"), ("layer", "layer"), ("'no'", "no")):
        config = load_config(write(tmp_path, f"model: {{blur: {{learnable: {word}, layers: 1}}}}\n"))
        assert (config.model.blur.learnable, config.model.blur.layers) == (expected, "1")


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
def test_a_file_that_is_no_configuration_is_refused_and_named(tmp_path, text):
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert re.match(rf"{re.escape(str(file))}:(\d+:)? ", str(caught.value))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"data: {task: caf\xe9}\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path / "latin.yaml")


def test_an_ampersand_in_a_text_is_no_anchor(tmp_path):
    file = write(tmp_path, "data: {text_column: 'R&D', label_column: A&B}\n")
    config = load_config(file)
    assert (config.data.text_column, config.data.label_column) == ("R&D", "A&B")


def test_yaml_goes_there_and_back(tmp_path):
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
def test_every_preset_loads_says_what_it_is_and_fills_only_known_settings(name, tmp_path):
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


# From texts and odd values to settings: read as the setting's type, or refused, and never anything else


LEAVES = list(every_setting())
NAMES = [name for name, _, _ in LEAVES if name != "preset"]


@pytest.mark.parametrize(
    ("name", "given_value", "expected"),
    [
        ("training.learning_rate", "2e-5", 2e-5),
        ("training.learning_rate", 1, 1.0),
        ("training.num_train_epochs", " 0.5 ", 0.5),
        ("training.seed", "13", 13),
        ("training.seed", 13.0, 13),
        ("training.seed", "1e3", 1000),
        ("training.seed", str(2**60 + 1), 2**60 + 1),
        ("training.max_steps", "-1", -1),
        ("training.use_cpu", "Yes", True),
        ("training.use_cpu", "0", False),
        ("training.use_cpu", 1, True),
        ("training.eval_strategy", False, "no"),  # what YAML makes of a bare `no`
        ("training.eval_strategy", "no", "no"),
        ("model.blur.learnable", False, "no"),
        ("model.blur.layers", 2, "2"),
        *(("model.blur.layers", layers, layers) for layers in ("all", "1", "3, 1", "12,0", " 1, 3")),
        *(("model.blur.size", size, size) for size in (1, 3, 101)),
        ("model.blur.sigma", "1e-2", 0.01),
        ("training.save_steps", "null", None),
        ("training.save_steps", "None", None),
        ("training.save_steps", None, None),
        ("training.metric_for_best_model", "", None),
        ("model.dropout", "0", 0.0),
        ("data.label_names", "bad, good", ("bad", "good")),
        ("data.label_names", [0, 1], ("0", "1")),
        ("data.label_names", ["a, b", "c"], ("a, b", "c")),
        ("data.task", 5, "5"),
        ("objective.class_weights", "null", None),
        ("objective.class_weights", "1,2", "1,2"),
        ("objective.class_weights", [1, 2], [1, 2]),
    ],
)
def test_values_are_read_as_the_settings_type(name, given_value, expected):
    value = value_of(load_config(None, {name: given_value}), name)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("name", "given_value", "message"),
    [
        ("training.learning_rate", "fast", "expected a number."),
        ("training.learning_rate", 0, "expected a number above 0."),
        ("training.learning_rate", "nan", "expected a number."),
        ("training.learning_rate", float("inf"), "expected a number."),
        ("training.learning_rate", 10**400, "expected a number."),
        ("training.learning_rate", True, "expected a number."),
        ("training.weight_decay", None, "expected a number."),
        ("training.seed", 1.5, "expected a whole number."),
        ("training.seed", "1e400", "expected a whole number."),
        ("training.seed", False, "expected a whole number."),
        ("training.seed", -1, "expected a number of at least 0."),
        ("training.use_cpu", "maybe", "expected true or false."),
        ("training.use_cpu", 2, "expected true or false."),
        ("training.use_cpu", None, "expected true or false."),
        ("training.precision", "bf-16", "expected one of auto, fp32, bf16, fp16. Did you mean 'bf16'?"),
        ("model.blur.where", "contxt", "expected one of none, context, value, scores. Did you mean 'context'?"),
        ("model.blur.sigma", 0, "expected a number of at least 0.001."),
        ("model.blur.size", 0, "expected a number of at least 1."),
        *(("model.blur.size", size, "expected an odd number.") for size in (2, 4, 100)),
        *(
            ("model.blur.layers", layers, "expected all, or numbers such as 1,2,3.")
            for layers in ("", "every", "ALL", "1,", ",1", "1;3", "1 3", "1-3", "-1", "1.5", "1,all")
        ),
        ("model.blur.layers", [1, 3], "expected a text (in quotes"),
        ("model.blur.learnable", True, "expected a text (in quotes"),
        ("model.blur.learnable", "yes", "expected one of no, layer, head."),
        ("model.layer_mix.kind", "weigthed", "Did you mean 'weighted'?"),
        ("model.layer_mix.ratio", 0, "expected a number of at least 1."),
        ("model.head.dropout", 1, "expected a number of at most 0.99."),
        ("model.head.kind", ["cls"], "expected a text (in quotes"),
        ("model.name_or_path", None, "expected a text"),
        ("data.text_column", True, "expected a text (in quotes"),
        ("data.label_names", 3, "expected a list of names, such as [bad, good]"),
        ("data.label_names", {"bad": 0}, "expected a list of names"),
        ("data.label_names", [False, True], "a bare yes, no or null as something else: quote it."),
        ("data.label_names", ["good", None], "a bare yes, no or null as something else: quote it."),
        ("data.label_names", [["bad"], "good"], "expected a list of names"),
    ],
)
def test_values_that_do_not_fit_are_refused(name, given_value, message):
    with pytest.raises(ConfigError) as caught:
        load_config(None, {name: given_value})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{name}: got {format_value(given_value)}, expected ")
    assert message in problem


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["", "null", "true", "no", "1", "0.5", "1e999", "-0", "½", "²", "١", "1_0", "0x1f", "+-1"]),
    st.binary(max_size=4),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), st.integers(), max_size=2),
)
KEYS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(["model", "training", "data", "model.head", "training.seed.x", "sed", "", ".", "a.b.c", "preset"]),
    st.text(max_size=8),
)


def config_or_problems(overrides: dict[str, Any]) -> Config | tuple[str, ...]:
    try:
        return load_config(None, overrides)
    except ConfigError as error:
        return error.problems


@given(st.dictionaries(KEYS, SCALARS, max_size=4))
def test_any_overrides_give_a_configuration_or_a_config_error(overrides):
    found = config_or_problems(overrides)
    assert isinstance(found, Config) or (found and all(found))


def values_for(name: str, hint: Any, field: Any) -> st.SearchStrategy[Any]:
    """Values that this setting takes as they are."""
    facts = field.metadata
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    kind = hint if typing.get_origin(hint) is tuple or not kinds else kinds[0]
    low, high = facts.get("minimum"), facts.get("maximum")
    # What stands for "not given" as a text cannot be the text itself.
    texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=10)
    texts = texts.filter(lambda text: text.strip().lower() not in ("", "null", "none", "~"))
    if name == "model.blur.size":  # odd only
        strategy = st.integers(0, 50).map(lambda half: 2 * half + 1)
    elif name == "training.baselines":
        strategy = st.sampled_from(("auto", "none", "majority", "tfidf-linear,frozen-linear"))
    elif name == "model.blur.layers":
        strategy = st.lists(st.integers(0, 99), min_size=1).map(lambda numbers: ",".join(map(str, numbers)))
    elif facts.get("choices"):
        strategy = st.sampled_from(facts["choices"])
    elif kind is bool:
        strategy = st.booleans()
    elif kind is int:
        strategy = st.integers(min_value=low, max_value=high)
    elif kind is float:
        strategy = st.floats(low, high, exclude_min=bool(facts.get("open")), allow_nan=False, allow_infinity=False)
    elif kind is str:
        strategy = texts
    elif name == "objective.class_weights":
        strategy = st.one_of(st.none(), st.dictionaries(texts, st.floats(0, 9), max_size=3), st.lists(st.floats(0, 9)))
    elif name == "labels.options":
        strategy = st.one_of(st.none(), st.dictionaries(texts, st.dictionaries(texts, texts), max_size=3))
    elif name == "data.ignore_words":  # without white space around them; none is not given
        words = texts.filter(lambda text: text == text.strip())
        strategy = st.lists(words, min_size=1, max_size=3, unique=True).map(tuple)
    elif name == "data.extra_train_weights":
        strategy = st.lists(st.floats(0, 9), max_size=3).map(tuple)
    else:
        strategy = st.lists(texts, max_size=3).map(tuple)
    return st.one_of(st.just(field.default), strategy)


@given(st.fixed_dictionaries({name: values_for(name, hint, field) for name, hint, field in LEAVES if name != "preset"}))
def test_any_configuration_goes_to_yaml_and_back(tmp_path_factory, values):
    config = config_or_problems(values)
    if not isinstance(config, Config):  # single values are right; only together can they be wrong
        known = (
            "need",
            "choose one",
            "works with",
            "goes with",
            "one for each",
            "once",
            "rows of one task",
            "multiply",
        )
        assert all(any(words in problem for words in known) for problem in config)
        return
    assert all(value_of(config, name) == value for name, value in values.items())
    file = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    file.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(file, as_record=True) == config


def test_choices_are_the_entries_of_the_tables():
    choices = {name: field.metadata.get("choices") for name, _, field in LEAVES}
    assert choices["model.head.kind"] == (*HEADS, "task-attention")  # settled when a model is built
    assert choices["model.head.combine"] == COMBINATIONS
    assert choices["model.blur.where"] == BLUR_PLACES
    assert choices["model.blur.learnable"] == LEARNABLE
    assert choices["model.layer_mix.kind"] == LAYER_MIXES
    assert set(choices["model.token_gate.kind"]) == set(TOKEN_GATES)
    assert set(choices["labels.generator"]) == set(GENERATORS)


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, _, field in LEAVES])
def test_every_setting_has_help_and_a_default_that_it_takes_itself(name, field):
    assert field.metadata["help"]
    if field.default is not None:
        assert value_of(load_config(None, {name: str(field.default)}), name) == field.default


def test_a_configuration_cannot_be_changed(tmp_path):
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().training.seed = 1  # type: ignore[misc]


# Whatever stands in settings and records: they are read right, or an error of ours says why not


numbers = st.one_of(st.integers(), st.floats(), st.booleans(), st.none())
values = st.recursive(
    st.one_of(numbers, st.text(max_size=12)),
    lambda part: st.one_of(st.lists(part, max_size=3), st.dictionaries(st.text(max_size=8), part, max_size=3)),
    max_leaves=8,
)
FLAT = to_flat(Config())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("settings")


def outcome(read: Callable[[Path], Any], file: Path, kind: type[Exception]) -> tuple[Any, str]:
    """What is read, or None and the message."""
    try:
        return read(file), ""
    except kind as error:
        return None, str(error)


@given(text=st.one_of(st.text(max_size=80), st.text("-[]{}:,&*!|>'\"#%@ \nab01?", max_size=60)))
def test_any_text_is_yaml_or_an_error_of_ours(place, text):
    file = place / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    found, told = outcome(read_yaml, file, ConfigError)
    assert isinstance(found, dict) or told.startswith(f"{file}:")
    assert "\n" not in told


@given(preset=st.sampled_from(preset_names()), seed=st.integers(0, 2**31), rate=st.floats(1e-7, 1.0))
def test_a_preset_gives_way_to_what_is_said_and_to_nothing_else(preset, seed, rate):
    plain = to_flat(load_config(preset=preset))
    said = {"training.seed": seed, "training.learning_rate": rate}
    assert to_flat(load_config(overrides=said, preset=preset)) == plain | said
    own = {key: value for key, value in load_preset(preset).items() if key not in ("description", "source")}
    assert {name.split(".")[0] for name, value in plain.items() if value != FLAT[name]} <= {*own, "preset"}


@given(content=st.one_of(values, st.dictionaries(st.sampled_from(sorted(RunRecord.__dataclass_fields__)), values)))
def test_any_json_is_a_record_or_an_error_of_ours(place, content):
    file = place / "record.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    for load in (RunRecord.load, RunResult.load):
        found, told = outcome(load, file, CheckpointError)
        assert found is not None or told.startswith(f"{file}: ")


@given(changes=st.dictionaries(st.sampled_from([*dataclasses.asdict(TrainingState()), "evil"]), values, max_size=3))
def test_any_state_is_one_or_is_refused(changes):
    try:
        state = TrainingState.from_dict(dataclasses.asdict(TrainingState()) | changes)
    except (ValueError, TypeError):
        return
    assert min(state.step, state.epoch, state.log_bytes) >= 0


@given(content=values)
def test_any_manifest_is_right_or_says_what_is_wrong(place, content):
    (place / "manifest.json").write_text(json.dumps(content), encoding="utf-8")
    assert isinstance(verify_checkpoint(place), str)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_comment(self, data: str) -> None:
        self.tags.append("comment")

    def handle_decl(self, decl: str) -> None:
        self.tags.append("declaration")


@given(text=st.one_of(texts, st.text("<>&\"'/!-=script;:#x0 \n", max_size=40)))
def test_no_text_is_markup_of_a_page(text):
    parser = _Tags()
    parser.feed(html_templates.from_string('<p title="{{ text }}">{{ text }}</p>').render(text=text))
    parser.close()
    assert parser.tags == ["p"]
