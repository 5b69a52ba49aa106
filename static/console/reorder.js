// Moves rows by dragging their handle, beside the buttons that do the same. The form's `order` has
// the rows as shown.
const EDGE = 60, STEP = 15; // near the edges of the window, the page scrolls
const form = document.querySelector("[data-reorder]"); // pages with this script have one
const rows = () => [...form.querySelectorAll("[data-row]:not(.spare)")];
let dragged = null;

function moveDragged(y) {
  if (y < EDGE) scrollBy(0, -STEP);
  else if (y > innerHeight - EDGE) scrollBy(0, STEP);
  const before = rows().find(row => {
    const { top, height } = row.getBoundingClientRect();
    return row !== dragged && y < top + height / 2;
  });
  const last = rows().filter(row => row !== dragged).at(-1);
  if (before) {
    if (dragged.nextElementSibling !== before) before.before(dragged);
  } else if (last && last.nextElementSibling !== dragged) {
    last.after(dragged);
  }
}

function drop() {
  dragged.classList.remove("dragged");
  dragged = null;
  form.elements.order.value = rows().map(row => row.dataset.row).join(",");
  for (const [direction, edge] of [["up", 0], ["down", -1]]) {
    const buttons = [...form.querySelectorAll(`.moves [id^="${direction}-"]`)];
    for (const button of buttons) button.disabled = button === buttons.at(edge);
  }
}

for (const row of rows()) {
  if (rows().length === 1) break; // there is nothing to reorder
  const handle = document.createElement("span");
  Object.assign(handle, { className: "handle", textContent: "⠿", ariaHidden: "true" });
  row.prepend(handle);
  handle.addEventListener("pointerdown", event => {
    if (event.button) return;
    event.preventDefault(); // nothing is selected
    dragged = row;
    row.classList.add("dragged");
  });
}
// On the document: a moved element loses the pointer that it has captured.
document.addEventListener("pointermove", event => {
  if (dragged) moveDragged(event.clientY);
});
for (const type of ["pointerup", "pointercancel"]) {
  document.addEventListener(type, () => {
    if (dragged) drop();
  });
}
