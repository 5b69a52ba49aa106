// What every page has: the focus, times, theme, toasts, copy buttons, the palette, shortcuts and menus.
import "./focus.js";
import "./times.js";
import "./theme.js";
import "./toasts.js";
import "./copy.js";
import "./palette.js";
import "./shortcuts.js";
import "./menus.js";

for (const part of document.querySelectorAll(".with-scripts")) part.hidden = false;
