// Tells moments in the zone of whoever looks; without this they stay in UTC, as the server sends them.
"use strict";
const parts = {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
  second: "2-digit", hourCycle: "h23", timeZoneName: "short",
};
const form = new Intl.DateTimeFormat("en-CA", parts);
for (const time of document.querySelectorAll("time[datetime*='T']")) {
  const moment = new Date(time.dateTime);
  if (isNaN(moment)) continue;
  const of = Object.fromEntries(form.formatToParts(moment).map(one => [one.type, one.value]));
  const seconds = /:\d\d:\d\d/.test(time.textContent) ? `:${of.second}` : "";
  time.title = time.textContent;
  time.textContent =
    `${of.year}-${of.month}-${of.day} ${of.hour}:${of.minute}${seconds} ${of.timeZoneName}`;
}
