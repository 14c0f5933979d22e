"""Explanations on a page and in a terminal, where texts stay texts; charts: the drawn values and the layout."""

import io
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attentune.data.tables import visible
from attentune.errors import ConfigError, StorageError
from attentune.explain.explanation import Explanation, Subword
from attentune.explain.texts import explain_rows
from attentune.report.charts import (
    PointRow,
    check_figure_file,
    rows_figure,
    save_figure,
)
from attentune.report.explanations import effect_text, render_explanations, segments, summary_line, terminal_text
from helpers.hostile_texts import HOSTILE
from helpers.made_records import SIGNATURES
from helpers.tiny_models import rows_of
from helpers.tiny_runs import rows_for, tiny_run

Tiny = Callable[..., Path]
FOUR = "none little strong most"
VOID = ("meta", "input")
# By element the attributes that it may have, and what each may say.
LOOK = r"--share:[01]\.[0-9]{2}"
ALLOWED: dict[str, dict[str, str]] = {
    "html": {"lang": "en"},
    "head": {},
    "meta": {"charset": "utf-8", "name": "viewport", "content": "[^<>]*", "http-equiv": "Content-Security-Policy"},
    "title": {},
    "style": {},
    "body": {},
    "h1": {},
    "h2": {},
    "h3": {},
    "input": {"type": "radio", "name": "level", "id": "words|pieces", "checked": ""},
    "label": {"for": "words|pieces"},
    "main": {},
    "section": {},
    "article": {},
    "div": {"class": "methods|by-words|by-pieces"},
    "p": {"class": "note|facts|effect|legend|side|marked"},
    **{key: {} for key in ("table", "tr", "th", "td")},
    "bdi": {"dir": "auto"},
    "span": {
        "class": "t (plain|for|against)( strong)?|ramp plain|ramp signed",
        "title": r"[+-]?([0-9.]+(e[+-]?[0-9]+)?|nan|inf)",
        "style": LOOK,
    },
}


class Strict(HTMLParser):
    """Takes allowed elements and attributes only, each closed where it should be, and keeps what is marked."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.marked: list[str] = []
        self.facts: list[str] = []
        self.titles: list[str] = []
        self.style: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, f"<{tag}> is not allowed"
        for name, value in attrs:
            assert name in ALLOWED[tag], f"<{tag} {name}> is not allowed"
            assert re.fullmatch(ALLOWED[tag][name], value or ""), f"<{tag} {name}={value!r}> is not allowed"
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag == "bdi":
            self.marked.append("")
        if ("class", "facts") in attrs:
            self.facts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        raise AssertionError(f"<{tag}/> is not expected")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "bdi" in self.open:
            self.marked[-1] += data
        elif self.open[-1:] == ["p"] and self.facts:
            self.facts[-1] += data
        elif self.open[-1:] == ["title"]:
            self.titles.append(data)
        elif self.open[-1:] == ["style"]:
            self.style.append(data)

    def handle_decl(self, decl: str) -> None:
        assert decl == "DOCTYPE html"

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"comment {data!r}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"instruction {data!r}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"declaration {data!r}")


def parsed(text: str) -> Strict:
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def explained(text: str, scores: Sequence[float], *, signed: bool = True, **changes: Any) -> Explanation:
    """An explanation whose pieces are the white-space words of the text."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    pieces = tuple(Subword(text[a:b], a, b, score) for (a, b), score in zip(spans, scores, strict=True))
    values = {
        "text": text, "pair": None, "method": "gradient", "label": "good", "probability": 0.75, "prediction": "good",
        "signed": signed, "passes": 2, "seconds": 0.5, "level": "word", "unit": "a unit",
        "pieces": pieces,
    }  # fmt: skip
    return Explanation(**(values | changes))


def test_hostile_texts_stay_texts(tiny: Tiny) -> None:
    rows = rows_of(HOSTILE)
    found = explain_rows(tiny_run(tiny()), rows, methods=("ssa", "gradient"))
    groups = [list(group) for group in zip(*found.values(), strict=True)]
    parser = parsed(render_explanations(groups, title=HOSTILE[0]))
    # Each text stands there four times, whole, whatever it holds: by words and by pieces, for two methods.
    assert parser.marked == [visible(text) for text in HOSTILE for _ in range(4)]
    assert parser.counts["article"] == 2 * len(HOSTILE)
    tokens = sum(len(own.words) + len(own.pieces) for group in groups for own in group)
    assert 0.9 * tokens < parser.counts["span"] - 4 * len(HOSTILE) <= tokens


