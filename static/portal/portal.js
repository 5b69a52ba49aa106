// What every page of a portal has.
import "../console/focus.js";
import "../console/times.js";
import "../console/toasts.js";
import "../console/copy.js";
import "../console/menus.js";

for (const part of document.querySelectorAll(".with-scripts")) part.hidden = false;
