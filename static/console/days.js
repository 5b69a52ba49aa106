// Groups changes by the days of the browser's time zone; without scripts the days are those of UTC.
const language = document.documentElement.lang;
const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto" });
const full = new Intl.DateTimeFormat(language, { dateStyle: "full" });
const startOfDay = (moment) => new Date(moment.getFullYear(), moment.getMonth(), moment.getDate());

function nameOf(day) {
  const ago = Math.round((startOfDay(new Date()) - day) / 86400000); // days of 23 and 25 hours, too
  if (ago !== 0 && ago !== 1) return full.format(day);
  const word = relative.format(-ago, "day");
  return word.charAt(0).toLocaleUpperCase(language) + word.slice(1);
}

const headings = document.querySelectorAll("[data-day]");
let last = null;
for (const change of document.querySelectorAll("[data-of-day]")) {
  const day = startOfDay(new Date(change.querySelector("header time, td > time").dateTime));
  if (day.getTime() === last?.getTime()) continue;
  const heading = headings[0].cloneNode(true);
  (heading.querySelector("th") ?? heading).textContent = nameOf(day);
  change.before(heading);
  last = day;
}
for (const heading of headings) heading.remove();
