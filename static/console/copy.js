// Buttons with `data-copy` copy a text: that of the attribute, or of the element that it names (`#id`).
import { translate } from "./texts.js";
const SHOWN = 2000; // milliseconds

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const { copy } = button.dataset;
  const source = copy.startsWith("#") && document.querySelector(copy);
  const status = button.querySelector("[role=status]");
  try {
    await navigator.clipboard.writeText(source ? source.value ?? source.textContent : copy);
    status.textContent = translate("Copied");
  } catch {
    status.textContent = translate("Not copied");
  }
  setTimeout(() => { status.textContent = ""; }, SHOWN);
});
