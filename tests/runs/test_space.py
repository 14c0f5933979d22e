"""What a search varies: flags, files, the papers' grids, and that each value is one."""

from pathlib import Path

import pytest

from attentune.config import load_config
from attentune.errors import ConfigError
from attentune.runs.search_settings import Search, SearchSettings, check_search
from attentune.runs.space import Dimension, Space, dimension_of, load_space, space_from, space_names


def read(text: str) -> Dimension:
    problems: list[str] = []
    found = dimension_of(text, problems)
    assert problems == []
    assert found is not None
    return found


def checked(*searched: str, named: str | None = None, preset: str | None = "bert", **fixed: object) -> Search:
    """The checked search that these flags ask for."""
    overrides = {name.replace("__", "."): value for name, value in fixed.items()}
    return check_search(SearchSettings(named, [read(text) for text in searched], preset=preset, overrides=overrides))


def tried(*searched: str, **given: object) -> tuple[Space, list[str]]:
    """Its space and notes."""
    found = checked(*searched, **given)
    return found.space, [*found.notes]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training.learning_rate=1e-5,3e-5", Dimension("training.learning_rate", ("1e-5", "3e-5"))),
        ("training.learning_rate=log:1e-5:1e-3", Dimension("training.learning_rate", (), 1e-5, 1e-3, None, True)),
        ("objective.alpha=0.5:0.9", Dimension("objective.alpha", (), 0.5, 0.9)),
        ("objective.alpha=0.5:0.9:0.2", Dimension("objective.alpha", (), 0.5, 0.9, 0.2)),
        ("model.head.kind=cls", Dimension("model.head.kind", ("cls",))),
        ("data.label_column=a:b", Dimension("data.label_column", ("a:b",))),
    ],
)
def test_flags(text, expected):
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training.learning_rate", "expected NAME=VALUES"),
        ("training.learning_rate=", "expected NAME=VALUES"),
        ("training.learning_rate=log:1e-5", "expected log:LOW:HIGH"),
        ("training.learning_rate=log:0:1e-5", "a logarithmic range is above 0"),
        ("training.learning_rate=log:a:b", "a range is of numbers"),
        (
            "training.learning_rate=log:1e-5:1e-3:1e-5",
            "a step is above 0 and goes with ranges that are not logarithmic",
        ),
        ("training.learning_rate=1e-3:1e-5", "low must be below high"),
        ("objective.alpha=0.1,0.1", "named more than once"),
    ],
)
def test_flags_that_are_mistaken(text, message):
    problems: list[str] = []
    assert dimension_of(text, problems) is None
    assert message in problems[0]


def test_values_become_what_their_settings_are():
    space, _ = tried(
        "training.learning_rate=1e-5,3e-5", "training.num_train_epochs=2:4", "training.freeze_encoder=no,yes"
    )
    assert [part.choices for part in space.dimensions] == [(1e-5, 3e-5), (), (False, True)]
    space, _ = tried("training.per_device_train_batch_size=8:16", "data.max_length=16:64:16")
    assert [part.step for part in space.dimensions] == [1, 16]
    points = space.points()
    assert points is not None
    assert len(points) == 9 * 4
    assert points[1] == {"training.per_device_train_batch_size": 8, "data.max_length": 32}
    assert all(isinstance(value, int) for point in points for value in point.values())


@pytest.mark.parametrize(
    ("searched", "message"),
    [
        (("training.learning_rat=1e-5,1e-4",), "Did you mean 'learning_rate'"),
        (("training.learning_rate=1e-5,-1",), "expected a number above 0"),
        (("objective.alpha=0.5:1.5",), "expected a number of at most 1"),
        (("training.per_device_train_batch_size=8:16.5",), "expected a whole number"),
        (("training.seed=1,2",), "training.seed: cannot be varied"),
        (("data.max_train_samples=100,200",), "data.max_train_samples: cannot be varied"),
        (("training.learning_rate=1e-5,0.00001",), "named more than once"),
        (("training.learning_rate=1e-5,1e-4", "training.learning_rate=1:2"), "is given more than once"),
        (("labels.generator=none,flip",), "flip makes token labels"),
        ((), "got nothing to vary, expected --space NAME or --search"),
    ],
)  # fmt: skip
def test_mistakes_are_told_before_anything_is_trained(searched, message):
    with pytest.raises(ConfigError) as caught:
        tried(*searched)
    assert message in str(caught.value)


# The grids as they are printed: SSA, section 4; SesameBERT, section 4; the poster's tables 2 and 3.
GRIDS = {
    "ssa": ("ssa-hybrid", 2 * 2 * 3 * 2 * 3 * 3),
    "sesame": ("sesame", 4),
    "bert": ("bert", 3 * 2 * 2),
    "task-attention": ("task-attention", 2 * 2),
}


