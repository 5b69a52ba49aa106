// The command palette: goes to a page of the navigation, creates, or opens what the search finds.
import { translate } from "./texts.js";
const palette = document.getElementById("palette");
const input = palette?.querySelector("input");
const list = palette?.querySelector("[role=listbox]");
const status = palette?.querySelector("[role=status]");
const PAUSE = 200; // milliseconds between the last key and the search
let timer;
let request = null;
let hits = [];
let selected = 0;

function pages() {
  const links = document.querySelectorAll("#menu .nav-link, .page-header .btn-primary[href], #user a, #account-switcher a");
  return [...links].map((link) => ({ name: link.textContent.trim(), note: "", url: link.href }));
}

function matching(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return pages().filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
}

function show(found) {
  hits = found;
  selected = 0;
  list.replaceChildren(...hits.map((hit, index) => {
    const option = document.createElement("li");
    option.className = "list-group-item border-0";
    option.id = `palette-${index}`;
    option.setAttribute("role", "option");
    option.append(hit.name);
    if (hit.note) {
      const note = document.createElement("span");
      note.className = "text-secondary ms-2";
      note.textContent = hit.note;
      option.append(note);
    }
    option.addEventListener("click", () => { location.href = hit.url; });
    return option;
  }));
  select(0);
}

function select(index) {
  selected = Math.max(0, Math.min(index, hits.length - 1));
  [...list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === selected)));
  if (!hits.length) return input.removeAttribute("aria-activedescendant");
  input.setAttribute("aria-activedescendant", `palette-${selected}`);
  list.children[selected].scrollIntoView({ block: "nearest" });
}

async function search(text) {
  request?.abort();
  request = new AbortController();
  const { signal } = request;
  try {
    const address = `${palette.dataset.search}?${new URLSearchParams({ search: text })}`;
    const response = await fetch(address, { headers: { "X-Requested-With": "XMLHttpRequest" }, signal });
    if (!response.ok || response.redirected) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const found = [...page.querySelectorAll("main section")].flatMap((section) =>
      [...section.querySelectorAll("li > a")].map((link) => ({
        name: link.textContent,
        note: section.getAttribute("aria-label"),
        url: link.href,
      })));
    show([...matching(text), ...found]);
    status.textContent = translate(hits.length === 1 ? "{count} result" : "{count} results", { count: hits.length });
  } catch (error) {
    if (error.name !== "AbortError") status.textContent = translate("The search failed.");
  }
}

export function open() {
  if (!palette || palette.open) return;
  palette.showModal();
  input.select();
  show(matching(input.value));
}

if (palette) {
  document.getElementById("open-search").addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open();
  });
  input.addEventListener("input", () => {
    const text = input.value.trim();
    show(matching(text));
    clearTimeout(timer);
    if (text.length > 1) timer = setTimeout(search, PAUSE, text);
  });
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) select(selected + step);
    else if (event.key === "Enter" && hits.length) location.href = hits[selected].url;
    else return;
    event.preventDefault();
  });
  palette.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
}
