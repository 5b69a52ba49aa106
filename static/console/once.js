// Prevents double submits.
"use strict";
const AGAIN = 5000; // milliseconds until a stopped submit may be repeated

document.addEventListener("submit", event => {
  const form = event.target;
  if (form.getAttribute("method") !== "post" || event.defaultPrevented) return;
  if (event.submitter?.formTarget) return; // it shows something beside the form
  if (form.dataset.sent !== undefined) return event.preventDefault();
  form.dataset.sent = "";
  setTimeout(() => delete form.dataset.sent, AGAIN);
});