def test_hostile_pairs_labels_and_titles_stay_texts(tiny: Tiny) -> None:
    found = explain_rows(tiny_run(tiny(), "pair"), rows_of(HOSTILE, HOSTILE[::-1]), methods=("gradient",))["gradient"]
    parser = parsed(render_explanations([[own] for own in found], title="pairs"))
    both = [(visible(text), visible(pair)) for text, pair in zip(HOSTILE, HOSTILE[::-1], strict=True)]
    assert parser.marked == [text for pair in both for _ in range(2) for text in pair]
    for text in HOSTILE:
        own = explained("a b", [0.5, -1.0], label=text, prediction=text[::-1], pair=text, method=text)
        parser = parsed(render_explanations([[own]], title=text))
        assert visible(text, one_line=True) in parser.facts[0]
        assert "".join(parser.titles) == visible(text, one_line=True)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf"), 1e-30, 1e30])
def test_odd_scores_do_no_harm(score: float) -> None:
    parser = parsed(render_explanations([[explained("a b", [score, 1.0])]], title="odd"))
    assert parser.marked == ["a b", "a b"]


def test_tone_line_and_value_are_those_of_the_score() -> None:
    text = render_explanations([[explained("none least against most", [0.0, 0.25, -0.5, 1.0])]], title="x")
    spans = re.findall(r'<span class="(t[^"]*)" title="([^"]*)" style="([^"]*)">([^<]*)</span>', text)
    assert [(kind, title, word) for kind, title, _, word in spans] == 2 * [
        ("t for", "+0", "none"), ("t for", "+0.25", "least"),
        ("t against strong", "-0.5", "against"), ("t for strong", "+1", "most"),
    ]  # fmt: skip
    assert [share for _, _, share, _ in spans[:4]] == ["--share:0.00", "--share:0.25", "--share:0.50", "--share:1.00"]
    unsigned = render_explanations([[explained("a b", [0.25, 0.5], signed=False)]], title="x")
    assert '<span class="t plain strong" title="0.5" style="--share:1.00">b</span>' in unsigned
    # Readable without pointing at a word: the words with the highest scores, in their order.
    listed = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td></tr>", text)
    assert listed == [("most", "+1"), ("against", "-0.5"), ("least", "+0.25"), ("none", "+0")]
    assert '<p class="legend">0<span class="ramp plain"></span>0.5: a unit</p>' in unsigned
    assert '<p class="legend">-1<span class="ramp signed"></span>+1: a unit</p>' in text


def test_words_are_shown_first_unless_pieces_were_asked_for(tiny: Tiny) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification", 1)
    for level, shown in (("word", "words"), ("token", "pieces")):
        found = explain_rows(run, rows, methods=("ssa",), level=level)["ssa"]
        text = render_explanations([found], title="x")
        assert f'id="{shown}" checked' in text
        assert text.count(" checked") == 1
        words, pieces = text.split('<div class="by-pieces">')
        assert (
            words.count('class="t plain')
            == len(found[0].words)
            < pieces.count('class="t plain')
            == len(found[0].pieces)
        )


def test_facts_say_what_was_explained_and_nothing_is_fetched_or_run() -> None:
    own = explained("a", [1.0], label="bad", probability=0.25, passes=1001)
    score = explained("a", [1.0], label=2.5, prediction=2.5, probability=None)
    facts = parsed(render_explanations([[own, score]], title="x")).facts
    assert facts[0].startswith("bad (0.250), but predicted good; 1,001 passes, 0.5 s")
    assert facts[1].startswith("predicted 2.5; 2 passes, 0.5 s")
    # Nothing is fetched or run.
    text = render_explanations([[explained("a b", [0.5, -1.0])]], title="x")
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|//|url\(|@import|<script|javascript", text)
    # No texts make an empty page.
    assert parsed(render_explanations([], title="x")).marked == []
    assert parsed(render_explanations([[explained("", [])]], title="x")).marked == ["", ""]


# In a terminal


