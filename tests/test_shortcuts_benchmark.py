"""`benchmarks.shortcuts`: planted cues, a real cell, and the tables of records."""

import contextlib
import json
import math
import random
import statistics
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from scipy import stats
from transformers import AutoModel, AutoTokenizer

from helpers.samples import settings

ROOT = Path(__file__).resolve().parents[1]
ROWS = [(f"text {row} is of some length", str(row % 2)) for row in range(40)]


@pytest.fixture(scope="module")
def program():
    sys.path.insert(0, str(ROOT))
    try:
        import benchmarks.shortcuts

        yield benchmarks.shortcuts
    finally:
        sys.path.remove(str(ROOT))


@pytest.fixture(scope="module")
def sets(program):
    import benchmarks.shortcut_sets

    return benchmarks.shortcut_sets


def sides(sets, rows, cue):
    """Return the label whose cue each text has; each has one."""
    found = []
    for text, _ in rows:
        padded = f" {text} "
        (side,) = (side for side in (0, 1) if f" {sets.CUES[cue][side]} " in padded)
        found.append(str(side))
    return found


@pytest.mark.parametrize("cue", ["name", "punctuation", "phrase", "number", "plain"])
def test_planting_agrees_in_the_given_share_of_each_label(sets, cue):
    for share in (0, 0.7, 0.8, 0.9, 1):
        planted = sets.plant(ROWS, cue, share, seed=1)
        assert [label for _, label in planted] == [label for _, label in ROWS]
        agrees = Counter(
            label for side, (_, label) in zip(sides(sets, planted, cue), planted, strict=True) if side == label
        )
        assert (agrees["0"], agrees["1"]) == (round(20 * share), round(20 * share))


@pytest.mark.parametrize("cue", ["name", "punctuation", "phrase", "number", "plain"])
def test_planting_adds_the_cue_and_nothing_else(sets, cue):
    start = {"name": None, "punctuation": False, "phrase": True, "number": False, "plain": True}[cue]
    for (text, _), (before, _) in zip(sets.plant(ROWS, cue, 0.8, seed=1), ROWS, strict=True):
        (added,) = (mark for mark in sets.CUES[cue] if f" {mark} " in f" {text} ")
        assert f" {text} ".replace(f" {added} ", " ", 1).strip() == before
        assert start is None or (text.startswith(added) if start else text.endswith(added))


def test_planting_is_a_function_of_the_seed_and_nested_in_the_agreement(sets):
    planted = sets.plant(ROWS, "name", 0.7, seed=1)
    assert planted == sets.plant(ROWS, "name", 0.7, seed=1)
    assert sides(sets, planted, "name") != sides(sets, sets.plant(ROWS, "name", 0.7, seed=2), "name")
    own = [
        {row for row, side in enumerate(sides(sets, rows, "name")) if side == ROWS[row][1]}
        for rows in (planted, sets.plant(ROWS, "name", 0.9, seed=1))
    ]
    assert own[0] < own[1]
    places = [{tuple(text.split()).index(name) for name in sets.CUES["name"] if name in text} for text, _ in planted]
    assert len(set().union(*places)) > 3, "the name is not always in one place"
    with_, against = (sets.plant(ROWS, "name", share, seed=1) for share in (1, 0))
    swap = dict(zip(sets.CUES["name"], reversed(sets.CUES["name"]), strict=True))
    assert [" ".join(swap.get(word, word) for word in text.split()) for text, _ in with_] == [
        text for text, _ in against
    ]


def test_ignored_words_leave_nothing_of_the_cue(sets):
    from attentune.data.ignored_words import shortened

    for name, (cue, _) in (sets.PLANTED | sets.KEPT_BACK).items():
        words = sets.words_of(name)
        assert [shortened(text, words).text for text, _ in sets.plant(ROWS, cue, 0.9, seed=1)] == [
            text for text, _ in ROWS
        ]
    assert not sets.words_of("hans")


def test_films_score_other_rows_for_development(sets):
    scored = {}
    for seed in (1, 2, 101, 102):
        train, views = sets.draw_of("films", seed, 400)
        assert Counter(label for _, label in train) == {"0": 200, "1": 200}
        assert views["with"] == views["unshifted"]
        assert len(views["with"]) == 400
        scored[seed] = views["against"]
    assert scored[1] == scored[2]
    assert scored[101] == scored[102]
    assert (len(scored[1]), len(scored[101])) == (697, 300)
    assert not set(scored[1]) & set(scored[101])


