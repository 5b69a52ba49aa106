import assert from "node:assert/strict";
import { test } from "node:test";

import { alice, atrium, makeCollection } from "./setting.mjs";

const { and, anyOf, countOf, f, flag, not, or } = atrium;
const collection = await makeCollection("things");
const things = (await alice()).records(collection);

const TEXTS = [
  "", " ", '"', "'", "\\", '\\"', "\\\\", "a\\b", "%", "\\%", "100%", "a\nb\tc\rd", "ä€😀", "!_[]^$",
  '" || true', "' || 1=1 --", "}{", "@now", "null", "a\u2028b",
];
const PIECES = ["\\", '"', "'", "%", "_", "a", "A", " ", "\n", "é", "😀", "!", "&&", "||", ")", "("];
const random = () => {
  const size = Math.ceil(Math.random() * 8);
  return Array.from({ length: size }, () => PIECES[Math.floor(Math.random() * PIECES.length)]).join("");
};
const texts = [...new Set([...TEXTS, ...Array.from({ length: 25 }, random)])];
// Titles are required, and so never empty.
await things.createMany(texts.map((slug) => ({ title: "named", slug, extra: { is: "text" } })));

const slugs = async (filter) =>
  (await things.list({ filter, limit: 100, sort: "created_at" })).items.map(({ slug }) => slug);

test("any text is found by its filter, and no other is", async () => {
  for (const text of texts) {
    const field = f("slug");
    const [equal, others, ending] = await Promise.all(
      [field.eq(text), field.ne(text).and(f("extra").isNotNull()), field.endsWith(text)].map(slugs),
    );
    assert.deepEqual([equal, others.length], [[text], texts.length - 1]);
    const ends = texts.filter((other) => lower(other).endsWith(lower(text)));
    assert.deepEqual(ending.sort(), ends.sort());
    const begin = texts.filter((other) => lower(other).startsWith(lower(text)));
    assert.deepEqual((await slugs(field.startsWith(text))).sort(), begin.sort());
    const within = texts.filter((other) => lower(other).includes(lower(text)));
    assert.deepEqual((await slugs(field.includes(text))).sort(), within.sort());
  }
});

const lower = (text) => text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());

test("values of all types are compared", async () => {
  const at = new Date("2026-11-20T12:00:00.123Z");
  const made = await things.create({
    title: "typed", views: 12.5, live: true, due: "2026-11-20", at: at.toISOString(), state: "open", tags: ["a"],
  });
  const CASES = [
    [f("id").eq(made.id), true],
    [f("views").eq(12.5), true],
    [f("views").gt(1e-7).and(f("views").lt(1e21)), true],
    [f("views").gte(-12.5).and(f("views").lte(13n)), true],
    [f("live").eq(true), true],
    [f("live").ne(true), false],
    [f("due").eq("2026-11-20"), true],
    [f("due").lt(new Date("2026-11-21")), true],
    [f("at").eq(at), true],
    [f("at").gt(at), false],
    [f("state").in(["open", "done"]), true],
    [f("state").notIn(["open"]), false],
    [f("state").in([]), false],
    [f("tags").contains("a"), true],
    [f("tags").contains("b"), false],
    [f("slug").isNull(), true],
    [f("slug").eq(null), true],
    [f("slug").isNotNull(), false],
    [f("title").like("T%"), true],
    [f("title").notLike("%p%"), false],
    [f("title").includes("YP"), true],
    [or(f("live").eq(false), f("views").gt(1)).and(f("title").eq("typed")), true],
    [and(f("live").eq(true), or(f("views").gt(99), not(f("state").eq("open")))), false],
    [not(or(f("live").eq(false), f("views").eq(1))), true],
    [anyOf(collection, f("title").eq(f("@record.title")).and(f("views").gt(12))), true],
    [countOf(collection, f("title").eq(f("@record.title"))).gt(1), false],
  ];
  const mine = f("id").eq(made.id);
  for (const [filter, expected] of CASES) {
    const { total } = await things.list({ filter: mine.and(filter) });
    assert.equal(total === 1, expected, String(filter));
  }
});

test("what the language cannot say is refused before it is sent", () => {
  assert.throws(() => f("a b"), TypeError);
  assert.throws(() => f("views").eq(NaN), TypeError);
  assert.equal(String(f("@account.plan").eq("pro").and(flag("sla"))), '@account.plan = "pro" && @flag("sla")');
  assert.throws(() => flag('sla") || @flag("x'), TypeError);
  assert.throws(() => anyOf("things, true) || @any(things", f("live").eq(true)), TypeError);
});
