// Sends what changes something once, however often its button is pressed before the next page.
"use strict";
const AGAIN = 5000; // milliseconds, after which somebody who stopped the first may send it again

document.addEventListener("submit", event => {
  const form = event.target;
  if (form.getAttribute("method") !== "post" || event.defaultPrevented) return;
  if (form.dataset.sent !== undefined) return event.preventDefault();
  form.dataset.sent = "";
  setTimeout(() => delete form.dataset.sent, AGAIN);
});
