// Asks before a form with unsaved changes is left.
const form = document.querySelector("form[data-unsaved]");
let hasChanged = form.dataset.unsaved === "true";
form.addEventListener("input", () => { hasChanged = true; });
form.addEventListener("submit", () => { hasChanged = false; });
addEventListener("beforeunload", event => { if (hasChanged) event.preventDefault(); });
