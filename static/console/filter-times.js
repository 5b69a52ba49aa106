// Filters by time are in the browser's time zone; without scripts they are in UTC, as labelled. The server gets UTC.
const zone = new Intl.DateTimeFormat("en-CA", {timeZoneName: "short"})
  .formatToParts(new Date()).find(part => part.type === "timeZoneName").value;
const toUtc = moment => moment.toISOString().slice(0, 16);

function toLocal(text) {
  const moment = new Date(/Z$|[+-]\d\d:\d\d$/.test(text) ? text : `${text}Z`);
  if (isNaN(moment)) return null;
  return new Date(moment - moment.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

// The start of the first of the last days, today included.
function startOf(days) {
  const today = new Date();
  return new Date(today.getFullYear(), today.getMonth(), today.getDate() - days + 1);
}

for (const input of document.querySelectorAll("input[data-utc]:not([aria-invalid])")) {
  const local = toLocal(input.getAttribute("value") ?? "");
  input.type = "datetime-local";
  if (local !== null) input.value = local;
  input.closest("label").querySelector("[data-zone]").textContent = `(${zone})`;
  input.form.addEventListener("formdata", event => {
    if (input.value) event.formData.set(input.name, toUtc(new Date(input.value)));
  });
}

for (const button of document.querySelectorAll(".ranges button[name=days]")) {
  const { from_date: from, to_date: to } = button.form.elements;
  const start = button.value === "all" ? null : startOf(Number(button.value));
  const isStart = start ? new Date(from.value).getTime() === start.getTime() : !from.value;
  const isChosen = isStart && !to.value;
  // The button says it all.
  if (isChosen) button.form.querySelector(".fold[data-range]")?.removeAttribute("open");
  if (isChosen) button.setAttribute("aria-pressed", "true");
  else button.removeAttribute("aria-pressed");
  button.form.addEventListener("formdata", event => {
    if (event.formData.get("days") !== button.value) return;
    event.formData.delete("days");
    event.formData.delete("to_date");
    if (start) event.formData.set("from_date", toUtc(start));
    else event.formData.delete("from_date");
  });
}
