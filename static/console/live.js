// Keeps the parts of a page with `data-live` up to date: fetches the page again when a stream tells of changes
// (`data-stream`), or every few seconds (`data-refresh`), and patches them. `#live` in the page says which.
import { patch } from "./patch.js";
import { localizeTimes } from "./times.js";
import { translate } from "./texts.js";

const REFRESH_GAP = 1000; // milliseconds, between two fetches of the page
const GAP_FACTOR = 4; // the gap after a slow fetch, in durations of the fetch
const RETRY = { first: 1000, longest: 30000 };
const SILENCE = 40000; // after which a stream is broken: it has a heartbeat every 15 seconds
const ANNOUNCE_GAP = 10000;
const MARKED = 2000;
const STORAGE_KEY = "console.live";

class Stopped extends Error {}

const live = document.getElementById("live");
const toggle = live?.querySelector("[role=switch]");
let settings = live?.dataset; // those of the newest copy of the page
let stream = null;
let request = null; // the AbortController of the request in flight
let timer;
let silence; // the timer that ends a silent stream
let failures = 0;
let isStale = false;
let refreshedAt = Date.now();
let refreshGap = REFRESH_GAP;
let stopReason = "";
let announcedAt = 0;
let unannounced = 0;

function isActive() {
  return toggle.checked && !document.hidden && !stopReason;
}

// Starts, pauses or resumes, as the switch and the tab's visibility say. A hidden tab has no stream: browsers share six
// connections among all tabs of a host.
function update() {
  failures = 0;
  if (!isActive()) {
    request?.abort();
    disconnect();
  }
  schedule();
}

function readSwitch() {
  toggle.checked = localStorage.getItem(STORAGE_KEY) !== "paused";
  update();
}

// Plans the next request, unless one is in flight.
function schedule() {
  clearTimeout(timer);
  show();
  if (request || !isActive()) return;
  const at = nextRequest();
  if (at !== null) timer = setTimeout(work, Math.max(at - Date.now(), 0));
}

function nextRequest() {
  if (failures) {
    const pause = Math.min(RETRY.first * 2 ** (failures - 1), RETRY.longest);
    return Date.now() + pause * (0.5 + Math.random() / 2);
  }
  if (isStale) return refreshedAt + refreshGap;
  if (settings.refresh) return refreshedAt + settings.refresh * 1000;
  return settings.stream && !stream ? Date.now() : null;
}

async function work() {
  request = new AbortController();
  const { signal } = request;
  try {
    if (isStale || settings.refresh) await refresh(signal);
    if (settings.stream && !stream) await connect(signal);
    else failures = 0;
  } catch (error) {
    isStale = true;
    disconnect();
    if (error instanceof Stopped) stop(error.message);
    else if (!signal.aborted) failures += 1;
  }
  request = null;
  schedule();
}

async function refresh(signal) {
  const startedAt = Date.now();
  isStale = false;
  // The header keeps notices for the page that the user opens next.
  const response = await fetch(location.href, { headers: { "X-Requested-With": "XMLHttpRequest" }, signal });
  check(response);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  refreshedAt = Date.now();
  refreshGap = Math.max(REFRESH_GAP, GAP_FACTOR * (refreshedAt - startedAt));
  // Both at the same moment: a row has not changed because time has passed.
  localizeTimes(document);
  localizeTimes(page);
  settings = page.getElementById("live")?.dataset ?? {};
  live.hidden = !settings.stream && !settings.refresh;
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = page.getElementById(part.id);
    if (next) mark(patch(part, next));
  }
}

async function connect(signal) {
  const body = new URLSearchParams({ csrf_token: live.querySelector("[name=csrf_token]").value });
  const response = await fetch(settings.tickets, { method: "POST", body, signal });
  check(response);
  const { ticket } = await response.json();
  const query = new URLSearchParams({ ticket, since: settings.since });
  const source = new EventSource(`${settings.stream}&${query}`);
  stream = source;
  await new Promise((resolve, reject) => {
    signal.onabort = reject;
    source.onopen = resolve;
    source.onerror = reject;
  });
  expectHeartbeat();
  source.onerror = reconnect; // by itself, it would send the used ticket again
  source.onmessage = ({ lastEventId }) => {
    expectHeartbeat();
    failures = 0;
    if (Number(lastEventId) <= Number(settings.since)) return; // the page shows it already
    isStale = true;
    schedule();
  };
  source.addEventListener("heartbeat", () => { expectHeartbeat(); failures = 0; });
  source.addEventListener("reset", () => { isStale = true; schedule(); });
  source.addEventListener("expired", () => { disconnect(); schedule(); });
}

function reconnect() {
  disconnect();
  isStale = true;
  failures += 1;
  schedule();
}

function expectHeartbeat() {
  clearTimeout(silence);
  silence = setTimeout(reconnect, SILENCE);
}

function disconnect() {
  clearTimeout(silence);
  stream?.close();
  stream = null;
}

function check(response) {
  if (response.redirected || response.status === 401) throw new Stopped(translate("Signed out. Reload the page to sign in."));
  if (response.ok) return;
  if (response.status < 500 && response.status !== 429) throw new Stopped(translate("No longer available. Reload the page."));
  throw new Error(response.status);
}

function stop(reason) {
  stopReason = reason;
  toggle.disabled = true;
  live.querySelector("[aria-live]").textContent = reason;
}

function show() {
  const state = live.querySelector(".state");
  let shown = [translate("live"), "good"];
  if (stopReason) shown = [stopReason, "bad"];
  else if (!toggle.checked) shown = [translate("paused"), ""];
  else if (failures && stream?.readyState !== EventSource.OPEN) shown = [translate("reconnecting"), "open"];
  if (state.textContent !== shown[0]) state.textContent = shown[0];
  state.className = `state ${shown[1]}`;
}

// Marks changed rows for a moment, and announces their number.
function mark({ changed, removed }) {
  for (const row of changed) {
    row.dataset.changed = "";
    setTimeout(() => delete row.dataset.changed, MARKED);
  }
  if (!unannounced) setTimeout(announce, Math.max(announcedAt + ANNOUNCE_GAP - Date.now(), 0));
  unannounced += Math.max(changed.length, removed);
}

function announce() {
  if (!unannounced) return;
  live.querySelector("[aria-live]").textContent = translate(unannounced === 1 ? "{count} row changed." : "{count} rows changed.", { count: unannounced });
  announcedAt = Date.now();
  unannounced = 0;
}

if (live) {
  live.hidden = false;
  toggle.addEventListener("change", () => {
    localStorage.setItem(STORAGE_KEY, toggle.checked ? "live" : "paused");
    update();
  });
  addEventListener("storage", readSwitch); // of another tab
  document.addEventListener("visibilitychange", update);
  readSwitch();
}
