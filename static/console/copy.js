// Buttons with `data-copy` copy a text: that of the attribute, or of the element that it names (`#id`).
import { text } from "./texts.js";
const SHOWN = 2000; // milliseconds

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const { copy } = button.dataset;
  const source = copy.startsWith("#") && document.querySelector(copy);
  const status = button.querySelector("[role=status]");
  try {
    await navigator.clipboard.writeText(source ? source.value ?? source.textContent : copy);
    status.textContent = text("Copied");
  } catch {
    status.textContent = text("Not copied");
  }
  setTimeout(() => { status.textContent = ""; }, SHOWN);
});
