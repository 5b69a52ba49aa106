// Filters by time are in the browser's time zone; without scripts they are in UTC, as labelled.
const zone = new Intl.DateTimeFormat("en-CA", {timeZoneName: "short"})
  .formatToParts(new Date()).find(part => part.type === "timeZoneName").value;

function toLocal(text) {
  const moment = new Date(/Z$|[+-]\d\d:\d\d$/.test(text) ? text : `${text}Z`);
  if (isNaN(moment)) return null;
  return new Date(moment - moment.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

for (const input of document.querySelectorAll("input[data-utc][type=datetime-local]")) {
  const local = toLocal(input.getAttribute("value") ?? "");
  if (local !== null) input.value = local;
  input.closest("label").querySelector("[data-zone]").textContent = `(${zone})`;
  input.form.addEventListener("formdata", event => {
    if (input.value) event.formData.set(input.name, new Date(input.value).toISOString().slice(0, 16));
  });
}