def shown(explanation: Explanation, **options: Any) -> str:
    buffer = io.StringIO()
    settings = {"force_terminal": True, "color_system": "truecolor", "width": 100, "soft_wrap": True} | options
    soft_wrap = settings.pop("soft_wrap")
    Console(file=buffer, highlight=False, soft_wrap=soft_wrap, **settings).print(terminal_text(explanation))
    return buffer.getvalue()


def styles(explanation: Explanation) -> dict[str, str]:
    """Each token's style in a terminal."""
    found = terminal_text(explanation)
    return {found.plain[span.start : span.end]: str(span.style) for span in found.spans}


def test_a_terminal_shows_strength_with_and_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    found = styles(explained(FOUR, [0.0, 0.25, -0.5, 1.0], signed=True))
    assert found["none"] == "#808080"
    assert found["little"] == "#9a6b6a"  # a quarter of the way from grey to red
    assert found["strong"] == "bold italic underline #567eba"  # half the way to blue
    assert found["most"] == "bold underline #e62d28"
    assert styles(explained(FOUR, [0.0, 0.1, 0.2, 0.2], signed=False))["most"] == "bold underline #eb7800"
    # No colour leaves underlines and no terminal plain text.
    explanation = explained(FOUR, [0.0, 0.25, -0.5, 1.0], signed=True)
    assert "38;2;" in shown(explanation)
    bare = shown(explanation, no_color=True)
    assert "38;2;" not in bare
    assert "\x1b[1;4mmost" in bare
    plain = shown(explanation, force_terminal=False, color_system="auto")
    assert "\x1b" not in plain
    assert "none little strong most" in plain
    # The summary is one line.
    explanation = explained(
        "none little strong most", [0.0, 0.25, -0.5, 1.0], signed=True, passes=1001, prediction="bad"
    )
    assert summary_line(explanation) == (
        "gradient: good (0.750), but predicted bad; 1,001 passes, 0.5 s; scores -0.5 to +1"
    )
    score = explained(
        "none little strong most",
        [0.0, 0.25, 0.5, 1.0],
        signed=False,
        label=2.5,
        prediction=2.5,
        probability=None,
        passes=1,
    )
    assert summary_line(score) == "gradient: predicted 2.5; 1 pass, 0.5 s; scores 0 to 1"


def test_hostile_texts_cannot_command_a_terminal(tiny: Tiny) -> None:
    rows = rows_of(HOSTILE, HOSTILE[::-1])
    for explanation in explain_rows(tiny_run(tiny(), "pair"), rows, methods=("ssa",))["ssa"]:
        out = shown(explanation)
        left = re.sub(r"\x1b\[[0-9;]*m", "", out)  # the styles that we ourselves set
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", left)
        assert visible(explanation.text) in left
        assert out.count("\x1b[") == len(re.findall(r"\x1b\[(?:0|[1-9][0-9;]*)m", out))


def test_segments_hold_the_whole_text_and_what_cannot_be_seen_is_made_visible() -> None:
    text = "a bc  def g"
    tokens = [Subword("bc", 2, 4, 1.0), Subword("", 4, 4, 9.0), Subword("de", 6, 8, 2.0), Subword("ef", 7, 9, -0.5)]
    for signed, joined in ((True, 1.5), (False, 2.0)):
        parts = segments(text, tokens, signed=signed)
        assert [(part.text, part.score) for part in parts] == [
            ("a ", None), ("bc", 1.0), ("  ", None), ("def", joined), (" g", None),
        ]  # fmt: skip
    assert segments("", [], signed=True) == []
    # What cannot be seen is made visible.
    assert visible("a\x1b[0m\x00\x7f\x9b") == "a\u241b[0m\u2400\u2421\ufffd"
    assert visible("a\r\nb\rc\td") == "a\nb\nc\td"
    assert visible("a\nb\tc", one_line=True) == "a\u240ab\u2409c"
    assert visible("\u202egnp.exe\u2066") == "\ufffdgnp.exe\ufffd"
    assert visible("na\u00efve \u65e5\u672c \U0001f600 \u200f") == "na\u00efve \u65e5\u672c \U0001f600 \u200f"


