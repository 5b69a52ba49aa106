// Shows times as what has passed since, or for older ones and those to come in the browser's time zone; the exact time is the title, or the text where `data-exact` asks for it (as `minutes`, without seconds), without the day where `data-clock` does.
// Without scripts they stay in UTC, as the server sends them.
import { translate } from "./texts.js";
const parts = {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
  second: "2-digit", hourCycle: "h23", timeZoneName: "short",
};
const format = new Intl.DateTimeFormat("en-CA", parts);
const relative = new Intl.RelativeTimeFormat(document.documentElement.lang, { numeric: "auto" });
const UNITS = [["hour", 3600], ["minute", 60]];
const RELATIVE_DAYS = 7, DAY = 86400, SOON = 3600; // seconds
const REFRESH = 30000; // milliseconds
const MAX_SKEW = 2; // seconds between the clocks of server and browser

const startOfDay = (moment) => new Date(moment.getFullYear(), moment.getMonth(), moment.getDate());

// Days of the calendar: 47 hours ago is not yesterday. Those of 23 and 25 hours count as one, too.
const daysFrom = (moment) => Math.round((startOfDay(moment) - startOfDay(new Date())) / (DAY * 1000));

function since(moment) {
  const seconds = (moment - Date.now()) / 1000;
  if (seconds >= SOON || seconds <= -RELATIVE_DAYS * DAY) return null;
  const days = seconds <= -DAY ? daysFrom(moment) : 0;
  if (days) return relative.format(days, "day");
  const [unit, length] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
  if (unit === "second") return seconds > MAX_SKEW ? translate("within a minute") : translate("just now");
  return relative.format(Math.trunc(seconds / length), unit);
}

function exact(moment, seconds) {
  const values = Object.fromEntries(format.formatToParts(moment).map((part) => [part.type, part.value]));
  const clock = `${values.hour}:${values.minute}${seconds ? `:${values.second}` : ""}`;
  return `${values.year}-${values.month}-${values.day} ${clock} ${values.timeZoneName}`;
}

export function localizeTimes(page) {
  for (const time of page.querySelectorAll("time[datetime*='T']")) {
    const moment = new Date(time.dateTime);
    if (isNaN(moment)) continue;
    time.title ||= `${exact(moment, true)} (${time.textContent.trim()})`;
    const isClock = "clock" in time.dataset;
    const isWhole = isClock || "exact" in time.dataset;
    const text = (!isWhole && since(moment)) || exact(moment, isWhole && time.dataset.exact !== "minutes");
    const shown = isClock ? text.split(" ")[1] : text;
    if (time.textContent !== shown) time.textContent = shown;
  }
}

localizeTimes(document);
setInterval(localizeTimes, REFRESH, document);
