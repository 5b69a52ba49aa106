// Opens a row of a table as a form with the focus on the cell that was clicked; Escape closes it.
const PLACE = "console.rows.scroll"; // where the page was scrolled to

function follow(url) {
  sessionStorage.setItem(PLACE, scrollY);
  location.assign(url);
}

addEventListener("click", event => {
  const cell = event.target.closest("td[data-label]");
  const link = cell?.closest("tr").querySelector("[data-edit]");
  if (!link || event.target.closest("a, button, input, select, textarea, details")) return;
  if (getSelection().toString()) return; // somebody copies a value
  const url = new URL(link.href);
  url.searchParams.set("focus", cell.dataset.label);
  follow(url);
});

const editing = document.querySelector(".editing");
if (sessionStorage.getItem(PLACE) !== null) {
  scrollTo(0, sessionStorage.getItem(PLACE));
  sessionStorage.removeItem(PLACE);
}
if (editing) {
  const name = new URLSearchParams(location.search).get("focus");
  const inputs = [...editing.querySelectorAll("tbody :is(input, select, textarea):not([form], [type=hidden])")];
  const wrong = inputs.find(input => input.ariaInvalid === "true");
  const input = wrong ?? inputs.find(one => one.name === `f_${name}`) ?? inputs[0];
  input?.focus({ preventScroll: true });
  input?.select?.();
  editing.addEventListener("submit", () => sessionStorage.setItem(PLACE, scrollY));
  addEventListener("keydown", event => {
    if (event.key === "Escape") follow(editing.querySelector("[data-close]").href);
  });
  // In a textarea, too, Enter saves; with Shift it begins a line.
  editing.addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || !event.target.matches("textarea")) return;
    event.preventDefault();
    editing.requestSubmit();
  });
}
