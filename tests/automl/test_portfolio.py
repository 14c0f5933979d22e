"""The portfolio: which members are tried for which rows, in which order, and under which names."""

import pytest

from attentune.automl.portfolio import all_members, choose_members, encoder_labels
from attentune.config import load_config, preset_names
from attentune.errors import ConfigError


def _names(**options):
    given = {"is_pair": False, "task_type": "classification", "encoders": ["embedded"], **options}
    return [member.name for member in choose_members(**given)]


def test_every_fine_tuned_member_is_a_preset_and_names_are_unique():
    members = all_members()
    assert {member.method for member in members if not member.is_baseline} <= set(preset_names())
    assert len({member.name for member in members}) == len(members)


def test_the_probed_members_are_those_whose_training_starts_at_a_linear_probe():
    for member in all_members():
        if not member.is_baseline:
            config = load_config(preset=member.method, overrides=member.settings)
            # As attentune.training.linear_probe.is_probed says of the built model.
            assert member.probed == (config.training.linear_probe or config.model.head.combine == "cosine"), member.name


def test_baselines_come_first_and_second_seeds_last():
    members = choose_members(is_pair=False, task_type="classification", encoders=["embedded"])
    kinds = [member.is_baseline for member in members]
    assert kinds == sorted(kinds, reverse=True)
    seeds = [member.seed for member in members]
    assert seeds == sorted(seeds)
    assert 0 < seeds.count(1) < len(seeds)


def test_single_texts_and_pairs_have_members_of_their_own():
    assert not {"cosine", "token-alignment"} & {*_names()}
    assert "bert-mean" in _names()
    pairs = _names(is_pair=True)
    assert pairs[:5] == ["majority", "tfidf-linear", "cosine", "token-alignment", "frozen-linear"]
    assert "bert" in pairs
    assert "bert-mean" not in pairs
    assert "bi-encoder-cosine" in pairs
    assert "bi-encoder-cosine" not in _names(is_pair=True, num_labels=3)


def test_each_encoder_has_a_member_and_those_without_an_encoder_exist_once():
    names = _names(encoders=["embedded", "models/e5-small"], names=["tfidf-linear", "frozen-linear", "bert-mean"])
    assert names == [
        "tfidf-linear", "frozen-linear", "frozen-linear@e5-small", "bert-mean", "bert-mean@e5-small"
    ]  # fmt: skip


def test_encoders_with_one_short_name_are_numbered():
    assert encoder_labels(["a", "x/b", "y/b"]) == {"a": "", "x/b": "@b", "y/b": "@b-2"}


def test_names_are_chosen_in_the_portfolio_s_order_and_exclude_wins():
    assert _names(names=["sesame", "majority", "bert-mean"], exclude=["sesame"]) == ["majority", "bert-mean"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"names": ["bert-meen"]},
            "--portfolio: got 'bert-meen', expected some of majority, .* Did you mean 'bert-mean'",
        ),
        ({"exclude": ["nothing"]}, "--exclude: got 'nothing', expected some of majority"),
        ({"names": ["cosine"]}, "cosine is for pairs of texts.* but the rows are single texts with 2 labels"),
        ({"names": ["majority"], "exclude": ["majority"]}, "leave no member"),
        ({"is_pair": True, "num_labels": 3, "names": ["bi-encoder-cosine"]}, "with at most 2 classes.* with 3 labels"),
        ({"encoders": ["embedded", "embedded"]}, "expected each encoder once"),
    ],
)
def test_wrong_names_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        _names(**options)
