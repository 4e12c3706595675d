"use strict";
// Tables: a heading sorts its column (missing values last, whatever the direction); a box filters rows.
function value(row, column, numeric) {
  const cell = row.cells[column];
  if (!numeric) return cell.classList.contains("missing") ? null : cell.textContent.trim().toLowerCase() || null;
  return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
}
function compare(a, b) {
  return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
}
function sort(table, heading, column) {
  const numeric = heading.classList.contains("n");
  const before = heading.getAttribute("aria-sort");
  const down = before ? before === "ascending" : numeric; // numbers: the largest first
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row, place) => ({ row, place, key: value(row, column, numeric) }));
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
    return (down ? compare(b.key, a.key) : compare(a.key, b.key)) || a.place - b.place;
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows.map((one) => one.row));
}
function filter(box, number) {
  const rows = Array.from(box.querySelectorAll("tbody tr"));
  const bar = document.createElement("div");
  bar.className = "filter";
  bar.innerHTML =
    `<label for="filter-${number}">Filter</label><input type="search" id="filter-${number}" autocomplete="off"` +
    ` placeholder="every word must occur"><output aria-live="polite"></output>`;
  const input = bar.querySelector("input");
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    bar.querySelector("output").textContent = `${shown} of ${rows.length} cells`;
  };
  input.addEventListener("input", apply);
  box.prepend(bar);
  apply();
}
for (const table of document.querySelectorAll("table.sortable")) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => sort(table, heading, column));
  });
}
document.querySelectorAll("[data-filter]").forEach(filter);
