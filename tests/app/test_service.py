"""What the page answers, computed and shown without any server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import pytest

from attentune.app import html as html_parts
from attentune.app.error_table import error_table
from attentune.app.limits import RequestLimits
from attentune.app.run_rows import WrongRows
from attentune.app.service import LIME_SAMPLES, ExplanationService, handle_errors
from attentune.app.words import WEAK_SIGNED, WEAK_UNSIGNED, words_html
from attentune.errors import ConfigError, DataError
from attentune.explain.agreement import agreement_of
from attentune.explain.answers import Answer, MaskedWords, answer_masked, words_read
from attentune.explain.explanation import Explanation
from attentune.explain.heads import head_attention
from attentune.explain.predict_explained import predict_explained
from attentune.explain.texts import explain_texts
from attentune.explain.words import Subword
from attentune.inference.evaluation import RowError
from attentune.inference.predictions import predictions_csv
from attentune.inference.predictor import Predictor, predict, predict_rows
from attentune.report.highlight import visible
from helpers.ensembles import saved_ensemble
from helpers.explain_runs import KINDS, TEXTS, hooks_of, tiny_run
from helpers.hostile_texts import HOSTILE
from helpers.tiny_models import rows_of

Tiny = Callable[..., Path]
TEXT, PAIR = TEXTS[0], TEXTS[3]


@pytest.fixture(scope="module")
def runs(tiny: Tiny) -> dict[str, Predictor]:
    """A run of each kind, and one without token gate."""
    made = {kind: tiny_run(tiny(), kind) for kind in KINDS}
    return made | {"plain": tiny_run(tiny(), gate=False)}


def desk_of(*runs: Predictor, **options: Any) -> ExplanationService:
    return ExplanationService([(f"run {number}", run) for number, run in enumerate(runs)], **options)


class Strict(HTMLParser):
    """Takes elements and attributes of ours only, and keeps all text."""

    ALLOWED: ClassVar = {
        "div": {"class", "role", "aria-live", "aria-label", "data-input", "tabindex"}, "section": {"class"},
        "h1": {"class"}, "h2": set(), "h3": set(), "p": {"class", "role", "aria-label"}, "strong": set(),
        "span": {"class", "style", "title", "role", "tabindex", "aria-pressed", "data-word"}, "bdi": {"dir"},
        "table": {"class"}, "thead": set(), "tbody": set(), "tr": {"class"}, "th": {"class", "scope"},
        "td": {"class", "style", "data-name"}, "br": set(), "button": {"type", "data-do", "data-input"},
    }  # fmt: skip

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = [""]
        self.named: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert {name for name, _ in attrs} <= self.ALLOWED[tag], (tag, attrs)
        for name, value in attrs:
            if name == "style":
                assert re.fullmatch(r"--share:[\d.]+|(width|left):[\d.]+%", value or "")
            if name in ("data-input", "data-word"):
                self.named.append(value or "")
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment

    @property
    def text(self) -> str:
        return "".join(self.texts)


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_says_what_predict_and_explain_say(runs: dict[str, Predictor], kind: str) -> None:
    run = runs[kind]
    service, pair = desk_of(run), PAIR if run.is_pair else ""
    pairs = [PAIR] if run.is_pair else None
    (said,) = predict(run, [TEXT], pairs)
    for method in ("ssa", "gradient", "leave-one-out"):
        (why,) = explain_texts(run, [TEXT], pairs, method=method)
        shown = service.explain(TEXT, pair, method)
        page = Strict(shown)
        assert json.loads(page.named[0]) == {"text": TEXT, "pair": PAIR if run.is_pair else None}
        texts = 1 if method == "ssa" else 2  # beside another method, ssa is shown too
        assert page.text.count(visible(TEXT)) == texts
        assert not pair or page.text.count(visible(pair)) == texts
        for name, share in said.get("probabilities", {}).items():
            assert f"{name}{share:.1%}" in page.text
        if kind == "regression":
            assert f"score {said['prediction']:.4g}" in page.text
        assert ("1 pass," if why.passes == 1 else f"{why.passes} passes,") in page.text
        names = [f"{word.within}:{word.start}:{word.end}" for word in why.words]
        assert page.named[1:] == names * texts
        titles = re.findall(r'data-word="[^"]*" title="([^"]*)"', shown)[: len(names)]
        expected = [f"{word.score:+.3g}" if why.signed else f"{word.score:.3g}" for word in why.words]
        assert [float(title) for title in titles] == pytest.approx([float(title) for title in expected], abs=1e-4)


def test_the_default_method_is_that_of_the_runs(tiny: Tiny, runs: dict[str, Predictor]) -> None:
    with_head = tiny_run(tiny(), with_head=True)
    assert desk_of(with_head).default_method == "fast-shap"
    assert desk_of(with_head, runs["classification"]).default_method == "leave-one-out"
    assert desk_of(runs["classification"]).default_method == "leave-one-out"
    text = Strict(desk_of(with_head).explain(TEXT)).text
    assert text.index("fast-shap1 pass") < text.index("ssafree: from the pass that predicts")
    assert "Agreement of fast-shap and ssa: " in text


def test_weak_words_stay_unpainted() -> None:
    def shown(*scores: float, signed: bool) -> list[str]:
        pieces = tuple(Subword("abcde"[n], 2 * n, 2 * n + 1, score) for n, score in enumerate(scores))
        why = Explanation("a b c d e", None, "x", "good", 0.9, "good", signed, 1, 0.1, "word", "a unit", pieces)
        html = words_html(why)
        limit = WEAK_SIGNED if signed else WEAK_UNSIGNED
        assert f"words below {limit:.0%} of the strongest stay unpainted" in Strict(html).text
        return re.findall(r'<span class="(t[^"]*)"', html)

    strong = 5.0
    assert shown(strong, -strong, WEAK_SIGNED * strong, -0.99 * WEAK_SIGNED * strong, 0.0, signed=True) == [
        "t for", "t against", "t for", "t", "t",
    ]  # fmt: skip
    assert shown(1.0, WEAK_UNSIGNED, WEAK_UNSIGNED - 0.01, 0.0, 0.2, signed=False) == [
        "t plain",
        "t plain",
        "t",
        "t",
        "t",
    ]
    assert shown(0.0, 0.0, 0.0, 0.0, 0.0, signed=True) == ["t"] * 5


def test_ssa_stands_beside_the_faithful_method_with_their_agreement(runs: dict[str, Predictor]) -> None:
    run = runs["classification"]
    found = {name: explain_texts(run, [TEXT], method=name)[0] for name in ("leave-one-out", "ssa")}
    agreement = agreement_of(found["leave-one-out"], found["ssa"])
    text = Strict(desk_of(run).explain(TEXT)).text
    assert text.index("leave-one-out") < text.index("ssafree: from the pass that predicts")
    assert (
        f"Agreement of leave-one-out and ssa: {agreement.shared} of the 3 strongest words are the same; rank"
        f" correlation of all words {agreement.rank_correlation:.2f}."
    ) in text
    for run_without, method in ((runs["plain"], "leave-one-out"), (run, "ssa")):
        assert "Agreement" not in desk_of(run_without).explain(TEXT, "", method)


def test_masking_a_word_is_predicting_the_text_with_mask_tokens(runs: dict[str, Predictor]) -> None:
    """Against a plain way: the pieces of the word replaced by the mask token's id by hand."""
    import torch

    for kind in KINDS:
        run = runs[kind]
        rows = rows_of([TEXT], [PAIR] if run.is_pair else None)
        words = words_read(run, rows)
        assert "".join(word.text for word in words).replace(" ", "") in (TEXT + (PAIR if run.is_pair else "")).replace(
            " ", ""
        )
        if kind == "bi-encoder":
            continue
        encoded = run.tokenizer(TEXT, PAIR if run.is_pair else None, return_tensors="pt", return_offsets_mapping=True)
        offsets, owners = encoded.pop("offset_mapping")[0].tolist(), encoded.sequence_ids(0)
        for word in (words[0], words[3], words[-1]):
            side = 0 if word.within == "text" else 1
            inside = [owners[n] == side and a < word.end and b > word.start for n, (a, b) in enumerate(offsets)]
            changed = encoded["input_ids"].clone()
            changed[0, inside] = run.tokenizer.mask_token_id
            with torch.no_grad():
                logits = run.model(**{**encoded, "input_ids": changed}).logits[0]
            found = answer_masked(run, rows, [word])
            assert found.tokens == (sum(inside),)
            assert sum(inside) > 0
            if kind == "regression":
                assert found.after.prediction == pytest.approx(logits.item(), abs=1e-4)
            else:
                assert list(found.after.probabilities.values()) == pytest.approx(logits.softmax(-1).tolist(), abs=1e-4)