def test_text_can_be_read_on_the_strongest_colours_of_both_themes() -> None:
    page = render_explanations([], title="x")
    light, dark = (dict(re.findall(r"--(\w+): (#\w+)", block)) for block in re.findall(r":root \{([^}]*)\}", page))

    def luminance(colour: str) -> float:
        code = colour[1:] if len(colour) == 7 else "".join(2 * sign for sign in colour[1:])
        parts = [int(code[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for theme in (light, dark):
        for paint in ("paper", "for", "against", "plain"):
            darker, lighter = sorted(luminance(theme[name]) for name in ("ink", paint))
            assert (lighter + 0.05) / (darker + 0.05) > 4.5  # WCAG's contrast, level AA


def test_what_changes_without_a_word_is_said_in_probabilities() -> None:
    own = explained("a dull film", [0.1, 2.4, -0.2], label="bad", prediction="bad", probability=0.993)
    assert effect_text(own) == ""
    each = replace(own, method="leave-one-out", without=(0.99, 0.6241, 0.994))
    assert effect_text(each) == "Without \u201cdull\u201d, p(bad) falls from 0.993 to 0.624."
    assert (
        effect_text(replace(each, without=(None, 0.9931, None))) == "Without \u201cdull\u201d, p(bad) stays at 0.993."
    )
    score = replace(each, label=2.5, prediction=2.5, probability=None, without=(None, 3.25, None))
    assert effect_text(score) == "Without \u201cdull\u201d, the score rises from 2.5 to 3.25."
    page = render_explanations([[each, score]], title="x")
    assert parsed(page).counts["table"] == 2
    assert "p(bad) falls from 0.993 to 0.624" in page
    assert "<td>dull</td><td>+2.4</td><td>0.624</td>" in page
    assert "score without it" in page
    assert [token.get("without") for token in each.to_dict()["tokens"]] == [0.99, 0.6241, 0.994]
    assert effect_text(each) in shown(each)


# Charts: the drawn values, the layout, and imports without torch and Matplotlib.


PANELS = {
    label: [PointRow("bert:"), PointRow("$x^$", (), 1.0, 0.75, 1.25, 1), PointRow("_a", (), 0.5)]
    for label in ("entailment", "non-entailment")
}


@pytest.mark.parametrize("ending", SIGNATURES)
def test_each_kind_of_file_is_drawn(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"rows{ending}"
    save_figure(rows_figure(PANELS, x_label="accuracy"), file)
    assert file.read_bytes().startswith(SIGNATURES[ending])
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_rows_are_the_numbers_and_error_bars() -> None:
    figure = rows_figure(PANELS, x_label="accuracy", level=("chance", 0.5), mean_name="mean, $d$")
    assert [axis.get_title() for axis in figure.axes] == list(PANELS)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["bert:", "$x^$", "_a"]
    assert not any(label.get_parse_math() for label in figure.axes[0].get_yticklabels())
    for axis in figure.axes:
        ends_and_means = [line.get_xdata()[0] for line in axis.get_lines() if len(line.get_xdata()) == 1]
        assert ends_and_means == [0.75, 1.25, 1.0, 0.5]  # none for the first row
        assert len([line for line in axis.get_lines() if list(line.get_xdata()) == [0.5, 0.5]]) == 1
        assert [part.get_segments()[0][:, 0].tolist() for part in axis.collections] == [[0.75, 1.25]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mean, $d$", "chance"]
    # Small differences do not fill the chart and nan is left out.
    rows = [PointRow("a", (0.1,), 0.1), PointRow("b", (-0.2, 0.0), -0.1, -0.2, 0.1)]
    (axis,) = rows_figure({"": rows}, x_label="points", level=("none", 0.0), least=4.0).axes
    left, right = axis.get_xlim()
    assert right - left == pytest.approx(4.0)
    intervals = [segment[:, 0].tolist() for part in axis.collections for segment in part.get_segments()]
    assert intervals == [[-0.2, pytest.approx(0.1)]]


def test_invalid_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.gif: expected a name for a figure that ends in \.png, \.svg, \.pdf"):
        check_figure_file("a.gif")
    with pytest.raises(StorageError, match=r"nix/a\.png: could not be written: its folder does not exist"):
        save_figure(rows_figure(PANELS, x_label="accuracy"), tmp_path / "nix" / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_importing_it_loads_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, attentune.report.contents;"
        "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
