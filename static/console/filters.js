// Gives a condition of a filter the inputs that suit its field, when another field is chosen.
import { attach } from "./combobox.js";

function inputs(condition) {
  return [...condition.querySelectorAll("select, input:not([type=hidden])")];
}

// What was entered meanwhile stays where it fits.
function keep(old, input) {
  const fits = input.matches("input") || [...input.options].some(option => option.value === old.value);
  if (old.value && fits) input.value = old.value;
}

// The chosen field stays the same element: the rest of its name may still be typed into it.
document.addEventListener("change", async ({ target: field }) => {
  const condition = field.closest("[data-condition]");
  if (!condition || !field.name.startsWith("field_")) return;
  const chosen = field.value;
  const query = new URLSearchParams({ [field.name]: chosen, n: field.name.slice("field_".length) });
  const response = await fetch(`${condition.dataset.condition}?${query}`);
  if (!response.ok || response.redirected) return; // the inputs take any value
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (field.value !== chosen || !field.isConnected) return;
  const next = page.querySelector("[data-condition]");
  const old = inputs(condition);
  const focused = old.indexOf(document.activeElement);
  inputs(next).forEach((input, n) => keep(old[n], input));
  next.querySelector(`[name=${field.name}]`).remove();
  field.removeAttribute("aria-invalid");
  while (field.nextSibling) field.nextSibling.remove();
  field.after(...next.childNodes);
  attach(condition);
  if (focused > 0) inputs(condition)[focused]?.focus();
});