def test_masked_words_are_those_that_are_named(runs: dict[str, Predictor]) -> None:
    service = desk_of(runs["classification"], runs["plain"])
    rows = rows_of([TEXT])
    words = words_read(runs["classification"], rows)
    for chosen in ([words[3]], [words[0], words[3], words[-1]], []):
        predictions = service.mask(TEXT, "", [(word.within, word.start, word.end) for word in chosen])
        for html, name in zip(predictions, ("classification", "plain"), strict=True):
            after = answer_masked(runs[name], rows, chosen).after
            for label, share in after.probabilities.items():
                assert f"{label}{share:.1%} " in Strict(html).text
    assert "+0.0" in predictions[0]  # no word is masked, so nothing changes


def test_a_word_that_the_second_run_does_not_read(tiny: Tiny, runs: dict[str, Predictor]) -> None:
    service = desk_of(runs["classification"], tiny_run(tiny(), max_length=8))
    first, second = service.mask(TEXT, "", [("text", len(TEXT) - 6, len(TEXT) - 1)])
    assert "Beyond this run's maximum length, so masking changes nothing: “moves”" in Strict(second).text
    assert "maximum length" not in first


def test_a_pair_is_masked_on_its_own_side(runs: dict[str, Predictor]) -> None:
    run = runs["pair"]
    words = words_read(run, rows_of(["yes no"], ["yes no"]))
    assert [(word.text, word.within) for word in words] == [
        ("yes", "text"), ("no", "text"), ("yes", "pair"), ("no", "pair"),
    ]  # fmt: skip
    shown = [desk_of(run).mask("yes no", "yes no", [(within, 0, 3)])[0] for within in ("text", "pair")]
    expected = [answer_masked(run, rows_of(["yes no"], ["yes no"]), [words[place]]).after for place in (0, 2)]
    assert expected[0].probabilities != expected[1].probabilities
    for html, after in zip(shown, expected, strict=True):
        assert f"yes{after.probabilities['yes']:.1%}" in Strict(html).text


