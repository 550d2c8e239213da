// Sorts tables and filters long lists. Without it the page shows everything, in its own order.
"use strict";
const LONG = 8; // entries: a shorter list is not filtered
const UNITS = { kB: 1000, MB: 1000000, GB: 1000000000 };

function number(text) {
  const match = /^[<>≥=\s]*([-−]?(?:inf|[\d,]*\.?\d+(?:e[-+]?\d+)?))\s*([kMG]B)?/.exec(text);
  if (!match) return null;
  const digits = match[1].replaceAll(",", "").replace("−", "-").replace("inf", "Infinity");
  return Number(digits) * (UNITS[match[2]] ?? 1) - (text.startsWith("<") ? Number.EPSILON : 0);
}

// A column of numbers begins with the largest, and its cells without a number are last; equal cells keep their order.
function sort(table, place, heading) {
  const rows = [...table.tBodies[0].rows];
  const cells = new Map(rows.map(row => [row, row.cells[place].textContent.trim()]));
  const stated = [...cells.values()].filter(text => text && text !== "n/a");
  const numeric = stated.every(text => number(text) !== null);
  const key = row => (numeric ? number(cells.get(row)) : cells.get(row));
  const sign = heading.ariaSort === (numeric ? "descending" : "ascending") ? -1 : 1;
  const order = numeric ? (a, b) => b - a || 0 : (a, b) => a.localeCompare(b, "en", { numeric: true });
  rows.sort((a, b) => {
    const [first, second] = [key(a), key(b)];
    if (first === null || second === null) return (first === null) - (second === null);
    return first === second ? 0 : sign * order(first, second);
  });
  for (const each of table.tHead.rows[0].cells) each.ariaSort = null;
  heading.ariaSort = numeric === (sign > 0) ? "descending" : "ascending";
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll(".scroll table")) {
  if (!table.tHead || table.tBodies[0].rows.length < 3) continue;
  [...table.tHead.rows[0].cells].forEach((heading, place) => {
    if (!heading.textContent) return;
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sort(table, place, heading));
  });
}

// The text of an entry, without the captions of its drawing and what shows only when one points at it.
function words(entry) {
  const parts = entry.matches("figure, .text") ? entry.querySelectorAll("h3, h4, th, .about, .before, .t") : [entry];
  return [...parts].map(each => (each.matches(".t") ? each.firstChild.data : each.textContent)).join("").toLowerCase();
}

const lists = [...document.querySelectorAll(".scroll tbody:has(a), .plots, .findings, .passages")].filter(
  list => list.children.length >= LONG,
);
const entries = lists.flatMap(list => [...list.children]).map(entry => [entry, words(entry)]);
if (entries.length) {
  const [label, field, count] = ["label", "input", "output"].map(name => document.createElement(name));
  field.type = "search";
  field.placeholder = "a name, cluster or token";
  label.append("Show only", field);
  label.className = "filter";
  label.append(count);
  document.querySelector("main > section").before(label);
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    let shown = 0;
    for (const [entry, text] of entries) {
      entry.hidden = !text.includes(wanted);
      shown += !entry.hidden;
      if (wanted && !entry.hidden) for (let at = entry.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
    }
    count.textContent = wanted ? `${shown} of ${entries.length} entries` : "";
  });
}
