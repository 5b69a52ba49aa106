// Closes menus (`details.menu`), and what asks in the head of a page, by Escape and by a click elsewhere.
const OPEN = "details.menu[open], .page-header .confirm[open]";

function close(menu) {
  if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
  menu.open = false;
}

document.addEventListener("click", ({ target }) => {
  for (const menu of document.querySelectorAll(OPEN)) if (!menu.contains(target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented) return;
  for (const menu of document.querySelectorAll(OPEN)) close(menu);
});
