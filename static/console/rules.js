// Says of each rule whether it is one while it is typed, as saving it would.
"use strict";

const PAUSE = 300; // milliseconds without a key
const UNKNOWN = "This could not be checked just now. Saving checks it again.";

async function ask(field, signal) {
  const body = new URLSearchParams({
    csrf_token: field.form.elements.csrf_token.value,
    rule: field.value,
  });
  const answer = await fetch(field.dataset.check, { method: "POST", body, signal });
  if (!answer.ok || answer.redirected) throw new Error(answer.status);
  return answer.text();
}

function watch(field) {
  const verdict = document.getElementById(`${field.id}-verdict`);
  let timer;
  let asked = new AbortController();

  async function check() {
    const { signal } = asked;
    try {
      verdict.innerHTML = await ask(field, signal);
    } catch {
      if (signal.aborted) return;
      verdict.textContent = UNKNOWN;
    }
    field.setAttribute("aria-invalid", verdict.querySelector(".error") !== null);
  }

  field.addEventListener("input", () => {
    clearTimeout(timer);
    asked.abort();
    asked = new AbortController();
    timer = setTimeout(check, PAUSE);
  });
}

document.querySelectorAll("[data-check]").forEach(watch);
