for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const key = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const numeric = body.rows[0].cells[column].dataset.sort !== undefined;
      const rows = [...body.rows].sort((one, two) => {
        const [a, b] = [key(one, column), key(two, column)];
        if (numeric && (a === "" || b === "")) return (a === "") - (b === "");
        return (numeric ? a - b : a.localeCompare(b)) * (down ? -1 : 1);
      });
      body.append(...rows);
    });
  });
}
