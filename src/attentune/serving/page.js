// The page of `attentune serve`. Everything from texts and answers is set as text, never as HTML.
"use strict";
const $ = (id) => document.getElementById(id);
const {facts, needs_key: needsKey, body_mb: bodyMb} = JSON.parse($("facts").textContent);
const MOST_CLASSES = 12, WEAK_SIGNED = 0.3, WEAK_UNSIGNED = 0.7, MOST_SHOWN = 300, MOST_STRONGEST = 5;
let key = null, example = null;
let asked = 0;  // the number of the last question: answers to earlier ones are not shown
let shown = null;  // the text and pair that the result is of, and its prediction
let masked = [];  // names of words, as in data-word, in the order in which they were masked

function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Shows control characters and those that reverse the writing direction as symbols; the length stays the same.
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f]/g, (one) => String.fromCharCode(0x2400 + one.charCodeAt(0)))
    .replace(/\u007f/g, "\u2421").replace(/[\u0080-\u009f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

const cut = (text, most = MOST_SHOWN) => visible(text.length > most ? `${text.slice(0, most - 3)}...` : text);
const digits = (score, signed) => (signed && score >= 0 ? "+" : "") + String(Number(score.toPrecision(3)));

// Says what a signed score means, as Explanation.in_words does.
function meaningOf({text, score}, unit) {
  const size = digits(Math.abs(score)), start = `“${text}” ${digits(score, true)}: `;
  const added = (how) => how ? ` (${how}).` : ".";
  const change = unit.match(/^change of (.+) when the \w+ is left out \(\w+(?:, (.+))?\); /s);
  if (change) return `${start}leaving it out ${score > 0 ? "lowers" : "raises"} ${change[1]} by ${size}${added(change[2])}`;
  const [, how, of] = unit.match(/^the \w+'s part, (.+?), of the change of (.+) when all /s) ?? [];
  return of ? `${start}it ${score > 0 ? `adds ${size} to` : `takes ${size} from`} ${of}${added(how)}` : "";
}

async function call(path, options = {}) {
  let response;
  const headers = {...options.headers, ...(key && {Authorization: `Bearer ${key}`})};
  try {
    response = await fetch(path, {...options, headers});
  } catch {
    throw new Error("The server does not answer. Is attentune serve still running?");
  }
  const text = await response.text();
  let content = {detail: text};
  try { content = JSON.parse(text); } catch { /* an answer of the web server itself */ }
  if (!response.ok) throw new Error(content.detail);
  return content;
}

const post = (path, content) =>
  call(path, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(content)});

// Runs a request of a form; its error is shown beside the form.
async function attempt(place, work) {
  const problem = $(`${place}-problem`);
  problem.textContent = "";
  try { await work(); } catch (error) { problem.textContent = visible(error.message); }
}

function showPrediction(answer, before = null) {
  const box = $("prediction"), shares = answer.probabilities;
  if (!shares) {
    const change = before ? ` (${digits(answer.prediction - before.prediction, true)})` : "";
    const score = make("strong", {}, String(Number(answer.prediction.toPrecision(4))));
    box.replaceChildren(make("p", {class: "said"}, "score ", score, change));
    return;
  }
  const said = (one) => Array.isArray(one.prediction) ? one.prediction.join(", ") || "no label" : one.prediction;
  const share = shares[answer.prediction];
  const sentence = make("p", {class: "said"}, make("strong", {}, visible(said(answer))));
  if (share !== undefined) sentence.append(` (${(100 * share).toFixed(1)}%)`);
  if (before && said(before) !== said(answer)) sentence.append(`, no longer ${visible(said(before))}`);
  const likeliest = Object.keys(shares).sort((one, other) => shares[other] - shares[one]).slice(0, MOST_CLASSES);
  const bars = make("div", {class: "bars"});
  for (const name of Object.keys(shares).filter((one) => likeliest.includes(one))) {
    const track = make("span", {class: "track"}, make("span", {class: "fill", style: `width:${100 * shares[name]}%`}));
    const figure = make("span", {class: "figure"}, `${(100 * shares[name]).toFixed(1)}%`);
    if (before) {
      track.append(make("span", {class: "was", style: `left:${100 * before.probabilities[name]}%`}));
      const points = 100 * (shares[name] - before.probabilities[name]);
      figure.append(" ", make("span", {class: "change"}, (points < 0 ? "" : "+") + points.toFixed(1)));
    }
    bars.append(make("span", {class: "name"}, visible(name)), track, figure);
  }
  box.replaceChildren(sentence, bars);
  const rest = Object.keys(shares).length - likeliest.length;
  if (rest) box.append(make("p", {class: "soft"}, `and ${rest} less likely classes`));
  if (answer.rejected) {
    box.append(make("p", {class: "said"}, "This text may belong to none of the classes."));
  }
  if (answer.truncated) {
    box.append(make("p", {class: "soft"}, "The text is longer than the model reads; the rest was not read."));
  }
}

// Subwords of one character share it: they become one span, with the sum of signed scores, else the highest.
function spans(tokens, signed) {
  const found = [];
  for (const {start, end, score} of tokens) {
    const last = found.at(-1);
    if (start === end) continue;
    if (last && start < last.end) {
      last.score = signed ? last.score + score : Math.max(last.score, score);
      last.end = Math.max(last.end, end);
    } else found.push({start, end, score});
  }
  return found;
}

function showExplanation(why) {
  const {signed, tokens} = why, most = Math.max(0, ...tokens.map((token) => Math.abs(token.score)));
  const weak = signed ? WEAK_SIGNED : WEAK_UNSIGNED, low = signed ? -most : weak * most;
  let meaning = "the more orange, the more it matters";
  if (signed) meaning = why.probability === null ? "red: for a higher score; blue, dashed: for a lower one"
    : `red: for ${visible(String(why.label))}; blue, dashed: against it`;
  const ramp = make("span", {class: `ramp ${signed ? "signed" : "plain"}`});
  const words = tokens.map((token) => ({...token, text: visible(token.text)}))
    .sort((one, other) => Math.abs(other.score) - Math.abs(one.score)).slice(0, MOST_STRONGEST);
  const outcome = (value) => why.probability === null ? String(Number(value.toPrecision(4))) : value.toFixed(3);
  const quantity = why.probability === null ? "the score" : `p(${visible(String(why.label))})`;
  const before = outcome(why.probability ?? why.label);
  const passes = why.passes === 1 ? "1 pass" : `${why.passes.toLocaleString("en")} passes`;
  $("why").replaceChildren(
    make("h2", {}, why.method), make("p", {class: "soft"}, `${passes}, ${digits(why.seconds)} s`),
    make("p", {class: "soft", id: "legend"}, digits(low, signed), ramp, `${digits(most, signed)}: ${visible(why.unit)}`,
      make("br", {}), `${meaning}; words below ${100 * weak}% of the strongest stay unpainted`));
  const strongest = words.find((word) => word.without !== undefined);
  const effects = words.length && signed ? [meaningOf(words[0], visible(why.unit))] : [];
  if (strongest) {
    const after = outcome(strongest.without);
    const change = after === before ? `stays at ${before}`
      : `${strongest.without < (why.probability ?? why.label) ? "falls" : "rises"} from ${before} to ${after}`;
    effects.push(`Without “${strongest.text}”, ${quantity} ${change}.`);
  }
  if (why.ignored) {
    const words = why.ignored.map((word) => `“${visible(word)}”`).join(", ");
    $("why").append(make("p", {class: "soft", id: "ignored"}, `Ignored words, which the model never sees: ${words}`));
  }
  if (effects.length) $("why").append(make("p", {id: "effect"}, effects.join(" ").trim()));
  const sides = why.pair === null ? {text: "Text"} : {text: "Text", pair: "Second text"};
  for (const [within, title] of Object.entries(sides)) {
    const letters = [...why[within]];  // the server counts characters, not UTF-16 units
    const part = (start, end) => visible(letters.slice(start, end).join(""));
    const line = make("bdi", {dir: "auto"});
    let position = 0;
    for (const {start, end, score} of spans(tokens.filter((token) => (token.in ?? "text") === within), signed)) {
      const share = most ? score / most : 0, paint = Math.abs(share) >= weak && most > 0;
      const kind = !paint ? "t" : !signed ? "t plain" : share > 0 ? "t for" : "t against";
      line.append(part(position, start), make("span", {
        class: kind, role: "button", tabindex: line.querySelector("span") ? -1 : 0, title: digits(score, signed),
        "aria-pressed": false, "data-word": `${within}:${start}:${end}`, style: `--share:${Math.abs(share).toFixed(2)}`,
      }, part(start, end)));
      position = end;
    }
    line.append(part(position));
    if (why.pair !== null) $("why").append(make("p", {class: "soft"}, title));
    $("why").append(make("p", {class: "marked", role: "group", "aria-label": `${title}: words to mask`}, line));
  }
  if (words.length) {
    const lines = words.map(({text, score, without}) =>
      [text, digits(score, signed), ...(strongest ? [without === undefined ? "" : outcome(without)] : [])]);
    const columns = [why.level, "score", ...(strongest ? [`${quantity} without it`] : [])];
    $("why").append(table(columns, lines, "The strongest words"));
  }
  $("tools").hidden = !tokens.length;
}

function ask() {
  const own = ++asked, text = $("text").value, pair = facts.pairs ? $("pair").value : null;
  const isExample = example && text === example.text && (pair ?? "") === example.pair;
  $("about").textContent = isExample ? visible(example.about) : "";
  return attempt("ask", async () => {
    if (!(text + (pair ?? "")).trim()) throw new Error("There is no text yet. Type or paste one, then try again.");
    const rows = {texts: [text], pairs: pair === null ? null : [pair]};
    const [answer] = (await post("predict", rows)).predictions;
    if (own !== asked) return;
    shown = {text, pair, answer};
    $("result").hidden = false;
    $("tools").hidden = true;
    $("why").replaceChildren(make("p", {class: "soft"}, "The explanation is computed ..."));
    masked = [];
    showPrediction(answer);
    showMasked();
    const options = {method: $("method").value, level: $("level").value, target: $("target")?.value || null};
    try {
      const [why] = (await post("explain", {...rows, ...options})).explanations;
      if (own !== asked) return;
      shown = {text: why.text, pair: why.pair, answer};  // without ignored words, which the spans do not count
      showExplanation(why);
    } catch (error) {
      if (own !== asked) return;
      $("why").replaceChildren();
      throw error;
    }
  });
}

const wordsNamed = (name) => [...$("why").querySelectorAll("[data-word]")].filter((word) => word.dataset.word === name);

function showMasked() {
  for (const word of $("why").querySelectorAll("[data-word]")) {
    word.setAttribute("aria-pressed", masked.includes(word.dataset.word));
  }
  const texts = masked.map((name) => `“${wordsNamed(name)[0].textContent}”`);
  $("masked").textContent = texts.length ? `Masked: ${texts.join(", ")}` : "";
  $("undo").hidden = $("reset").hidden = !masked.length;
}

async function mask(names) {
  const own = ++asked, before = masked;
  masked = names;
  showMasked();
  await attempt("mask", async () => {
    if (!masked.length) return showPrediction(shown.answer);
    const words = masked.map((name) => {
      const [within, start, end] = name.split(":");
      return {in: within, start: Number(start), end: Number(end)};
    });
    $("result").setAttribute("aria-busy", "true");
    try {
      const answer = await post("mask", {text: shown.text, pair: shown.pair, words});
      if (own !== asked) return;
      showPrediction(answer.after, answer.before);
      if (answer.unread.length) {
        const unread = answer.unread.map((word) => `“${visible(word)}”`).join(", ");
        throw new Error(`Beyond this run's maximum length, so masking changes nothing: ${unread}`);
      }
    } catch (error) {
      if (own === asked && !$("prediction").querySelector(".was")) masked = before;
      showMasked();
      throw error;
    } finally { $("result").removeAttribute("aria-busy"); }
  });
}

function undo(count) {
  const focused = document.activeElement;
  mask(masked.slice(0, masked.length - count));
  // The buttons are gone with the last masked word; the keyboard stays at the words.
  if (!masked.length && focused.closest("#tools")) $("why").querySelector("[data-word][tabindex='0']")?.focus();
}

const toggle = (name) => mask(masked.includes(name) ? masked.filter((other) => other !== name) : [...masked, name]);

function pressed(event) {
  const word = event.target.closest("[data-word]");
  if (!word || event.ctrlKey || event.altKey || event.metaKey) return;
  const words = [...word.closest(".marked").querySelectorAll("[data-word]")], place = words.indexOf(word);
  const [after, before] = [place + 1, place - 1];
  const places = {
    ArrowRight: after, ArrowDown: after, ArrowLeft: before, ArrowUp: before, Home: 0, End: words.length - 1,
  };
  if (event.key === "Enter" || event.key === " ") toggle(word.dataset.word);
  else if (event.key === "Escape" && masked.length) undo(masked.length);
  else if (event.key in places) {
    const next = words[places[event.key]];
    if (next) { word.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  } else return;
  event.preventDefault();
}

function table(columns, lines, name) {
  const head = make("tr", {}, ...columns.map((column) => make("th", {scope: "col"}, visible(column))));
  const body = lines.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell))));
  return make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": name},
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

