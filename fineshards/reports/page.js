"use strict";
// The pages are complete without this: it sorts tables, shows what bars and tokens say, and copies.

// Tables with the class "sortable": a button in each heading.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    if (heading.classList.contains("bar")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const numeric = heading.classList.contains("number");
      const key = (row) => {
        const text = row.cells[column].textContent.trim();
        return numeric ? parseFloat(text.replaceAll(",", "")) : text;
      };
      const order = (a, b) =>
        numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
      // "–" is not a number, and comes last in either order.
      const last = (a, b) => Number.isNaN(a) - Number.isNaN(b);
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => last(a, b) || (ascending ? order(a, b) : order(b, a)) || 0);
      body.append(...rows.map(([, row]) => row));
    });
  });
}

// Groups with data-walk: one stop of the Tab key, arrow keys within, and a bubble. A group is HTML,
// because Chromium lets the Tab key stop at a part of an SVG that listens for focus.
const bubble = document.createElement("div");
bubble.id = "bubble";
bubble.setAttribute("role", "tooltip");
bubble.hidden = true;
document.body.append(bubble);

let shown = null;

function show(element) {
  shown = element;
  bubble.textContent = element.dataset.says;
  bubble.hidden = false;
  const box = element.getBoundingClientRect();
  const left = box.left + box.width / 2 - bubble.offsetWidth / 2;
  const widest = document.documentElement.clientWidth - bubble.offsetWidth - 8;
  bubble.style.left = `${Math.max(8, Math.min(left, widest))}px`;
  const above = box.top - bubble.offsetHeight - 8;
  bubble.style.top = `${above > 8 ? above : box.bottom + 8}px`;
}

function hide() {
  shown = null;
  bubble.hidden = true;
}

for (const group of document.querySelectorAll("[data-walk]")) {
  const stops = [...group.querySelectorAll("[data-says]")];
  stops.forEach((stop, number) => stop.setAttribute("tabindex", number ? "-1" : "0"));
  const stopOf = (event) => event.target.closest("[data-says]");
  group.addEventListener("pointerover", (event) => stopOf(event) && show(stopOf(event)));
  group.addEventListener("pointerleave", hide);
  group.addEventListener("focusin", (event) => stopOf(event) && show(stopOf(event)));
  group.addEventListener("focusout", hide);
  group.addEventListener("keydown", (event) => {
    const here = stops.indexOf(stopOf(event));
    const to = {
      ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1,
      Home: 0, End: stops.length - 1,
    }[event.key];
    if (event.key === "Escape") hide();
    if (here < 0 || to === undefined || stops[to] === undefined) return;
    event.preventDefault();
    stops[here].setAttribute("tabindex", "-1");
    stops[to].setAttribute("tabindex", "0");
    stops[to].focus();
  });
}
// A bubble goes with what has the focus, which may have scrolled into view, and not with the pointer.
addEventListener("scroll", () => (shown && shown === document.activeElement ? show(shown) : hide()), {
  passive: true,
});

// A button on each snippet, where the browser lets a page copy.
if (navigator.clipboard) {
  for (const snippet of document.querySelectorAll(".snippet")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(snippet.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    snippet.append(button);
  }
}

// What is folded is printed too.
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
});
