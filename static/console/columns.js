// Resizes the columns of a table by pointer and keyboard; a double click or Enter resets them all. The widths are in the
// address of the list, and so in all links from here and back, and in the view that is saved.
const STEP = 16; // pixels, for each press of a key
const WIDTHS = { // by key; null resets
  ArrowLeft: handle => widthOf(handle) - STEP,
  ArrowRight: handle => widthOf(handle) + STEP,
  Home: handle => handle.ariaValueMin,
  End: handle => handle.ariaValueMax,
  Enter: () => null,
};

function indexOf(handle) {
  return handle.closest("th").cellIndex;
}

function widthOf(handle) {
  return handle.closest("th").offsetWidth;
}

function columnsOf(table) {
  return [...table.querySelectorAll("col")];
}

// From the first change on, all columns have widths: those that the browser has chosen.
function resize(handle, width) {
  const table = handle.closest("table");
  if (width === null) return reset(table);
  if (!table.classList.contains("fixed")) {
    const heads = [...table.tHead.rows[0].cells].map(head => head.offsetWidth);
    columnsOf(table).forEach((column, n) => { if (!column.className) column.width = heads[n]; });
    table.classList.add("fixed");
  }
  const bounded = Math.min(Math.max(Math.round(width), handle.ariaValueMin), handle.ariaValueMax);
  columnsOf(table)[indexOf(handle)].width = bounded;
  handle.ariaValueNow = bounded;
}

function reset(table) {
  table.classList.remove("fixed");
  for (const column of columnsOf(table)) column.removeAttribute("width");
}

// Sets the widths of the list in the address, in links and forms.
function remember(table) {
  const columns = columnsOf(table);
  const shown = [...table.querySelectorAll("[data-resize]")].map(one => [one.dataset.resize, columns[indexOf(one)].width]);
  const widths = shown.filter(([, width]) => width).map(one => one.join(":"));
  const here = new URL(location);
  setWidths(here.searchParams, widths);
  history.replaceState(history.state, "", here);
  for (const element of document.querySelectorAll("main :is(a[href], form[action])")) setLink(element, widths);
  const filter = document.getElementById("list-filter");
  for (const input of filter.querySelectorAll("[name=width]")) input.remove();
  for (const value of widths) {
    filter.append(Object.assign(document.createElement("input"), { type: "hidden", name: "width", value }));
  }
}

function setWidths(params, widths) {
  params.delete("width");
  for (const one of widths) params.append("width", one);
}

// Other views stay as they are. Pages behind the list carry its address.
function setLink(element, widths) {
  if (element.closest(".views nav")) return;
  const attribute = element.matches("a") ? "href" : "action";
  const url = new URL(element.getAttribute(attribute), location);
  const list = location.pathname;
  if (url.searchParams.has("view")) return;
  if (url.pathname === list || url.pathname === `${list}/views`) {
    setWidths(url.searchParams, widths);
  } else if (url.pathname.startsWith(`${list}/`)) {
    const back = new URLSearchParams(url.searchParams.get("back") ?? "");
    setWidths(back, widths);
    url.searchParams.set("back", back);
  } else return;
  element.setAttribute(attribute, url.pathname + url.search);
}

function handleOf(event) {
  return event.target.closest?.("[data-resize]");
}

document.addEventListener("pointerdown", event => {
  const handle = handleOf(event);
  if (!handle || event.button) return;
  event.preventDefault(); // no text is selected
  handle.focus();
  handle.setPointerCapture(event.pointerId);
  const start = event.clientX - widthOf(handle);
  let isMoved = false;
  handle.onpointermove = ({ clientX }) => {
    isMoved = true;
    resize(handle, clientX - start);
  };
  handle.onlostpointercapture = () => {
    handle.onpointermove = null;
    if (isMoved) remember(handle.closest("table"));
  };
});

document.addEventListener("dblclick", event => {
  const handle = handleOf(event);
  if (!handle) return;
  resize(handle, null);
  remember(handle.closest("table"));
});

// All separators of a table are one stop of the Tab key; Up and Down lead from one to the next.
function move(handle, steps) {
  const all = [...handle.closest("table").querySelectorAll("[data-resize]")];
  const next = all[all.indexOf(handle) + steps];
  if (!next) return;
  handle.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

document.addEventListener("keydown", event => {
  const handle = handleOf(event);
  const steps = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!handle || !(steps || event.key in WIDTHS)) return;
  event.preventDefault();
  if (steps) return move(handle, steps);
  resize(handle, WIDTHS[event.key](handle));
});

document.addEventListener("keyup", event => {
  const handle = handleOf(event);
  if (handle && event.key in WIDTHS) remember(handle.closest("table"));
});

document.addEventListener("focusin", event => {
  const handle = handleOf(event);
  if (handle) handle.ariaValueNow = widthOf(handle);
});