@pytest.mark.integration
def test_the_papers_grids():
    assert set(space_names()) == set(GRIDS)
    for name, (preset, size) in GRIDS.items():
        space, notes = tried(named=name, preset=None)
        points = space.points()
        assert points is not None
        assert (len(points), notes) == (size, [])
        trials = checked(named=name, preset=None)
        configs = [trials.config(space.settings_of(point)) for point in points]
        assert {config.preset for config in configs} == {preset}
        assert len(set(map(repr, configs))) == size
    first = load_config(preset="ssa-hybrid", overrides={"training.learning_rate": 1e-5, "objective.alpha": 0.7})
    ssa, _ = tried(named="ssa", preset=None)
    assert ssa.points()[0] == {
        "training.learning_rate": 1e-5,
        "training.per_device_train_batch_size": 16,
        "training.num_train_epochs": 2.0,
        "objective.alpha": first.objective.alpha,
        "model.token_gate.beta": 0.2,
        "labels.ratio": 0.6,
    }
    training = checked(named="sesame", preset=None).config({}).training
    assert (training.learning_rate, training.per_device_train_batch_size, training.num_train_epochs) == (3e-5, 32, 3)
    attention, _ = tried(named="task-attention", preset=None)
    assert attention.settings_of({"regime": "pretrain", "model.head.init": "uniform"}) == {
        "training.freeze_encoder": True,
        "training.learning_rate": 1e-3,
        "model.head.init": "uniform",
    }


def test_flags_go_before_a_named_space():
    space, notes = tried(
        "training.learning_rate=log:1e-5:1e-3", named="ssa", preset=None, training__num_train_epochs="1"
    )
    names = [part.name for part in space.dimensions]
    assert names == [
        "training.per_device_train_batch_size", "objective.alpha", "model.token_gate.beta", "labels.ratio",
        "training.learning_rate",
    ]  # fmt: skip
    assert notes == ["training.num_train_epochs: is not varied, as training.num_train_epochs is set to 1."]
    # Another method than the space's own, and another learning rate than the one that goes with it.
    found = checked(named="sesame", preset="blur-value", training__learning_rate="1e-4", training__seed="7")
    config = found.config({})
    assert (config.preset, config.training.learning_rate, found.seed) == ("blur-value", 1e-4, 7)
    # One value of an alternative is enough to fix all of it.
    space, notes = tried(named="task-attention", preset=None, training__learning_rate="1e-4")
    assert [part.name for part in space.dimensions] == ["model.head.init"]
    assert notes[0].startswith("regime: is not varied")
    with pytest.raises(ConfigError, match="has a value of its own too"):
        tried("training.learning_rate=1e-5,1e-4", training__learning_rate="1e-4")


def test_a_space_of_ones_own(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "preset: bert\nset: {training: {num_train_epochs: 1}}\n"
        "space:\n  training:\n    learning_rate: {low: 1e-5, high: 1e-3, log: true}\n  model.head.kind: [cls, mean]\n"
    )
    space, _ = tried(named=str(file), preset=None)
    assert space.dimensions[0] == Dimension("training.learning_rate", (), 1e-5, 1e-3, None, True)
    assert space.dimensions[1].choices == ("cls", "mean")
    assert space.settings == {"training.num_train_epochs": 1}
    assert space.points() is None
    varied = checked("preset=bert,bert-mean", "training.learning_rate=1e-5,1e-4", preset=None)
    assert varied.config(varied.space.points()[3]).preset == "bert-mean"  # type: ignore[index]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "has no space:"),
        ({"space": {"training.learning_rate": []}}, "expected a list of values, or a range"),
        ({"space": {"training.learning_rate": 1e-5}}, "expected a list of values, or a range"),
        ({"space": {"training.learning_rate": {}}}, "expected a list of values, or a range"),
        ({"space": {"a.b": [[1], [2]]}}, "is no single value"),
        ({"space": {"a.b": {"low": 1, "high": 2, "lug": True}}}, "lug is no part of a range"),
        ({"space": {"a.b": [1]}, "sett": {}}, "Did you mean 'set'"),
        ({"space": {"a.b": [1]}, "set": 3}, "set: got 3"),
    ],
)
def test_spaces_that_are_none(content, message):
    with pytest.raises(ConfigError) as caught:
        space_from(content, "mine.yaml")
    assert "mine.yaml" in str(caught.value)
    assert message in str(caught.value)


def test_a_space_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"got 'sesme'.*Did you mean 'sesame'"):
        load_space("sesme")
    with pytest.raises(ConfigError, match="no such file"):
        load_space(str(tmp_path / "no.yaml"))


@pytest.mark.parametrize(("preset", "points"), [("bert-mask", 2 * 2 * 3 * 3), ("ssa-co", 2 * 2 * 3 * 2 * 3)])
def test_a_preset_without_token_head_or_beta_has_its_own_part_of_ssas_grid(preset, points):
    space, notes = tried(named="ssa", preset=preset)
    assert len(space.points() or ()) == points
    assert any(note.startswith("model.token_gate.beta: is not varied, as") for note in notes)
    assert any(note.startswith("objective.alpha") for note in notes) == (preset == "bert-mask")
    varied = tried("model.token_gate.beta=0.2,1", named="ssa", preset="ssa-co")[0].dimensions
    assert varied[-1].choices == (0.2, 1.0), "what the user varies stays"
