// Shows a PDF or the beginning of a text in its preview, once that is opened. Without this script there is a link.
const UNAVAILABLE = "The preview is unavailable.";

function frame(link) {
  const shown = document.createElement("iframe");
  shown.src = link.href; // the file's own policy lets nothing in it run
  shown.title = link.title;
  link.after(shown);
}

async function text(link) {
  const shown = document.createElement("pre");
  shown.className = "text";
  shown.tabIndex = 0;
  shown.role = "region";
  shown.ariaLabel = link.title;
  link.replaceWith(shown);
  const response = await fetch(link.href).catch(() => null);
  shown.textContent = response?.ok && !response.redirected ? await response.text() : UNAVAILABLE;
}

const PREVIEWS = { frame, text };

function show({ target }) {
  const link = target.open ? target.querySelector("a[data-preview]") : null;
  if (!link) return;
  PREVIEWS[link.dataset.preview](link);
  delete link.dataset.preview; // once
}

document.addEventListener("toggle", show, true); // it does not bubble