// The rows that are wrong, worst first; a click on a text explains it.
function wrongRows({source, total, unit, rows}) {
  if (!total) return [make("p", {class: "soft"}, `All ${source} are right.`)];
  const lines = rows.map(({text, pair, label, prediction, error}) => {
    const button = make("button", {type: "button"}, cut(pair === null ? text : `${text} | ${pair}`) || "(empty)");
    button.addEventListener("click", () => {
      $("text").value = text;
      if (pair !== null) $("pair").value = pair;
      $("text").focus();
      ask();
    });
    return [button, cut(label, 40), cut(prediction, 40), String(error)];
  });
  let sentence = `${total} of ${source} ${total === 1 ? "is" : "are"} wrong`;
  if (facts.task_type === "regression") sentence = `The largest errors on ${source}`;
  sentence += total > rows.length ? `; the ${rows.length} worst` : "; the worst first";
  return [make("p", {class: "soft"}, `${sentence}. Click a text to explain it. ${unit}`),
    table(["text", "label", "prediction", "error"], lines, "Wrong rows")];
}

function predictFile() {
  return attempt("file", async () => {
    const file = $("upload").files[0];
    $("file-table").replaceChildren();
    if (!file) throw new Error("There is no file yet. Choose one, then try again.");
    if (file.size > bodyMb * 2 ** 20) {
      throw new Error(`The file has ${(file.size / 2 ** 20).toFixed(1)} MB; this server accepts at most ${bodyMb} MB.`
        + " Split it, or use attentune predict --input_file, which has no limit.");
    }
    const options = new URLSearchParams({name: file.name});
    for (const [name, value] of new FormData($("file-form"))) if (value.trim()) options.set(name, value.trim());
    const headers = {"Content-Type": "application/octet-stream"};
    const answer = await call(`file?${options}`, {method: "POST", body: file, headers});
    const href = URL.createObjectURL(new Blob([answer.csv], {type: "text/csv"}));
    const link = make("a", {download: "predictions.csv", href}, "Download predictions.csv");
    const few = answer.first.length < answer.rows ? `the first ${answer.first.length} of ` : "";
    $("file-table").replaceChildren(make("p", {}, link, ` (${few}${answer.rows.toLocaleString("en")} rows below)`),
      table(answer.columns, answer.first.map((cells) => cells.map((cell) => cut(cell, 80))), "Predictions"),
      ...(answer.wrong ? wrongRows(answer.wrong) : []));
  });
}

