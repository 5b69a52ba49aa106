// Ticks all boxes of a group, or none.
document.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-tick]");
  if (!button) return;
  for (const box of button.closest("fieldset").querySelectorAll("[type=checkbox]")) {
    box.checked = button.dataset.tick === "all";
  }
});
