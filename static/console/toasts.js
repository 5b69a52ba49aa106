// Shows notices in a corner, from where they go by themselves; without scripts they stand above the page.
import { focusHeading } from "./focus.js";
import { translate } from "./texts.js";
const SECONDS = 10;
const notices = document.querySelectorAll("[data-toast]");

if (notices.length) {
  const corner = document.createElement("div");
  corner.className = "toasts";
  document.body.append(corner);
  for (const notice of notices) {
    const close = document.createElement("button");
    close.type = "button";
    close.className = "btn-close float-end ms-2";
    close.setAttribute("aria-label", translate("Close"));
    close.addEventListener("click", () => {
      notice.remove();
      focusHeading(); // the button had the focus
    });
    notice.prepend(close);
    corner.append(notice);
    // Who points at it or has the focus in it is still reading.
    const timer = setInterval(() => {
      if (notice.matches(":hover, :focus-within")) return;
      notice.remove();
      clearInterval(timer);
    }, SECONDS * 1000);
  }
}
