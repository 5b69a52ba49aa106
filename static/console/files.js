// Uploads files as they are chosen or dropped on a field, one after the other; the form then names them. Without this
// script the form carries the files themselves.
import { translate } from "./texts.js";

const FAILED = translate("The upload failed. Reload the page if this persists.");
const SIGNED_OUT = translate("Signed out. Reload the page to sign in.");
const RUNNING = translate("An upload is still running. Save when it is finished.");
let queue = Promise.resolve();

class Refused extends Error {}

// Returns what the form shows of the file, as HTML. `row` tells of the progress.
function send(file, field, row) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const address = new URL(field.dataset.upload, location);
    address.search = new URLSearchParams({ field: field.id, name: file.name });
    request.open("POST", address);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.setRequestHeader("X-CSRFToken", field.form.elements.csrf_token.value);
    request.upload.onprogress = ({ loaded }) => { row.querySelector("progress").value = loaded / (file.size || 1); };
    request.onload = () => {
      if (request.status === 201) resolve(request.responseText);
      else if (request.responseURL !== address.href) reject(new Refused(SIGNED_OUT));
      else if (request.getResponseHeader("Content-Type").startsWith("text/plain")) reject(new Refused(request.responseText));
      else reject(new Refused(FAILED));
    };
    request.onerror = () => reject(new Refused(FAILED));
    request.onabort = () => reject(null);
    row.addEventListener("cancel", () => request.abort());
    request.send(file);
  });
}

async function upload(file, field, row) {
  try {
    if (!row.isConnected) return; // cancelled while it waited
    const uploaded = document.createElement("template");
    uploaded.innerHTML = await send(file, field, row);
    const [next] = uploaded.content.children;
    const { accept } = field.querySelector("[type=file]");
    if (!accepts(accept, next.dataset.type)) throw new Refused(translate("This is {type}; the field takes {accept}.", { type: next.dataset.type, accept }));
    if (Number(field.dataset.maxFiles) === 1) field.querySelectorAll(".file:not(:has(progress))").forEach(old => old.remove());
    row.replaceWith(next);
    say(field, translate("{name} is uploaded.", { name: file.name }), "unseen");
  } catch (error) {
    row.remove();
    if (error) say(field, `${file.name}: ${error.message}`);
  } finally {
    if (!isUploading(field)) field.querySelector(".running")?.remove();
  }
}

// Whether a list of types such as `image/*,application/pdf` has a type, which the server found in the content.
function accepts(list, type) {
  return !list || list.split(",").some(one => one === type || one.endsWith("/*") && type.startsWith(one.slice(0, -1)));
}

function add(field, files) {
  const { maxBytes, maxFiles } = field.dataset;
  const list = field.querySelector("ul");
  const room = maxFiles > 1 ? maxFiles - list.children.length : 1;
  clear(field);
  if (files.length > room) say(field, translate(maxFiles > 1 ? "At most {count} files." : "At most {count} file.", { count: maxFiles }));
  for (const file of [...files].slice(0, Math.max(room, 0))) {
    if (file.size > maxBytes) {
      say(field, translate("{name} is too large: files have at most {bytes} bytes here.", {
        name: file.name, bytes: Number(maxBytes).toLocaleString(document.documentElement.lang),
      }));
      continue;
    }
    const row = waitingRow(file);
    list.append(row);
    queue = queue.then(() => upload(file, field, row));
  }
}

function waitingRow(file) {
  const row = document.createElement("li");
  row.className = "file";
  row.innerHTML = "<span></span> <progress max='1' value='0'></progress>"
    + " <button class='outline secondary' type='button' data-remove></button>";
  row.lastChild.textContent = translate("Cancel");
  row.firstChild.textContent = file.name;
  row.querySelector("progress").ariaLabel = translate("Upload of {name}", { name: file.name });
  row.querySelector("button").ariaLabel = translate("Cancel the upload of {name}", { name: file.name });
  return row;
}

function remove(field, row) {
  row.dispatchEvent(new Event("cancel"));
  row.remove();
  field.querySelector("[type=file]").focus();
}

function clear(field) {
  field.querySelector("[role=status]").replaceChildren();
}

function say(field, text, kind = "error") {
  const message = document.createElement("span");
  message.className = kind;
  message.textContent = text;
  field.querySelector("[role=status]").append(message);
}

function watch(field) {
  const input = field.querySelector("[type=file]");
  field.dataset.scripted = "";
  input.addEventListener("change", () => {
    add(field, input.files);
    input.value = "";
  });
  field.addEventListener("click", ({ target }) => {
    if (target.closest("[data-remove]")) remove(field, target.closest(".file"));
  });
  field.addEventListener("dragover", event => { if (hasFiles(event)) field.dataset.over = ""; });
  field.addEventListener("dragleave", ({ relatedTarget }) => {
    if (!field.contains(relatedTarget)) delete field.dataset.over;
  });
  field.addEventListener("drop", event => {
    delete field.dataset.over;
    if (hasFiles(event)) add(field, event.dataTransfer.files);
  });
  field.form.addEventListener("submit", event => {
    if (!isUploading(field)) return;
    event.preventDefault();
    clear(field);
    say(field, RUNNING, "error running");
  });
}

function isUploading(field) {
  return field.querySelector("progress") !== null;
}

function hasFiles(event) {
  return event.dataTransfer.types.includes("Files");
}

// A file that misses its field would replace the page.
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, event => hasFiles(event) && event.preventDefault());
document.querySelectorAll("[data-upload]").forEach(watch);
