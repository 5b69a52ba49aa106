// Selects all rows of a page, and says how many are selected.
import { translate } from "./texts.js";
const form = document.getElementById("selection");
const all = document.querySelector("[data-select-all]");

function boxes() {
  return [...document.querySelectorAll("[form=selection][name=id]")];
}

function show() {
  const every = boxes();
  const count = every.filter(box => box.checked).length;
  form.querySelector("[data-selected]").textContent = count ? translate("{count} selected:", { count }) : "";
  for (const control of form.querySelectorAll("button, select")) control.hidden = !count;
  all.checked = count > 0 && count === every.length;
  all.indeterminate = count > 0 && count < every.length;
}

if (form && all) {
  all.hidden = false;
  all.addEventListener("change", () => {
    for (const box of boxes()) box.checked = all.checked;
    show();
  });
  document.addEventListener("change", event => {
    if (event.target.matches("[form=selection]")) show();
  });
  // A file leaves the page as it is, ready for the next action.
  form.addEventListener("submit", event => {
    if (event.submitter?.value === "export") setTimeout(() => delete form.dataset.sent);
  });
  new MutationObserver(show).observe(document.getElementById("records"), { childList: true, subtree: true });
  show();
}
