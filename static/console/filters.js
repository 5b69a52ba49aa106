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

document.addEventListener("change", async ({ target }) => {
  const condition = target.closest("[data-condition]");
  if (!condition || !target.name.startsWith("field_")) return;
  const query = new URLSearchParams({ [target.name]: target.value, n: target.name.slice("field_".length) });
  const response = await fetch(`${condition.dataset.condition}?${query}`);
  if (!response.ok || response.redirected || !condition.isConnected) return; // the inputs take any value
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const next = page.querySelector("[data-condition]");
  const old = inputs(condition);
  const focused = old.indexOf(document.activeElement);
  inputs(next).forEach((input, n) => keep(old[n], input));
  condition.replaceWith(next);
  attach(next);
  inputs(next)[focused]?.focus();
});
