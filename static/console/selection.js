// Selects all rows of a page, and says how many are selected.
import { translate } from "./texts.js";

const ROWS = "[form=selection][type=checkbox]";
const getForm = () => document.getElementById("selection");
const getAll = () => document.querySelector("[data-select-all]");
const getBoxes = () => [...document.querySelectorAll(ROWS)];

function show() {
  const form = getForm();
  const all = getAll();
  if (!form || !all) return;
  const boxes = getBoxes();
  const count = boxes.filter((box) => box.checked).length;
  const text = count ? translate("{count} selected:", { count }) : "";
  const label = form.querySelector("[data-selected]");
  if (label.textContent !== text) label.textContent = text;
  for (const control of form.querySelectorAll("button, select")) control.hidden = !count;
  all.hidden = !boxes.length;
  all.checked = count > 0 && count === boxes.length;
  all.indeterminate = count > 0 && count < boxes.length;
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-select-all]")) for (const box of getBoxes()) box.checked = event.target.checked;
  if (event.target.matches(`[data-select-all], ${ROWS}`)) show();
});
// A file leaves the page as it is, ready for the next action.
getForm()?.addEventListener("submit", (event) => {
  if (event.submitter?.value === "export") setTimeout(() => delete event.target.dataset.sent);
});
const observer = new MutationObserver(show);
for (const part of document.querySelectorAll("[data-live]")) observer.observe(part, { childList: true, subtree: true });
show();
