"use strict";
// Tables that sort and filter, and pages that stay up to date. Everything is readable without it.

function value(cell) {
  const text = cell ? cell.textContent.trim().replaceAll(",", "") : "";
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

function label(rows, table) {  // a card for each row, on a narrow screen, names its values
  const names = Array.from(table.tHead ? table.tHead.rows[0].cells : []).map((each) => each.textContent);
  for (const row of rows) names.forEach((name, column) => { if (row.cells[column]) row.cells[column].dataset.label = name; });
}

function prepare(root) {
  for (const table of root.querySelectorAll("table")) label(table.tBodies[0].rows, table);
  for (const table of root.querySelectorAll("table.sortable")) {
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      const button = document.createElement("button");  // what a keyboard reaches and a screen reader says
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const ascending = head.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        sort(table, column, ascending);
      });
    });
  }
}

function filter(input) {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const body = document.getElementById(input.dataset.filters).tBodies[0];
  let shown = 0;
  for (const row of body.rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  document.getElementById(input.dataset.counts).textContent = `${shown} of ${body.rows.length}`;
}

function address() {  // of what has changed: trials that are shown already are not sent again
  const here = new URL(location.href);
  const rows = document.querySelectorAll("[data-grows] tr[data-number]");
  let last = -1;
  for (const row of rows) last = Math.max(last, Number(row.dataset.number));
  here.searchParams.set("after", String(last));
  return here;
}

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(address(), { headers: { accept: "text/html" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const now = page.querySelector(`[data-live="${part.dataset.live}"]`);
      const busy = part.contains(document.activeElement);  // nobody's focus is taken away
      if (now && !busy && now.innerHTML !== part.dataset.was) {
        const open = Array.from(part.querySelectorAll("details[open][id]"), (each) => each.id);
        part.dataset.was = now.innerHTML;
        part.innerHTML = now.innerHTML;
        for (const id of open) document.getElementById(id)?.setAttribute("open", "");
        prepare(part);
      }
    }
    for (const body of document.querySelectorAll("[data-grows]")) {
      const more = page.querySelector(`[data-grows="${body.dataset.grows}"]`);
      if (more && more.dataset.columns !== body.dataset.columns) {
        if (!document.activeElement.matches("input")) location.reload();  // another knob varies now
      } else if (more && more.rows.length) {
        body.append(...more.rows);
        label(body.rows, body.parentElement);
        for (const input of document.querySelectorAll("input[data-filters]")) filter(input);
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
