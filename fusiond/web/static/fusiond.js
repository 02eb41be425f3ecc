"use strict";
// Tables that sort and filter, and pages that stay up to date. Everything is readable without it.

function value(cell) {
  const text = cell ? cell.textContent.trim() : "";
  const number = parseFloat(text.replace(/x$/, ""));
  return text !== "" && !Number.isNaN(number) && /^[-+.\d]/.test(text) ? number : text.toLowerCase();
}

function before(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;  // what has a number comes before what has none
}

function sort(table, column, ascending) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows).map((row) => [value(row.cells[column]), row]);
  rows.sort((a, b) => (ascending ? before(a[0], b[0]) : before(b[0], a[0])));
  body.append(...rows.map((each) => each[1]));
}

function prepare(root) {
  for (const table of root.querySelectorAll("table.sortable")) {
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      head.setAttribute("aria-sort", "none");
      head.tabIndex = 0;
      const turn = () => {
        const ascending = head.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        sort(table, column, ascending);
      };
      head.addEventListener("click", turn);
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); turn(); }
      });
    });
  }
}

function filter(input) {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.getElementById(input.dataset.filters).tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
}

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const now = page.querySelector(`[data-live="${part.dataset.live}"]`);
      const busy = part.contains(document.activeElement);  // nobody's focus is taken away
      if (now && !busy && now.innerHTML !== part.dataset.was) {
        part.dataset.was = now.innerHTML;
        part.innerHTML = now.innerHTML;
        prepare(part);
      }
    }
    if (!page.body.dataset.refresh) location.reload();
  } catch (problem) { /* the daemon is away: what is shown stays */ }
}

prepare(document);
for (const input of document.querySelectorAll("input[data-filters]")) {
  input.addEventListener("input", () => filter(input));
}
if (document.body.dataset.refresh) setInterval(refresh, 1000 * Number(document.body.dataset.refresh));