async function begin() {
  await attempt(needsKey ? "key" : "ask", async () => {
    example = await call("example");
    if (needsKey) $("key-form").hidden = true;
    if ($("text").value) return;
    $("text").value = example.text;
    if (facts.pairs) $("pair").value = example.pair;
    ask();
  });
}

const onSubmit = (id, work) => $(id)?.addEventListener("submit", (event) => { event.preventDefault(); work(); });
onSubmit("ask", ask);
onSubmit("file-form", predictFile);
onSubmit("key-form", () => { key = $("key").value.trim().replace(/[^\x21-\x7e]/g, ""); begin(); });
for (const id of ["method", "level", "target"]) $(id)?.addEventListener("change", () => $("text").value && ask());
$("why").addEventListener("click", (event) => {
  const word = event.target.closest("[data-word]");
  if (word && getSelection().isCollapsed) toggle(word.dataset.word);
});
$("why").addEventListener("keydown", pressed);
$("undo").addEventListener("click", () => undo(1));
$("reset").addEventListener("click", () => undo(masked.length));
$("errors").addEventListener("toggle", () => {
  if ($("errors").open && !$("errors-table").hasChildNodes())
    attempt("errors", async () => $("errors-table").replaceChildren(...wrongRows(await call("errors"))));
});
if (!needsKey) begin();
