// Buttons with `data-passkey` (`get` or `create`) use a passkey, and submit its form with the result as `assertion`.
// In an electronic signature the passkey replaces the password, and is bound to the reason.
async function fetchOptions(button) {
  const { form, dataset } = button;
  if (dataset.options) return { token: "", options: JSON.parse(dataset.options) };
  const body = new URLSearchParams({ csrf_token: form.elements.csrf_token.value });
  for (const name of ["mfa_token", "es_reason"]) if (form.elements[name]) body.set(name, form.elements[name].value);
  const answer = await fetch(dataset.url, { method: "POST", body });
  if (answer.status === 403) return null; // a sign-in that is not recent: the form says so
  if (!answer.ok || answer.redirected) throw new Error(answer.status);
  return answer.json();
}

const use = {
  get: (options) => navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(options) }),
  create: (options) =>
    navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(options) }),
};

async function submit(button) {
  const { form } = button;
  const { es_username: signer, es_reason: reason, es_password: password } = form.elements;
  if (reason && !(signer.reportValidity() && reason.reportValidity())) return;
  const found = await fetchOptions(button);
  if (found) {
    const credential = await use[button.dataset.passkey](found.options);
    form.elements.assertion.value = JSON.stringify({ token: found.token, credential: credential.toJSON() });
  }
  if (button.dataset.action) {
    form.action = button.dataset.action;
    form.noValidate = true;
  }
  if (password) password.required = false;
  form.requestSubmit(reason ? form.querySelector("[type=submit]:not([hidden])") : null);
}

const works = window.PublicKeyCredential?.parseRequestOptionsFromJSON !== undefined;

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-passkey]");
  if (!button) return;
  const error = button.nextElementSibling;
  error.hidden = true;
  try {
    if (!works) throw new DOMException("", "SecurityError");
    await submit(button);
  } catch (problem) {
    error.textContent = problem.name === "SecurityError" ? error.dataset.missing : error.dataset.failed;
    error.hidden = false;
  }
});
