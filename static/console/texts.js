// Texts of scripts in the page's language; the page has those of other languages than English (macros/shell.html).
const texts = JSON.parse(document.getElementById("texts")?.textContent ?? "{}");

// Returns a text with its `{names}` replaced.
export function translate(english, values = {}) {
  return (texts[english] ?? english).replace(/\{(\w+)\}/g, (_, name) => values[name]);
}
