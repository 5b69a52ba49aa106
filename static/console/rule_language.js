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

// What has a record of its own before a dot: the judged one, or that of the outer @any.
const RECORDS = ["@record", "@old", "@outer"];
const OPENED = /@(?:any|count)\s*\(\s*([A-Za-z_]\w*)\s*,|[()]/g;
const COLLECTION = /@(?:any|count)\s*\(\s*(\w*)$/;

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
  function follow(names, from) {
    let fields = collections[from];
    for (const name of names) {
      const field = Object.hasOwn(fields ?? {}, name) ? fields[name] : {};
      fields = field.parts ?? collections[field.to];
    }
    return fields ?? {};
  }

  // The collections of the records that may be named at a place, the innermost last.
  function around(before) {
    const open = [];
    for (const [token, name] of withoutTexts(before).matchAll(OPENED)) {
      if (token === ")") open.pop();
      else open.push(name ?? null);
    }
    return [start, ...open.filter(Boolean)];
  }

  function choices(path, from) {
    const names = path.split(".");
    const last = names.pop();
    const fields = follow(names, from);
    return Object.hasOwn(fields, last) ? (fields[last].choices ?? []) : [];
  }

  const named = (names, from) =>
    Object.entries(follow(names, from)).map(([label, { type }]) => ({ label, detail: type, boost: 1 }));
  const plain = (labels) => labels.map((label) => ({ label }));
  const called = Object.entries(calls).map(([call, info]) => {
    const label = call.slice(0, call.indexOf("("));
    return { label, detail: call.slice(label.length), info, apply: call.endsWith("()") ? call : `${label}(` };
  });
  const words = [...plain([...KEYWORDS, ...ATOMS, "@now"]), ...called];
  if (caller) words.push(...plain(["@account.plan", "@request.auth.", "@request.data."]));

  function after(path, places) {
    if (path === "@account") return caller ? plain(["plan"]) : [];
    if (path === "@request.auth") return caller ? plain(CALLER) : [];
    if (path === "@request.data") return caller ? named([], start) : [];
    let names = path.split(".");
    let from = places.at(-1);
    if (RECORDS.includes(names[0])) {
      from = names[0] === "@outer" ? places.at(-2) : start;
      names = names.slice(1);
    }
    return names.length > MOST_DOTS ? [] : named(names, from);
  }

  return (context) => {
    const before = context.state.sliceDoc(0, context.pos);
    const compared = COMPARED.exec(before);
    if (compared) {
      const [, path, quote, text] = compared;
      const closing = context.state.sliceDoc(context.pos, context.pos + 1) === quote ? "" : quote;
      const escaped = (choice) => choice.replace(/[\\"']/g, (one) => (one === quote || one === "\\" ? `\\${one}` : one));
      const options = choices(path, around(before).at(-1)).map((label) => ({ label, apply: escaped(label) + closing }));
      return { from: context.pos - text.length, options, validFor: /^[^"'\\]*$/ };
    }
    if (isInText(before)) return null;
    const collection = COLLECTION.exec(before);
    if (collection) {
      return { from: context.pos - collection[1].length, options: plain(Object.keys(collections)), validFor: /^\w*$/ };
    }
    const typed = WORD.exec(before)?.[0] ?? "";
    if (!typed && !context.explicit) return null;
    const dot = typed.lastIndexOf(".");
    const isMacro = typed.startsWith("@") && !/^@(request\.(auth|data)|account|record|old|outer)\./.test(typed);
    const places = around(before);
    if (dot < 0 || isMacro) {
      return { from: context.pos - typed.length, options: [...named([], places.at(-1)), ...words], validFor: /^@?\w*$/ };
    }
    return { from: context.pos - typed.length + dot + 1, options: after(typed.slice(0, dot), places), validFor: /^\w*$/ };
  };
}

function withoutTexts(before) {
  return before.replace(/"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'/gs, "");
}

function isInText(before) {
  return /["']/.test(withoutTexts(before));
}
