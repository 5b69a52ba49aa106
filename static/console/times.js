// Shows times in the browser's time zone; without it they stay in UTC, as the server sends them.
const parts = {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
  second: "2-digit", hourCycle: "h23", timeZoneName: "short",
};
const format = new Intl.DateTimeFormat("en-CA", parts);

export function localizeTimes(page) {
  for (const time of page.querySelectorAll("time[datetime*='T']")) {
    const moment = new Date(time.dateTime);
    if (isNaN(moment)) continue;
    const values = Object.fromEntries(format.formatToParts(moment).map(part => [part.type, part.value]));
    const seconds = /:\d\d:\d\d/.test(time.textContent) ? `:${values.second}` : "";
    time.title = time.textContent;
    time.textContent =
      `${values.year}-${values.month}-${values.day} ${values.hour}:${values.minute}${seconds} ${values.timeZoneName}`;
  }
}

localizeTimes(document);
