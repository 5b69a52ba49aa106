// Validates each rule while it is typed.
"use strict";

const PAUSE = 300; // milliseconds after the last key
const UNKNOWN = "Validation is unavailable. The rule is checked when you save.";

async function validate(field, signal) {
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
  let controller = new AbortController();

  async function check() {
    const { signal } = controller;
    try {
      verdict.innerHTML = await validate(field, signal);
    } catch {
      if (signal.aborted) return;
      verdict.textContent = UNKNOWN;
    }
    field.setAttribute("aria-invalid", verdict.querySelector(".error") !== null);
  }

  field.addEventListener("input", () => {
    clearTimeout(timer);
    controller.abort();
    controller = new AbortController();
    timer = setTimeout(check, PAUSE);
  });
}

document.querySelectorAll("[data-check]").forEach(watch);