def test_sets_that_are_kept_back_have_cues_of_other_kinds_in_reviews(sets):
    train, views = sets.draw_of("reviews-plain-80", 13, 400)
    agrees = Counter(side == label for side, (_, label) in zip(sides(sets, train, "plain"), train, strict=True))
    assert agrees == {True: 320, False: 80}
    labels = [label for _, label in views["unshifted"]]
    assert sides(sets, views["with"], "plain") == labels != sides(sets, views["against"], "plain")
    assert not set(views["unshifted"]) & {(text.split(" , ", 1)[1], label) for text, label in train}
    assert not set(sets.KEPT_BACK) & set(sets.PLANTED)


def test_cinema_has_three_views_of_the_same_reviews(sets):
    synthetic = pytest.importorskip("attentune_lab.synthetic")
    venues = synthetic.WORDS["shortcut_venues"]
    train, views = sets.draw_of("cinema", 1, 200)
    assert len(train) == 200
    assert {len(rows) for rows in views.values()} == {600}
    for (with_, label), (against, _), (unshifted, _) in zip(
        views["with"], views["against"], views["unshifted"], strict=True
    ):
        own, other = venues[int(label)], venues[1 - int(label)]
        assert own in with_
        assert with_.replace(own, other) == against
        assert not any(venue in unshifted for venue in venues)
        assert any(with_.replace(own, venue) == unshifted for venue in synthetic.WORDS["neutral_venues"])


def test_real_sets_are_balanced_and_share_no_scored_rows_with_development(sets, data_dir, monkeypatch):
    monkeypatch.setenv("ATTENTUNE_DATA", str(data_dir))
    for name, parts in {"phrase-80": 3, "hans": 7}.items():
        reported, other, development = (sets.draw_of(name, seed, 200) for seed in (1, 2, 101))
        assert Counter(row[-1] for row in reported.train) == {"0": 100, "1": 100}
        assert reported.train != other.train
        assert len(reported.scored) == parts
        assert reported.scored["unshifted"] == other.scored["unshifted"]
        for part, rows in reported.scored.items():
            assert not set(rows) & set(development.scored[part]), part
        assert not set(development.train) & set(development.scored["unshifted"])
    assert {len(rows) for part, rows in reported.scored.items() if part != "unshifted"} == {200}
    # 1 is entailment, which the overlap of words suggests.
    assert {row[-1] for row in reported.scored["with subsequence"]} == {"1"}
    assert {row[-1] for row in reported.scored["against constituent"]} == {"0"}


@pytest.mark.parametrize(
    "contenders",
    [
        pytest.param(("bert", "confidence"), marks=pytest.mark.integration),
        pytest.param(("bert", "reweight", "confidence", "entropy"), marks=pytest.mark.slow),
    ],
)
def test_a_cell_leaves_one_record_and_is_not_repeated(program, sets, tmp_path, monkeypatch, capsys, contenders):
    monkeypatch.setattr(sets, "TRAIN_ROWS", 40)
    monkeypatch.setitem(program.SETTINGS, "training.max_steps", 2)
    command = ["shortcuts", "--sets", "films", "--seeds", "101"]
    command += ["--contenders", ",".join([*contenders, "ignore"]), "--output_dir"]
    monkeypatch.setattr(sys, "argv", [*command, str(tmp_path)])
    assert program.main() == 0
    count = len(contenders)
    assert f"0 of {count} cells are done" in capsys.readouterr().out, "films has no planted words to ignore"
    record, *others = map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines())
    assert len({str(one["accuracy"]) for one in (record, *others)}) == count
    assert record["steps"] == 2
    assert record["train_rows"] == 40
    assert record["scored_rows"] == {"with": 400, "against": 300, "unshifted": 400}
    assert 0.2 < record["accuracy"]["against"] < 0.9
    assert record["accuracy"]["with"] == record["accuracy"]["unshifted"]
    assert program.main() == 0
    assert f"{count} of {count} cells are done" in capsys.readouterr().out
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == count
    # What fails leaves no record, and the status says so.
    monkeypatch.setitem(program.CONTENDERS, "bert", {"preset": "no-such-preset"})
    command[command.index("--contenders") + 1] = "bert"
    monkeypatch.setattr(sys, "argv", [*command, str(tmp_path / "other")])
    assert program.main() == 1
    assert "no-such-preset" in capsys.readouterr().out
    assert not (tmp_path / "other" / "runs.jsonl").exists()


