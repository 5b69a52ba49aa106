// What hosted pages have: the focus, times, copy buttons, passkeys, and forms that are sent once.
import "../console/focus.js";
import "../console/times.js";
import "../console/copy.js";
import "../console/passkeys.js";
import "../console/once.js";

for (const part of document.querySelectorAll(".with-scripts")) part.hidden = false;
