"use strict";

// Everything here is a convenience: without it the page shows the same content in its first order.

function sortable(table) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const names = new Intl.Collator(undefined, { numeric: true });
  const value = (row, column) => row.cells[column].dataset.value;

  function compare(column, numeric) {
    return numeric
      ? (one, other) => Number(value(one, column)) - Number(value(other, column))
      : (one, other) => names.compare(one.cells[column].textContent, other.cells[column].textContent);
  }

  function sort(header) {
    const descending = header.getAttribute("aria-sort") === "ascending";
    const ascending = compare(header.cellIndex, header.classList.contains("number"));
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    // From `rows`, never from what is shown: equal values keep the highest score first, whatever was sorted before.
    body.append(...[...rows].sort(descending ? (one, other) => ascending(other, one) : ascending));
  }

  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sort(header));
    header.append(button);
  }
}

function filterable(table, tools) {
  const input = tools.querySelector("input");
  const output = tools.querySelector("output");
  const plain = (text) => text.normalize("NFC").toLowerCase();
  const rows = [...table.tBodies[0].rows].map((row) => ({
    row,
    text: plain([0, 3, 4].map((column) => row.cells[column].textContent).join(" ")),
  }));

  input.addEventListener("input", () => {
    const wanted = plain(input.value.trim());
    let shown = 0;
    for (const { row, text } of rows) {
      row.hidden = !text.includes(wanted);
      shown += row.hidden ? 0 : 1;
    }
    output.textContent = wanted ? `${shown} of ${rows.length} shown` : "";
  });
  tools.hidden = false;
}

function switchable(button) {
  const switches = [...document.querySelectorAll(".view input")];
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(on));
    for (const each of switches) each.checked = on;
  });
  button.hidden = false;
}

const table = document.getElementById("images");
if (table) {
  sortable(table);
  filterable(table, document.getElementById("filter"));
}
const allHeatmaps = document.getElementById("all-heatmaps");
if (allHeatmaps) switchable(allHeatmaps);
