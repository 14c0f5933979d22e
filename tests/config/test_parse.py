"""From texts and odd values to settings: read as the setting's type, or refused, and never anything else."""

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import Config, load_config, to_yaml
from attentune.config.parse import format_value
from attentune.errors import ConfigError
from attentune.nn.blur import BLUR_PLACES, LEARNABLE
from attentune.nn.classifiers import COMBINATIONS
from attentune.nn.heads import HEADS, TOKEN_GATES
from attentune.nn.layer_mix import LAYER_MIXES
from attentune.token_labels.planner import GENERATORS


def leaves(cls: Any = Config, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted name, type and metadata of every single setting."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from leaves(hints[field.name], f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", hints[field.name], field


LEAVES = list(leaves())
NAMES = [name for name, _, _ in LEAVES if name != "preset"]


def value_of(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


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
        ("model.blur.layers", " 1, 3", " 1, 3"),
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
def test_values_are_read_as_the_settings_type(name: str, given_value: Any, expected: Any) -> None:
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
def test_values_that_do_not_fit_are_refused(name: str, given_value: Any, message: str) -> None:
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
def test_any_overrides_give_a_configuration_or_a_config_error(overrides: dict[str, Any]) -> None:
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
    elif name == "data.task_settings":
        strategy = st.one_of(st.none(), st.dictionaries(texts, st.dictionaries(texts, texts), max_size=3))
    elif name == "data.extra_train_weights":
        strategy = st.lists(st.floats(0, 9), max_size=3).map(tuple)
    else:
        strategy = st.lists(texts, max_size=3).map(tuple)
    return st.one_of(st.just(field.default), strategy)


@given(st.fixed_dictionaries({name: values_for(name, hint, field) for name, hint, field in LEAVES if name != "preset"}))
def test_any_configuration_goes_to_yaml_and_back(tmp_path_factory: pytest.TempPathFactory, values: dict) -> None:
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


def test_choices_are_the_entries_of_the_tables() -> None:
    choices = {name: field.metadata.get("choices") for name, _, field in LEAVES}
    assert choices["model.head.kind"] == (*HEADS, "task-attention")  # settled when a model is built
    assert choices["model.head.combine"] == COMBINATIONS
    assert choices["model.blur.where"] == BLUR_PLACES
    assert choices["model.blur.learnable"] == LEARNABLE
    assert choices["model.layer_mix.kind"] == LAYER_MIXES
    assert set(choices["model.token_gate.kind"]) == set(TOKEN_GATES)
    assert set(choices["labels.generator"]) == set(GENERATORS)


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, _, field in LEAVES])
def test_every_setting_has_help_and_a_default_that_it_takes_itself(name: str, field: Any) -> None:
    assert field.metadata["help"]
    if field.default is not None:
        assert value_of(load_config(None, {name: str(field.default)}), name) == field.default


def test_a_configuration_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().training.seed = 1  # type: ignore[misc]