def test_a_teacher_is_softened_where_the_weak_model_knows_the_label(program):
    teacher_NC = np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    weak_NC = np.array([[0.99, 0.01], [0.0, 1.0], [0.6, 0.4], [1.0, 0.0]])
    targets_NC = program.softened(teacher_NC, weak_NC, labels := np.array([0, 0, 1, 0]))
    for row, label in enumerate(labels):
        powers = [share ** (1 - weak_NC[row][label]) for share in teacher_NC[row]]
        for place, power in enumerate(powers):
            assert targets_NC[row][place] == pytest.approx(power / sum(powers))
    assert targets_NC[1] == pytest.approx(teacher_NC[1]), "what the weak model does not know stays"
    assert targets_NC[3] == pytest.approx([0.5, 0.5]), "what it is sure of teaches nothing"


def test_weights_are_those_of_a_plain_loop(program):
    p_NC, labels = np.random.default_rng(1).dirichlet(np.ones(3), 9), np.arange(9) % 3
    rest = [1 - p_NC[row, labels[row]] for row in range(9)]
    expected = [value / (math.fsum(rest) / 9) for value in rest]
    assert program.row_weights(np.log(p_NC), labels).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("padding", [0, 2])
def test_negative_entropy_is_that_of_its_formula(program, padding):
    from benchmarks.attention_entropy import negative_entropy

    torch.manual_seed(0)
    real_BT = torch.ones(2, 5, dtype=torch.bool)
    real_BT[1, 5 - padding :] = False
    scores_BHTS = torch.randn(2, 3, 5, 5).masked_fill(~real_BT[:, None, None], -torch.inf)
    shares_BHTS = scores_BHTS.softmax(dim=-1)
    found_B = negative_entropy(shares_BHTS, real_BT if padding else None)
    for row in range(2):
        tokens = [token for token in range(5) if real_BT[row, token]]
        total = 0.0
        for token in tokens:
            means = [
                statistics.fmean(shares_BHTS[row, head, token, other].item() for head in range(3)) for other in tokens
            ]
            norm = sum(math.exp(mean) for mean in means)
            total += sum(math.exp(mean) / norm * math.log(math.exp(mean) / norm) for mean in means)
        assert found_B[row].item() == pytest.approx(total / len(tokens), rel=1e-5)


