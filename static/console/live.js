// Refreshes the progress until the work is finished; without it the page has a reload link.
"use strict";
const PAUSE = 1500; // milliseconds

async function renew(part) {
  let shown = part;
  try {
    const answer = await fetch(location.href);
    if (answer.redirected) return; // signed out
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    shown = page.getElementById(part.id) ?? part;
    if (shown !== part) part.replaceWith(shown);
  } catch {
    // Try again next time.
  }
  watch(shown);
}

function watch(part) {
  if (part.dataset.live !== undefined) setTimeout(renew, PAUSE, part);
}

document.querySelectorAll("[data-live]").forEach(watch);
