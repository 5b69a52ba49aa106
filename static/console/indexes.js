// Indexes over several fields as rows of inputs, in place of their text, which they write. A row
// has the fields of an index and an empty one for the next.
const AUTOMATIC = ["created_at", "updated_at", "created_by", "updated_by"];
const UNIQUE = "unique:";
const text = document.getElementById("indexes");
const { form } = text;
const part = document.getElementById("index-part").content.firstElementChild;
const row = document.getElementById("index-row").content.firstElementChild;
const place = text.closest(".field").parentElement.querySelector("[data-indexes]");
const list = place.querySelector(".index-rows");

// The fields of the form by their present names, as the server takes them.
function names() {
  const rows = [...form.querySelectorAll("[data-row]:not(.spare)")];
  const declared = rows.map(one => one.querySelector("[name^=name_]")?.value.trim() ?? one.querySelector("strong").textContent);
  return [...new Set([...declared.filter(Boolean), ...AUTOMATIC])];
}

function fill(select, known = names()) {
  const { value } = select;
  const shown = value && !known.includes(value) ? [...known, value] : known;
  select.replaceChildren(select.options[0], ...shown.map(name => new Option(name, name)));
  select.value = value;
}

function addPart(parts, field = "") {
  const added = part.cloneNode(true), [name, order] = added.querySelectorAll("select");
  const bare = field.replace(/^-/, "");
  name.add(new Option(bare, bare));
  name.value = bare;
  fill(name);
  order.value = field.startsWith("-") ? "-" : "";
  order.hidden = !bare;
  parts.append(added);
}

function addRow(line = "") {
  const added = row.cloneNode(true), parts = added.querySelector("[data-parts]");
  const isUnique = line.startsWith(UNIQUE);
  const fields = line.slice(isUnique ? UNIQUE.length : 0).split(",").map(one => one.trim()).filter(Boolean);
  for (const field of [...fields, ""]) addPart(parts, field);
  added.querySelector("[type=checkbox]").checked = isUnique;
  list.append(added);
  return added;
}

function write() {
  const lines = [...list.children].map(one => {
    const fields = [...one.querySelectorAll("[data-part]")].map(each => {
      const [name, order] = each.querySelectorAll("select");
      return name.value && order.value + name.value;
    }).filter(Boolean).join(", ");
    return fields && one.querySelector("[type=checkbox]").checked ? `${UNIQUE} ${fields}` : fields;
  });
  text.value = lines.filter(Boolean).join("\n");
}

place.addEventListener("change", event => {
  const changed = event.target.closest("[data-part]");
  if (changed) {
    const parts = changed.parentElement, [name, order] = changed.querySelectorAll("select");
    order.hidden = !name.value;
    if (!name.value && changed !== parts.lastElementChild) {
      changed.nextElementSibling.querySelector("select").focus();
      changed.remove();
    } else if (name.value && changed === parts.lastElementChild) addPart(parts);
  }
  write();
});

place.addEventListener("click", event => {
  const button = event.target.closest("button");
  if (!button) return;
  if ("remove" in button.dataset) {
    const gone = button.closest("[role=group]"), next = gone.nextElementSibling ?? gone.previousElementSibling;
    gone.remove();
    (next?.querySelector("select") ?? place.querySelector("[data-add]")).focus();
    write();
  } else addRow().querySelector("select").focus();
});

// Fields may have been named since.
place.addEventListener("focusin", event => {
  if (event.target.matches("[data-part] > select:first-child")) fill(event.target);
});

const hadFocus = document.activeElement === text;
for (const line of text.value.split("\n").map(one => one.trim()).filter(Boolean)) addRow(line);
for (const one of [text, text.labels[0], document.getElementById("indexes-help")]) one.hidden = true;
text.id = "indexes-text";
place.id = "indexes"; // which links to faults lead to
if (text.hasAttribute("aria-invalid")) place.setAttribute("aria-describedby", "indexes-error");
place.hidden = false;
if (hadFocus) place.querySelector("select, [data-add]").focus();