def test_entropy_is_added_to_the_loss_of_training(program, tiny, tmp_path):
    """The loss of a step on all rows at once, against transformers' attention of each row alone."""
    from attentune.config import load_config
    from attentune.training import building
    from attentune.training.callbacks import ProgressDisplay
    from attentune.training.objective import Objective
    from attentune.training.run import train
    from benchmarks.attention_entropy import negative_entropy, regularised

    before, losses = (Objective.sums, building.use_own_attention), {}
    given = settings(tmp_path, tiny(), model__dropout=0.0, model__head__dropout=0.0, training__max_steps=1)
    given |= {"training.precision": "fp32", "training.per_device_train_batch_size": 48}
    for alpha in (None, 0.0, 0.5):
        folder = tmp_path / f"run {alpha}"
        config = load_config(overrides=given | {"training.output_dir": str(folder)})
        with contextlib.nullcontext() if alpha is None else regularised(alpha):
            train(config, display=ProgressDisplay(quiet=True))
        losses[alpha] = json.loads((folder / "log.jsonl").read_text().splitlines()[0])["loss"]
    assert (Objective.sums, building.use_own_attention) == before
    encoder = AutoModel.from_pretrained(tiny(), attn_implementation="eager").eval()
    tokenizer, rows = AutoTokenizer.from_pretrained(tiny()), pandas.read_csv(tmp_path / "train.csv")
    entropies = []
    for text in rows["text"]:
        with torch.no_grad():
            shares = encoder(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
        entropies.append(sum(negative_entropy(layer, None).item() for layer in shares))
    assert losses[0.0] == pytest.approx(losses[None], rel=1e-5)
    assert losses[0.5] - losses[0.0] == pytest.approx(0.5 * statistics.fmean(entropies), rel=1e-4)


def test_the_weight_of_unflipped_tokens_is_that_of_a_plain_loop(program):
    from benchmarks.unflipped_tokens import weight_of_unflipped

    weights_BT = torch.tensor([[0.0, 0.2, 0.5, 0.3, 0.0], [0.0, 0.6, 0.4, 0.0, 0.0]])
    labels_BT = torch.tensor([[-1.0, 0.0, 1.0, -1.0, -1.0], [-1.0, 0.5, 0.0, -1.0, -1.0]])
    total = 0.0
    for weights, labels in zip(weights_BT.tolist(), labels_BT.tolist(), strict=True):
        count = sum(weight > 0 for weight in weights)
        total += sum((1 - y) * count * weight for weight, y in zip(weights, labels, strict=True) if y >= 0)
    assert weight_of_unflipped(weights_BT, labels_BT).item() == pytest.approx(total)


def test_the_weight_of_unflipped_tokens_replaces_the_loss_of_the_token_head(program, tiny, tmp_path):
    from attentune.config import load_config
    from attentune.nn import heads
    from attentune.training.callbacks import ProgressDisplay
    from attentune.training.objective import Objective
    from attentune.training.run import train
    from benchmarks.unflipped_tokens import without_weight

    before, losses = (Objective.sums, heads.importance_weights), {}
    for name in ("released", "turned"):
        given = settings(tmp_path, tiny(), training__num_train_epochs=2)
        given |= {"training.output_dir": str(tmp_path / name)}
        config = load_config(preset="ssa-hybrid", overrides=given)
        with without_weight() if name == "turned" else contextlib.nullcontext():
            train(config, display=ProgressDisplay(quiet=True))
        lines = map(json.loads, (tmp_path / name / "log.jsonl").read_text().splitlines())
        (labels,) = (line["labels"] for line in lines if line.get("labels", {}).get("zeros"))
        losses[name] = labels["token_loss"]
    # All weights of an untrained token head are nearly equal, and tokens that flipped count nothing.
    assert losses["turned"] == pytest.approx(labels["zeros"] / (labels["zeros"] + labels["ones"]), rel=0.05)
    assert losses["turned"] != pytest.approx(losses["released"], rel=1e-3)
    assert (Objective.sums, heads.importance_weights) == before


def record(name, seed, contender, with_, against, unshifted):
    accuracy = {"with": with_, "against": against, "unshifted": unshifted}
    if name == "hans":
        accuracy = {"with a": with_ + 0.1, "with b": with_ - 0.1, "against a": against, "unshifted": unshifted}
    return {"set": name, "seed": seed, "contender": contender, "encoder": "embedded", "accuracy": accuracy}


@pytest.fixture
def records(program):
    """bert falls by about 40 points everywhere; reweight halves that on five sets, at a high cost on one of them."""
    noise, made = random.Random(1), []
    for name, seed in [(name, seed) for name in program.GOAL for seed in range(1, 6)]:
        made.append(record(name, seed, "bert", 0.9, 0.5 + noise.uniform(-0.02, 0.02), 0.8))
        falls = 0.3 if name == "films" else 0.1
        cost = 0.02 if name == "hans" else 0.005
        made.append(record(name, seed, "reweight", 0.9, 0.9 - falls + noise.uniform(-0.02, 0.02), 0.8 - cost))
        made.append(record(name, seed, "product", 0.5, 0.9, 0.8))
    return made


def cells_of(lines, title, contender):
    start = next(place for place, line in enumerate(lines) if line.startswith(f"| {title} |"))
    header = lines[start].strip("| ").split(" | ")
    line = next(line for line in lines[start:] if line.startswith(f"| {contender} |"))
    return dict(zip(header, line.strip("| ").split(" | "), strict=True))


def test_tables_have_means_differences_and_the_goal(program, records):
    lines = program.tables(records, range(1, 11))
    falls = {
        (one["set"], one["contender"], one["seed"]): 100 * (0.9 - one["accuracy"].get("against", 0)) for one in records
    }
    own, berts = ([falls["cinema", name, seed] for seed in range(1, 6)] for name in ("reweight", "bert"))
    shown = cells_of(lines, "fall", "reweight")["cinema"]
    assert shown == f"{statistics.fmean(own):.1f} ± {statistics.stdev(own):.1f} (5)"
    assert cells_of(lines, "fall", "bert")["hans"].startswith("39.1"), "the mean of the parts of a view"
    test = stats.ttest_rel(own, berts)
    low, high = test.confidence_interval()
    difference = cells_of(lines, "fall minus bert's", "reweight")["cinema"]
    assert difference.startswith(f"{statistics.fmean(own) - statistics.fmean(berts):+.1f} [{low:+.1f}, {high:+.1f}], ")
    # Holm's p: the largest of the sets, by the same test, is not multiplied; no other is smaller than its own p.
    assert float(difference.split(", ")[-1]) >= float(f"{test.pvalue:.2g}")
    assert cells_of(lines, "unshifted minus bert's", "reweight")["hans"].startswith("-2.0")
    halves = [mine - his / 2 for mine, his in zip(own, berts, strict=True)]
    low, high = stats.ttest_1samp(halves, 0).confidence_interval()
    goal = cells_of(lines, "fall minus half of bert's; cost", "reweight")
    assert goal["cinema"] == f"{statistics.fmean(halves):+.1f} [{low:+.1f}, {high:+.1f}]; -0.5: yes"
    assert goal["hans"].endswith("-2.0: no"), "the cost is above one point"
    assert goal["films"].endswith("no"), "30 points are more than half of 40"
    assert goal["goal"] == "4 of 6, reached"
    reversed_ = cells_of(lines, "fall minus half of bert's; cost", "product")
    assert reversed_["goal"] == "0 of 6", "a fall of -40 points is reliance on the cue, too"


def test_a_fall_of_bert_that_may_be_0_cannot_be_halved(program):
    noise = random.Random(2)
    made = []
    for seed, name in [(seed, name) for seed in range(1, 6) for name in program.GOAL]:
        fall = (-0.16, -0.08, 0.03, 0.12, 0.22)[seed - 1]
        made.append(record(name, seed, "bert", 0.8, 0.8 - fall, 0.8))
        made.append(record(name, seed, "reweight", 0.8, 0.82 - fall / 2 + noise.uniform(0, 0.001), 0.8))
    goal = cells_of(program.tables(made, range(1, 11)), "fall minus half of bert's; cost", "reweight")
    assert goal["cinema"] == "-2.1 [-2.1, -2.0]; +0.0: no"
    assert goal["goal"] == "0 of 6"


def test_planted_cues_are_averaged_within_each_seed(program, records):
    title, seeds = "mean of the planted cues at 90 %; minus bert's", range(1, 6)
    own, berts = (
        [
            statistics.fmean(
                100 * (program.view(one, "with") - program.view(one, "against"))
                for one in records
                if one["set"].endswith("-90") and (one["contender"], one["seed"]) == (name, seed)
            )
            for seed in seeds
        ]
        for name in ("reweight", "bert")
    )
    test = stats.ttest_rel(own, berts)
    low, high = test.confidence_interval()
    shown = cells_of(program.tables(records, range(1, 11)), title, "reweight")["fall"]
    assert shown == (
        f"{statistics.fmean(own):.1f} (5); {statistics.fmean(own) - statistics.fmean(berts):+.1f}"
        f" [{low:+.1f}, {high:+.1f}], {test.pvalue:.2g}"
    )
    without = [one for one in records if (one["set"], one["contender"]) != ("name-90", "reweight")]
    assert any(line.startswith("| reweight |  |") for line in program.tables(without, range(1, 11)))


def test_tables_take_one_seed_and_missing_cells(program, records):
    lines = program.tables([one for one in records if one["seed"] == 1 and one["set"] != "films"], [1])
    assert cells_of(lines, "fall", "bert")["cinema"].endswith("(1)")
    assert cells_of(lines, "fall minus half of bert's; cost", "reweight")["cinema"].endswith("no")
    assert program.tables([], [1])[-2:]
