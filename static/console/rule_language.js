// The rule language for the editor: the colours of its words, and completions.
const KEYWORDS = ["AND", "OR", "NOT", "IN", "IS", "NULL"];
const ATOMS = ["true", "false", "null"];
const CALLER = ["id", "email", "role", "account_id"];
const MOST_DOTS = 3;
const NAME = String.raw`[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*`;
const WORD = /@?[A-Za-z_][\w.]*$|@$/;
// An open text that is compared with a field: the field, the quote, and the text so far.
const COMPARED = new RegExp(
  String.raw`(${NAME})\s*(?:(?:!?[=~]|[<>]=?)\s*|(?:NOT\s+)?IN\s*[[(](?:[^\])"']|"[^"]*"|'[^']*')*|,\s*)(["'])([^"'\\]*)$`,
);

function word(text, next) {
  if (text.startsWith("@")) return "macroName";
  if (KEYWORDS.includes(text)) return "keyword";
  if (ATOMS.includes(text)) return "atom";
  return next === "(" ? "variableName.function" : "variableName";
}

export const language = {
  name: "rule",
  startState: () => ({ quote: null }),
  token(stream, state) {
    if (state.quote || stream.match(/^["']/)) {
      state.quote ??= stream.current();
      if (stream.match(state.quote === '"' ? /^(?:[^"\\]|\\.)*"/ : /^(?:[^'\\]|\\.)*'/)) state.quote = null;
      else stream.skipToEnd();
      return "string";
    }
    if (stream.eatSpace()) return null;
    if (stream.match(/^(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?/)) return "number";
    if (stream.match(/^@?[A-Za-z_][\w.]*/)) return word(stream.current(), stream.peek());
    return stream.match(/^[[\](),]/) ? "punctuation" : stream.next() && "operator";
  },
};

// Completions by what may be named: fields by collection, and the functions with their results.
export function completions({ start = "", collections = {}, calls = {}, caller = false }) {
  function follow(names) {
    let fields = collections[start];
    for (const name of names) {
      const field = Object.hasOwn(fields ?? {}, name) ? fields[name] : {};
      fields = field.parts ?? collections[field.to];
    }
    return fields ?? {};
  }

  function choices(path) {
    const names = path.split(".");
    const last = names.pop();
    const fields = follow(names);
    return Object.hasOwn(fields, last) ? (fields[last].choices ?? []) : [];
  }

  const named = (names) =>
    Object.entries(follow(names)).map(([label, { type }]) => ({ label, detail: type, boost: 1 }));
  const plain = (labels) => labels.map((label) => ({ label }));
  const called = Object.entries(calls).map(([call, info]) => {
    const label = call.slice(0, call.indexOf("("));
    return { label, detail: call.slice(label.length), info, apply: call.endsWith("()") ? call : `${label}(` };
  });
  const words = [...plain([...KEYWORDS, ...ATOMS, "@now"]), ...called];
  if (caller) words.push(...plain(["@request.auth.", "@request.data."]));

  function after(path) {
    if (path === "@request.auth") return caller ? plain(CALLER) : [];
    if (path === "@request.data") return caller ? named([]) : [];
    const names = path.split(".");
    return names.length > MOST_DOTS ? [] : named(names);
  }

  return (context) => {
    const before = context.state.sliceDoc(0, context.pos);
    const compared = COMPARED.exec(before);
    if (compared) {
      const [, path, quote, text] = compared;
      const closing = context.state.sliceDoc(context.pos, context.pos + 1) === quote ? "" : quote;
      const escaped = (choice) => choice.replace(/[\\"']/g, (one) => (one === quote || one === "\\" ? `\\${one}` : one));
      const options = choices(path).map((label) => ({ label, apply: escaped(label) + closing }));
      return { from: context.pos - text.length, options, validFor: /^[^"'\\]*$/ };
    }
    if (isInText(before)) return null;
    const typed = WORD.exec(before)?.[0] ?? "";
    if (!typed && !context.explicit) return null;
    const dot = typed.lastIndexOf(".");
    const isMacro = typed.startsWith("@") && !/^@request\.(auth|data)\./.test(typed);
    if (dot < 0 || isMacro) {
      return { from: context.pos - typed.length, options: [...named([]), ...words], validFor: /^@?\w*$/ };
    }
    return { from: context.pos - typed.length + dot + 1, options: after(typed.slice(0, dot)), validFor: /^\w*$/ };
  };
}

function isInText(before) {
  return /["']/.test(before.replace(/"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'/gs, ""));
}