def test_heads_are_those_of_explain(runs: dict[str, Predictor]) -> None:
    run = runs["pair"]
    (found,) = head_attention(run, rows_of([TEXT], [PAIR]), layer=2)
    html = desk_of(run).heads(TEXT, PAIR, 2)
    cells = re.findall(r'<td class="plain" style="[^"]*">([^<]*)</td>', html)
    assert found.importance is not None
    expected = [
        f"{share:.2f}".removeprefix("0")
        for own, gate in zip(found.attention, found.importance, strict=True)
        for share in (*own, gate)
    ]
    assert cells == expected
    assert html.count("pair-begins") == 1


def test_runs_side_by_side_that_differ(runs: dict[str, Predictor]) -> None:
    service = desk_of(runs["plain"], runs["classification"], runs["regression"])
    text = Strict(service.explain(TEXT, "", "ssa")).text
    assert "ssa needs a model that scores tokens" in text
    assert text.count("ssa1 pass") == 2
    assert "score " in text
    # A class that one run does not know is said in its own box only.
    other = desk_of(runs["classification"], runs["ordinal"])
    assert other.classes == ("bad", "good", "low", "middle", "high")
    html = other.explain(TEXT, "", "gradient", "word", "good")
    assert "red: for good; blue, dashed: against it" in Strict(html).text
    assert Strict(html).text.count("not a class of this run") == 5
    # All classes of both runs in the same order, so that their bars are at the same height.
    names = re.findall(r'<span class="name">([^<]*)</span>', html)
    assert names == ["bad", "good", "low", "middle", "high"] * 2
    assert "got &#x27;good&#x27;, expected one of the run&#x27;s classes: low, middle, high" in html
    with pytest.raises(ConfigError, match="run 1 reads pairs; expected both to read pairs"):
        desk_of(runs["classification"], runs["pair"])


