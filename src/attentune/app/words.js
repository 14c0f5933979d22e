// Masks the words of an explanation that are clicked. Gradio runs this as the body of a function, once for the element
// whose content it replaces at each explanation, with `element` and `watch`.
let masked = [];  // names of words, as in data-word, in the order in which they were masked
let shown = [];  // those of the predictions that are shown
let unmasked = [];  // the predictions of the whole text, as HTML
let requests = 0;

const all = (selector) => [...element.querySelectorAll(selector)];

function begin() {
  masked = shown = [];
  unmasked = all(".att-prediction").map((prediction) => prediction.innerHTML);
  requests += 1;
  show("");
}

function show(problem) {
  for (const word of all("[data-word]")) word.setAttribute("aria-pressed", masked.includes(word.dataset.word));
  const tools = element.querySelector(".att-tools");
  if (!tools) return;
  const texts = masked.map((name) => {
    const own = all(`.att-why:first-of-type [data-word="${name}"]`);
    const first = own.length ? own[0].closest(".att-why") : element;
    return `“${[...first.querySelectorAll(`[data-word="${name}"]`)].map((part) => part.textContent).join("")}”`;
  });
  tools.classList.toggle("active", masked.length > 0 || problem !== "");
  tools.querySelector(".att-masked").textContent = problem || (texts.length ? `Masked: ${texts.join(", ")}` : "");
}

async function predict() {
  requests += 1;
  const own = requests;
  show("");
  let predictions = unmasked, problem = "";
  if (masked.length) {
    const runs = element.querySelector(".att-runs");
    runs.setAttribute("aria-busy", "true");
    const words = masked.map((name) => {
      const [within, start, end] = name.split(":");
      return [within, Number(start), Number(end)];
    });
    try {
      const body = JSON.stringify({...JSON.parse(element.querySelector("[data-input]").dataset.input), words});
      const response = await fetch("mask", {method: "POST", headers: {"Content-Type": "application/json"}, body});
      const isJson = (response.headers.get("Content-Type") || "").includes("json");
      const answer = isJson ? await response.json() : {problem: await response.text()};
      ({predictions = [], problem = ""} = answer);
    } catch {
      problem = "The server does not answer. Is attentune app still running?";
    }
    if (own !== requests) return;  // another word has been clicked since
    runs.removeAttribute("aria-busy");
  }
  if (problem) {
    masked = shown;
    show(problem);
    return;
  }
  shown = masked;
  all(".att-prediction").forEach((box, number) => { box.innerHTML = predictions[number]; });
}

function toggle(name) {
  masked = masked.includes(name) ? masked.filter((other) => other !== name) : [...masked, name];
  predict();
}

function undo(count) {
  const focused = document.activeElement;
  masked = masked.slice(0, masked.length - count);
  predict();
  // The buttons are gone with the last masked word; the keyboard stays at the words.
  if (!masked.length && focused.closest(".att-tools")) element.querySelector("[data-word][tabindex='0']")?.focus();
}

element.addEventListener("click", (event) => {
  const word = event.target.closest("[data-word]");
  if (word && getSelection().isCollapsed) toggle(word.dataset.word);
  const action = event.target.closest("[data-do]")?.dataset.do;
  if (action) undo(action === "undo" ? 1 : masked.length);
});

element.addEventListener("keydown", (event) => {
  const word = event.target.closest("[data-word]");
  if (!word || event.ctrlKey || event.altKey || event.metaKey) return;
  const words = [...word.closest(".marked").querySelectorAll("[data-word]")];
  const place = words.indexOf(word);
  const places = {
    ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1, Home: 0, End: words.length - 1,
  };
  if (event.key === "Enter" || event.key === " ") {
    toggle(word.dataset.word);
  } else if (event.key === "Escape" && masked.length) {
    undo(masked.length);
  } else if (event.key in places) {
    const next = words[places[event.key]];
    if (next) {
      word.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
  } else {
    return;
  }
  event.preventDefault();
});

watch("value", begin);
begin();
