"use strict";
// Sorts every table marked data-sortable and filters the ledger. No library, no request.

function cellKey(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
}

function sortTable(header) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const descending = header.getAttribute("aria-sort") !== "descending";
  const way = descending ? -1 : 1;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    const [x, y] = [cellKey(a, column), cellKey(b, column)];
    return way * (typeof x === "number" ? x - y : x.localeCompare(y));
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  table.tBodies[0].append(...rows);
}

function filterLedger() {
  const words = document.getElementById("ledger-text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const homes = new Set();
  for (const box of document.querySelectorAll("#ledger-homes input")) if (box.checked) homes.add(box.value);
  const rows = document.querySelectorAll("#ledger-table tbody tr");
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !(homes.has(row.cells[0].textContent) && words.every((word) => text.includes(word)));
    shown += row.hidden ? 0 : 1;
  }
  document.getElementById("ledger-count").textContent = `${shown} of ${rows.length} edges shown`;
}

for (const button of document.querySelectorAll("table[data-sortable] th button")) {
  button.addEventListener("click", () => sortTable(button.closest("th")));
}
document.getElementById("ledger-text").addEventListener("input", filterLedger);
document.getElementById("ledger-homes").addEventListener("change", filterLedger);
filterLedger();
