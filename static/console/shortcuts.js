// Keyboard shortcuts. Those of one letter can be switched off, and rest while one types.
import { open } from "./palette.js";

const STORAGE_KEY = "console.shortcuts";
// The entries of the sidebar, by their icons.
const GOES_TO = {
  h: "home", r: "table", c: "database", w: "webhook", f: "sitemap", a: "history", u: "users", t: "users-group",
};
const GAP = 1500; // milliseconds between the two keys of a sequence
const help = document.getElementById("shortcuts");
const toggle = help?.querySelector("input");
let first = 0;

function goTo(key) {
  document.querySelector(`#menu .nav-link:has(use[href$="#${GOES_TO[key]}"])`)?.click();
}

const ACTIONS = {
  "?": () => help.showModal(),
  "/": () => document.querySelector("main [type=search], main summary")?.focus(),
  n: () => document.querySelector(".page-header a.btn-primary")?.click(),
  e: () => document.querySelector("[data-shortcut=edit]")?.click(),
};

function press(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    open();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || !toggle.checked || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, select, textarea, [contenteditable]")) return;
  const isSecond = Date.now() - first < GAP;
  first = 0;
  if (isSecond && event.key in GOES_TO) goTo(event.key);
  else if (event.key === "g") first = Date.now();
  else if (event.key in ACTIONS) {
    event.preventDefault();
    ACTIONS[event.key]();
  }
}

if (help) {
  toggle.checked = localStorage.getItem(STORAGE_KEY) !== "off";
  toggle.addEventListener("change", () => localStorage.setItem(STORAGE_KEY, toggle.checked ? "on" : "off"));
  document.getElementById("open-shortcuts").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", press);
}