def test_methods_on_offer(runs: dict[str, Predictor], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ssa" in desk_of(runs["classification"]).methods
    plain = desk_of(runs["plain"])
    assert "ssa" not in plain.methods
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert set(plain.methods) == {"gradient", "leave-one-out", "attention", "attention-gradient", "random"}


@pytest.mark.integration
def test_lime_takes_fewer_copies_here(runs: dict[str, Predictor]) -> None:
    assert f"{LIME_SAMPLES + 1:,} passes" in Strict(desk_of(runs["plain"]).explain("Yes and no", "", "lime")).text


def test_models_are_left_as_they_were(runs: dict[str, Predictor]) -> None:
    run = runs["classification"]
    before, implementation = hooks_of(run.model), run.model.encoder.config._attn_implementation
    service = desk_of(run)
    for method in service.methods:
        service.explain("Yes and no", "", method)
    service.mask("Yes and no", "", [("text", 0, 3)])
    service.heads("Yes and no", "", 1)
    assert hooks_of(run.model) == before
    assert run.model.encoder.config._attn_implementation == implementation


# RequestLimits and mistakes


@pytest.mark.parametrize("text", ["", "  \n\t", None])
def test_no_text_is_said(runs: dict[str, Predictor], text: str | None) -> None:
    service = desk_of(runs["classification"])
    for ask in (lambda: service.explain(text), lambda: service.mask(text, "", []), lambda: service.heads(text, "", 1)):
        with pytest.raises(DataError, match=r"There is no text yet\. Type or paste one"):
            ask()


def test_one_side_of_a_pair_may_be_empty(runs: dict[str, Predictor]) -> None:
    service = desk_of(runs["pair"])
    assert 'data-word="text:' in service.explain(TEXT, "")
    assert 'data-word="pair:' in service.explain("", TEXT)
    with pytest.raises(DataError, match="no text yet"):
        service.explain("", "")


def test_a_text_that_is_too_long_is_said_with_both_numbers(runs: dict[str, Predictor]) -> None:
    service = desk_of(runs["classification"], limits=RequestLimits(characters=1000))
    assert 'data-word="text:0:1000"' in service.explain("a" * 1000, "", "ssa")
    with pytest.raises(DataError, match=r"has 1,001 characters; .* at most 1,000\. .*--max_characters 1001"):
        service.explain("a" * 1001)
    pairs = desk_of(runs["pair"], limits=RequestLimits(characters=1000))
    with pytest.raises(DataError, match="has 1,002 characters"):
        pairs.explain("a" * 501, "b" * 501)


def test_what_goes_wrong_becomes_a_message(capfd: pytest.CaptureFixture[str]) -> None:
    def fails(error: Exception) -> Any:
        raise error

    mended = handle_errors(str)(fails)(DataError("line 1 of <b>x</b>"))
    assert Strict(mended).text == "line 1 of <b>x</b>"
    assert 'role="alert"' in mended
    assert handle_errors(str, as_html=False)(fails)(DataError("line 1 of <b>x</b>")) == "line 1 of <b>x</b>"
    bug = handle_errors(str)(fails)(KeyError("secret"))
    assert "this is a bug in Attentune, not in your input" in bug
    assert "secret" not in bug
    assert "KeyError: 'secret'" in capfd.readouterr().err


# Files


def test_a_file_is_predicted_as_predict_does(runs: dict[str, Predictor], tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    file.write_text("id,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(TEXTS)))
    service = desk_of(runs["classification"], runs["plain"])
    html, made = service.file(file, tmp_path)
    assert [path.name for path in made] == ["predictions-1-run_0.csv", "predictions-2-run_1.csv"]
    rows = rows_of(TEXTS)
    for path, name in zip(made, ("classification", "plain"), strict=True):
        assert path.read_text() == predictions_csv(rows, predict_rows(runs[name], rows), runs[name].label_space)
    text = Strict(html).text
    assert text.count("5 rows") == 2
    assert "p_bad" in text
    assert text.count(TEXTS[0]) == 2
    html, (alone,) = desk_of(runs["classification"]).file(file, tmp_path, with_words=True)
    assert alone.name == "predictions.csv"
    assert "explanation" in alone.read_text().splitlines()[0]


def test_a_file_gets_the_scores_of_a_fitted_head(tiny: Tiny, runs: dict[str, Predictor], tmp_path: Path) -> None:
    with_head = tiny_run(tiny(), gate=False, with_head=True)
    service = desk_of(with_head, runs["plain"])
    assert service.scores_words
    assert not desk_of(runs["plain"]).scores_words
    file = tmp_path / "new.csv"
    file.write_text("id,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(TEXTS)))
    _, (first, second) = service.file(file, tmp_path, with_words=True)
    rows = rows_of(TEXTS)
    logits_NC, column = predict_explained(with_head, rows)
    assert first.read_text() == predictions_csv(rows, logits_NC, with_head.label_space, {"explanation": column})
    assert "explanation" not in second.read_text().splitlines()[0]


def test_columns_of_the_run_are_found_and_ids_may_be_missing(runs: dict[str, Predictor], tmp_path: Path) -> None:
    """As for a run that was trained on a file with the columns key and body."""
    own = replace(runs["classification"].config.data, text_column="body", id_column="key")
    run = replace(runs["classification"], config=replace(runs["classification"].config, data=own))
    for name, content, ids in (("a.csv", "body,key\nyes,k7\n", ["k7"]), ("b.csv", "body\nyes\n", ["0"])):
        (tmp_path / name).write_text(content)
        _, (made,) = desk_of(run).file(tmp_path / name, tmp_path)
        assert [line.split(",")[0] for line in made.read_text().splitlines()[1:]] == ids


@pytest.mark.parametrize(
    ("name", "content", "limits", "options", "expected"),
    [
        ("a.csv", "text\n" + "x\n" * 11, {"rows": 10}, {}, "The file has 11 rows; this page accepts at most 10."),
        ("a.csv", "text\n" + "x" * 2000, {"upload_bytes": 1000}, {}, "The file has 0.0 MB; this page accepts at most"),
        ("a.csv.gz", "x", {}, {}, "a.csv.gz: unsupported file type, expected one of .csv, .tsv"),
        ("a.parquet", "x", {}, {}, "a.parquet: unsupported file type"),
        ("a.csv", "", {}, {}, "a.csv"),
        ("a.csv", "one,two\n1,2\n", {}, {"text_column": "three"}, 'the field "Text column"'),
        ("a.csv", 'text\n"never closed\n', {}, {}, "a.csv:2: the row that begins here opens a double quote"),
        ("a.jsonl", "{}", {}, {}, "a.jsonl"),
    ],
)
def test_files_that_are_not_taken(
    runs: dict[str, Predictor], tmp_path: Path, name: str, content: str, limits: Any, options: Any, expected: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(DataError) as caught:
        desk_of(runs["classification"], limits=RequestLimits(**limits)).file(file, tmp_path, **options)
    assert expected in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


# Hostile texts


@pytest.mark.integration
def test_hostile_texts_stay_texts(runs: dict[str, Predictor]) -> None:
    service = desk_of(runs["classification"])
    for number, text in enumerate(HOSTILE):
        shown = service.explain(text, "", "ssa")
        page = Strict(shown)
        assert visible(text) in page.text
        assert json.loads(page.named[0]) == {"text": text, "pair": None}
        made = [shown, html_parts.message(text)]
        if page.named[1:] and number % 6 == 0:
            within, start, end = page.named[1].split(":")
            made += [*service.mask(text, "", [(within, int(start), int(end))]), service.heads(text, "", 1)]
        for html in made:
            Strict(html)
            # Nothing that a template language would take for its own.
            assert not re.search(r"[{}$`]", html)


@pytest.mark.parametrize("text", HOSTILE[::7])
def test_hostile_names_stay_texts(text: str) -> None:
    said = Answer(text, {text: 0.75, "other": 0.25})
    html = html_parts.side_by_side([(text, html_parts.prediction(said, said) + html_parts.trouble(text))])
    html += html_parts.message(text) + html_parts.heading(text, [text]) + html_parts.note(text)
    html += html_parts.panels([html_parts.Panel(text, said, problem=text)], text, text)
    html += html_parts.inert(html_parts.preview([text], [[text]], 1))
    word = Subword(text, 0, len(text), 0.0)
    html += html_parts.masked_prediction(MaskedWords((word,), (0,), said, said), [text, "other"])
    rows = rows_of([text], [text])
    wrong = WrongRows(text, rows, (RowError(0, text, text, text, 0.5),), "classification")
    html += html_parts.inert(error_table(wrong))
    assert visible(text, one_line=True) in unescape(html)
    Strict(html)
    assert not re.search(r"[{}$`]", html)


def test_bars_show_the_change_and_the_likeliest_of_many_classes() -> None:
    before, after = Answer("bad", {"bad": 0.9, "good": 0.1}), Answer("good", {"bad": 0.2, "good": 0.8})
    text = Strict(html_parts.prediction(after, before)).text
    assert "good (80.0%), no longer bad" in text
    assert "bad20.0% -70.0" in text
    many = Answer("c7", {f"c{n}": 0.5 if n == 7 else 0.5 / 19 for n in range(20)})
    text = Strict(html_parts.prediction(many)).text
    assert "and 8 less likely classes" in text
    assert "c750.0%" in text
    assert "score 1.5 (+0.5)" in Strict(html_parts.prediction(Answer(1.5, {}), Answer(1.0, {}))).text


def test_ensembles_and_baselines_on_the_page(tiny: Tiny, tmp_path: Path, runs: dict[str, Predictor]) -> None:
    folder = saved_ensemble(tmp_path / "run", tiny)
    desk = desk_of(Predictor.load(folder))
    assert (desk.layers, desk.scores_words) == (0, False)
    assert desk.methods == ("gradient", "integrated-gradients", "leave-one-out", "lime", "shap", "random")
    found = desk.explain(TEXT)
    assert len(Strict(found).named) == 1 + len(words_read(desk.runs[0][1], rows_of([TEXT])))
    assert "unwatchable" in visible(found)
    assert desk.mask(TEXT, "", [("text", 0, 3)])[0]
    assert "expected the run folder of one model" in unescape(desk.heads(TEXT, "", 1))
    table = tmp_path / "new.csv"
    table.write_text("text\nso fine\n")
    _, (written,) = desk.file(table, tmp_path, with_words=True)
    assert written.read_text().startswith("id,label,prediction,p_bad,p_good\n")
    both = desk_of(Predictor.load(folder), runs["classification"])
    assert both.layers == runs["classification"].model.encoder.config.num_hidden_layers
    assert "looks into one model" in unescape(both.explain(TEXT, method="attention"))
