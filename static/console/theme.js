// Applies a theme at once, and remembers it in the cookie that the server reads.
const form = document.getElementById("theme");
const YEAR = 365 * 24 * 3600;

form?.addEventListener("submit", (event) => {
  event.preventDefault();
  const { value } = event.submitter;
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `atrium_theme=${value}; path=/; max-age=${YEAR}; samesite=lax${secure}`;
  const root = document.documentElement;
  if (value === "auto") root.removeAttribute("data-bs-theme");
  else root.dataset.bsTheme = value;
  document.querySelector("meta[name=color-scheme]").content = value === "auto" ? "light dark" : value;
  for (const button of form.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button === event.submitter));
  }
});
