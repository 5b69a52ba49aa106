// Dates with times are entered in the browser's time zone; without scripts in UTC, as labelled. The server gets UTC.
const zone = new Intl.DateTimeFormat().resolvedOptions().timeZone;

// As inputs have it: without a zone, and a fraction only where there is one.
const written = moment => moment.toISOString().slice(0, -1).replace(/\.000$/, "");

function toLocal(text) {
  const moment = new Date(`${text}Z`);
  return isNaN(moment) ? "" : written(new Date(moment - moment.getTimezoneOffset() * 60000));
}

for (const input of document.querySelectorAll("input[data-moment]")) {
  const stored = input.value;
  input.value = stored && toLocal(stored);
  if (stored && !input.value) { // no zone but UTC has it in years that inputs take
    input.value = stored;
    continue;
  }
  const shown = input.value;
  for (const label of input.labels) label.querySelector("[data-zone]").textContent = `(${zone})`;
  input.form.addEventListener("formdata", event => {
    const moment = new Date(input.value);
    // What nobody changed stays as it is, even in the hour that a change of clocks repeats.
    if (input.value === shown) event.formData.set(input.name, stored);
    else if (!isNaN(moment)) event.formData.set(input.name, written(moment));
  });
}
