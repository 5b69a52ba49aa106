// Turns textareas with `data-editor` into editors of rules or JSON, once they are near the view. The textarea stays the
// form's: what is typed goes there with an `input` event, what others put there is shown, and its focus, label,
// description and errors are the editor's.
import { watch } from "./checks.js";
import { completions, language } from "./rule_language.js";

const WORD = /@?[\p{L}\p{N}_.]+|\S/uy;
const settings = JSON.parse(document.getElementById("editor-settings").textContent);

async function edit(field) {
  const cm = await import("../vendor/codemirror/codemirror.js");
  const languages = {
    json: () => cm.json(),
    rule: () => [
      cm.StreamLanguage.define(language),
      cm.autocompletion({ override: [completions(settings.completions)], compareCompletions: () => 0, icons: false }),
    ],
  };
  const hadFocus = document.activeElement === field;
  const { selectionStart: anchor, selectionEnd: head } = field;
  const view = new cm.EditorView({
    doc: field.value,
    selection: hadFocus ? { anchor, head } : undefined,
    extensions: [
      languages[field.dataset.editor](),
      cm.history(),
      cm.bracketMatching(),
      cm.syntaxHighlighting(cm.classHighlighter),
      // Tab has no meaning here: it leads on.
      cm.keymap.of([...cm.standardKeymap, ...cm.historyKeymap]),
      cm.EditorView.lineWrapping,
      cm.EditorView.domEventHandlers({ beforeinput: replaceSelection }),
      cm.EditorView.contentAttributes.of(() => attributes(field)),
      cm.EditorView.updateListener.of((update) => update.docChanged && send(field, view)),
      cm.EditorState.phrases.of(settings.phrases),
    ],
  });
  place(field, view);
  if (hadFocus) view.focus();
  field.addEventListener("focus", () => {
    select(field, view);
    view.focus();
  });
  field.addEventListener("input", () => receive(field, view));
  field.form?.addEventListener("reset", () => setTimeout(() => receive(field, view)));
  const mark = () => view.dispatch(cm.setDiagnostics(view.state, problems(field, view.state.doc.toString())));
  new MutationObserver(mark).observe(field, { attributeFilter: ["aria-invalid"] });
  mark();
}

function place(field, view) {
  const box = document.createElement("div");
  box.className = "editor form-control";
  box.style.setProperty("--rows", field.rows);
  field.before(box);
  box.append(field, view.dom);
  field.tabIndex = -1;
  field.ariaHidden = "true";
}

// Typing over a selection: the browser would keep its colours by an inline style, which the policy refuses.
function replaceSelection(event, view) {
  if (event.inputType !== "insertText" || !event.data || view.composing || view.state.selection.main.empty) return false;
  view.dispatch(view.state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
  return true;
}

function attributes(field) {
  const [label] = field.labels;
  label.id ||= `${field.id}-label`;
  const found = { "aria-labelledby": label.id, tabindex: "0" };
  for (const name of ["aria-describedby", "aria-invalid"]) {
    if (field.hasAttribute(name)) found[name] = field.getAttribute(name);
  }
  return found;
}

function send(field, view) {
  const text = view.state.doc.toString();
  if (field.value === text) return;
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

function receive(field, view) {
  const length = view.state.doc.length;
  if (field.value !== view.state.doc.toString()) {
    view.dispatch({ changes: { from: 0, to: length, insert: field.value } });
  }
}

// What is selected in the textarea by a script.
function select(field, view) {
  const { selectionStart: anchor, selectionEnd: head } = field;
  if (anchor === head) return;
  view.dispatch({ selection: { anchor, head } });
  field.setSelectionRange(head, head);
}

// The errors that describe a textarea, each at its word. Servers count characters of the text without the space
// around it.
function problems(field, text) {
  const ids = (field.getAttribute("aria-describedby") ?? "").split(" ");
  const notes = ids.map((id) => document.getElementById(id)).filter(Boolean);
  const errors = notes.flatMap((note) => [note, ...note.querySelectorAll("[data-at]")]).filter((one) => one.dataset.at);
  const start = text.length - text.trimStart().length;
  const end = text.trimEnd().length;
  return errors.map((error) => {
    const before = [...text.slice(start)].slice(0, error.dataset.at).join("");
    WORD.lastIndex = Math.max(Math.min(start + before.length, end - 1), 0);
    const from = WORD.lastIndex;
    const [word] = WORD.exec(text) ?? [""];
    return { from, to: from + word.length, severity: "error", message: error.textContent.trim() };
  });
}

const waiting = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      waiting.unobserve(target);
      edit(target);
    }
  },
  { rootMargin: "400px" },
);
// In a row of a table, Enter saves, and a textarea is enough.
for (const field of document.querySelectorAll("textarea[data-editor]:not(.editing *)")) waiting.observe(field);
for (const field of document.querySelectorAll("[data-check]")) watch(field, settings.unavailable);
