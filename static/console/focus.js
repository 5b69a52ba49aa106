// Keeps the focus of keyboard users: where the same page is loaded again, it returns to its control, or to the row that
// this was in; after a form that led to another page it goes to the heading.
const STORAGE_KEY = "console.focus";
let byKeyboard = true;
let hasSubmitted = false;

// The textarea stands for its editor, which comes later.
function current() {
  const active = document.activeElement;
  return active.closest(".editor")?.querySelector("textarea") ?? active;
}

// What distinguishes a control from the others on its page.
function identify(control) {
  const isPressed = control.matches("a, button, summary, [type=checkbox], [type=radio]");
  const label = isPressed && (control.ariaLabel ?? control.textContent.trim());
  return JSON.stringify([control.tagName, control.id, control.name, isPressed && control.value, label, rowOf(control)]);
}

function rowOf(control) {
  return control.closest("[data-key]")?.dataset.key;
}

function save() {
  const control = current();
  const saved = { path: location.pathname, hasSubmitted };
  if (control !== document.body) Object.assign(saved, { tag: control.tagName, id: identify(control), row: rowOf(control) });
  if (byKeyboard) sessionStorage.setItem(STORAGE_KEY, JSON.stringify(saved));
}

function restore() {
  const saved = JSON.parse(sessionStorage.getItem(STORAGE_KEY));
  sessionStorage.removeItem(STORAGE_KEY);
  if (!saved || location.hash || document.activeElement !== document.body || document.querySelector("main [autofocus]")) return;
  if (saved.path === location.pathname && saved.tag) {
    const same = [...document.querySelectorAll(saved.tag)].filter((control) => identify(control) === saved.id);
    const row = saved.row && document.querySelector(`[data-key="${CSS.escape(saved.row)}"]`);
    if ([...same, row?.querySelector("[data-edit]") ?? row?.querySelector("a")].some(focus)) return;
    focusHeading();
  } else if (saved.hasSubmitted) focusHeading();
}

function focus(control) {
  control?.focus();
  return control && document.activeElement === control;
}

export function focusHeading() {
  const heading = document.querySelector("main h1") ?? document.querySelector("main");
  heading.tabIndex = -1;
  heading.focus();
}

addEventListener("pointerdown", () => { byKeyboard = false; }, true);
addEventListener("keydown", () => { byKeyboard = true; }, true);
addEventListener("submit", ({ target }) => { hasSubmitted = target.getAttribute("method") !== "dialog"; });
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  focusHeading();
});
addEventListener("pagehide", save);
addEventListener("DOMContentLoaded", restore);
