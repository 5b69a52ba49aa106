// Validates each field with `data-check` while it is typed.
const PAUSE = 300; // milliseconds after the last key

async function validate(field, signal) {
  const body = new URLSearchParams({
    csrf_token: document.querySelector("[name=csrf_token]").value,
    text: field.value,
  });
  const answer = await fetch(field.dataset.check, { method: "POST", body, signal });
  if (!answer.ok || answer.redirected) throw new Error(answer.status);
  return answer.text();
}

export function watch(field, unavailable) {
  const verdict = document.getElementById(`${field.id}-verdict`);
  let timer;
  let controller = new AbortController();

  async function check() {
    const { signal } = controller;
    try {
      verdict.innerHTML = await validate(field, signal);
    } catch {
      if (signal.aborted) return;
      verdict.textContent = unavailable;
    }
    field.setAttribute("aria-invalid", verdict.querySelector(".error") !== null);
  }

  function schedule() {
    clearTimeout(timer);
    controller.abort();
    controller = new AbortController();
    timer = setTimeout(check, PAUSE);
  }

  field.addEventListener("input", schedule);
  if (field.value !== field.defaultValue) schedule(); // typed before this script ran
}
