// Tells Gradio which text of the tables of errors is clicked. Runs as the body of a function, with `element`, `trigger`.
element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-input]");
  if (button) trigger("click", JSON.parse(button.dataset.input));
});
