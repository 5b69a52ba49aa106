// What the console's editor uses of CodeMirror.
export { autocompletion } from "@codemirror/autocomplete";
export { history, historyKeymap, standardKeymap } from "@codemirror/commands";
export { json } from "@codemirror/lang-json";
export { StreamLanguage, bracketMatching, syntaxHighlighting } from "@codemirror/language";
export { setDiagnostics } from "@codemirror/lint";
export { EditorState } from "@codemirror/state";
export { EditorView, keymap } from "@codemirror/view";
export { classHighlighter } from "@lezer/highlight";
