import assert from "node:assert/strict";
import { test } from "node:test";

import { alice, all, atrium, baseUrl, makeCollection } from "./setting.mjs";

const { etagOf, f } = atrium;
const collection = await makeCollection("articles");
const client = await alice();
const articles = client.records(collection);

test("a record is created, read, changed, replaced and deleted", async () => {
  const made = await articles.create({ title: "one", views: 3 });
  assert.equal(made.views, 3);
  assert.deepEqual(await articles.get(made.id), made);
  assert.deepEqual(await articles.get(made.id, { fields: ["title"] }), { id: made.id, title: "one" });
  assert.equal((await articles.update(made.id, { views: 4 })).title, "one");
  assert.equal((await articles.replace(made.id, { title: "two" })).views, 0);
  await articles.delete(made.id);
  await assert.rejects(articles.get(made.id), atrium.NotFound);
});

test("decimals, lists and numbers come back as they were", async () => {
  const schema = [
    { name: "amount", type: "decimal", options: { precision: 38, scale: 4 } },
    { name: "number", type: "sequence", options: { prefix: "R-", digits: 3 } },
    { name: "words", type: "text_list" },
  ];
  const receipts = client.records(await makeCollection("receipts", { schema }));
  const amount = "1234567890123456789012345678901234.5678";
  const made = await receipts.create({ title: "one", amount, words: ["b", "a"] });
  assert.deepEqual([made.amount, made.number, made.words], [amount, "R-001", ["b", "a"]]);
  assert.deepEqual(await receipts.replace(made.id, made), made);
  const changed = await receipts.update(made.id, { words: { $add: ["c"], $remove: ["b"] } });
  assert.deepEqual([changed.words, changed.amount], [["a", "c"], amount]);
});

test("a write with an old ETag is refused", async () => {
  const seen = await articles.create({ title: "seen" });
  const changed = await articles.update(seen.id, { views: 1 }, { ifMatch: etagOf(seen) });
  const outdated = { ifMatch: etagOf(seen) };
  await assert.rejects(articles.update(seen.id, { views: 2 }, outdated), atrium.PreconditionFailed);
  await assert.rejects(articles.replace(seen.id, { title: "x" }, outdated), atrium.PreconditionFailed);
  await assert.rejects(articles.delete(seen.id, outdated), atrium.PreconditionFailed);
  await articles.delete(seen.id, { ifMatch: etagOf(changed) });
});

test("many records are written at once, listed by pages and walked through", async () => {
  const titles = Array.from({ length: 230 }, (_, number) => `many ${String(number).padStart(3, "0")}`);
  const made = await articles.createMany(titles.map((title) => ({ title, slug: title })));
  const filter = f("title").startsWith("many ");
  const walked = await all(articles.iterate({ filter, sort: "title", fields: ["title"] }));
  assert.deepEqual(walked.map(({ title }) => title), titles);
  const page = await articles.list({ filter, sort: ["-title"], limit: 2, skip: 1 });
  assert.deepEqual([page.total, page.items.map(({ title }) => title)], [230, titles.slice(-3, -1).reverse()]);
  const first = await articles.list({ filter, cursor: "", limit: 5 });
  const second = await articles.list({ filter, cursor: first.next_cursor, limit: 5 });
  assert.deepEqual((await articles.list({ filter, cursorBefore: second.prev_cursor, limit: 5 })).items, first.items);
  assert.equal((await articles.list({ filter, includeTotal: false })).total, null);

  const changed = await articles.updateMany(made.slice(0, 2).map(({ id }) => ({ id, data: { views: 9 } })));
  assert.deepEqual(changed.map(({ views }) => views), [9, 9]);
  const stored = await articles.upsertMany(
    [{ title: "many new", slug: "new" }, { title: "many again", slug: titles[0] }],
    "slug",
  );
  assert.deepEqual([stored.created.length, stored.updated[0].id], [1, made[0].id]);

  const groups = await articles.aggregate({
    functions: ["count()", "sum(views)"],
    groupBy: ["views"],
    filter,
    having: f("count").gt(1),
  });
  assert.deepEqual(groups.results.find(({ views }) => views === 9), { views: 9, count: 2, sum_views: 18 });

  await articles.deleteMany(made.map(({ id }) => id));
  assert.equal((await articles.list({ filter })).total, 1);
});

test("operations are done all or none", async () => {
  const first = { method: "POST", collection, body: { title: "batch", slug: "batch" }, as: "article" };
  const change = { method: "PATCH", collection, id: { $ref: "article.id" }, body: { views: 3 } };
  const [made, changed] = await client.batch([first, change]);
  assert.deepEqual([made.status, changed.status, changed.body.views], [201, 200, 3]);
  const wrong = { ...change, body: { views: "x" } };
  await assert.rejects(client.batch([{ ...first, body: { title: "batch" } }, wrong]), (error) => {
    return error.details[0].field === "operations[1].body.views";
  });
  const found = await articles.list({ filter: f("title").eq("batch") });
  assert.deepEqual(found.items.map(({ id }) => id), [made.body.id]);
});

test("an earlier state is restored from the history", async () => {
  const made = await articles.create({ title: "before" });
  await articles.update(made.id, { title: "after" });
  const { items } = await articles.history(made.id, { limit: 5 });
  assert.deepEqual(items.map(({ operation }) => operation), ["UPDATE", "CREATE"]);
  assert.equal((await articles.restore(made.id, items[1].audit_id)).title, "before");
});

test("a record comes back from the trash, with other values if they are given", async () => {
  const name = await makeCollection("kept", { options: { trash: { days: 7 } } });
  const kept = client.records(name);
  const { id } = await kept.create({ title: "one" });
  await kept.delete(id);
  assert.deepEqual((await kept.list({ trash: true })).items.map(({ title }) => title), ["one"]);
  assert.equal((await kept.restore(id)).title, "one");
  await kept.delete(id);
  const values = { title: "two", tags: ["a"] };
  assert.equal((await kept.restore(id, undefined, { values })).title, "two");
  await kept.delete(id, { permanently: true });
  await assert.rejects(kept.restore(id), atrium.NotFound);
});

test("records are searched, with highlights", async () => {
  const schema = [{ name: "text", type: "text", options: { search: true } }];
  const notes = client.records(await makeCollection("notes", { schema }));
  const texts = ["Old harbour", "Harbour <b>, harbour", "Station", "The harbour is far away"];
  await notes.createMany(texts.map((text, views) => ({ title: "note", text, views })));
  const found = await notes.list({ search: "harbour -away", highlight: true });
  const marked = ["<mark>Harbour</mark> &lt;b&gt;, <mark>harbour</mark>", "Old <mark>harbour</mark>"];
  assert.deepEqual([found.total, found.items.map(({ _highlights }) => _highlights.text)], [2, marked]);
  const options = { search: "harb*", highlight: true, sort: "-views", limit: 2 };
  const walked = await all(notes.iterate(options));
  assert.deepEqual(walked.map(({ text }) => text), [texts[3], texts[1], texts[0]]);
  assert.deepEqual(walked[2]._highlights, { text: marked[1] });
  assert.equal((await notes.list({ search: "station" })).items[0]._highlights, undefined);
  const counted = await notes.aggregate({ functions: ["count()"], search: "harbour" });
  assert.deepEqual(counted.results, [{ count: 3 }]);
  const refused = await notes.list({ highlight: true }).catch((error) => error);
  assert.deepEqual(Object.keys(refused.fields), ["highlight"]);
});

test("problems come as errors with fields", async () => {
  const refused = await articles.create({ views: "many" }).catch((error) => error);
  assert.ok(refused instanceof atrium.ValidationError);
  assert.deepEqual([refused.status, Object.keys(refused.fields).sort()], [400, ["title", "views"]]);
  assert.deepEqual(refused.details.map(({ code }) => code).sort(), ["invalid_type", "required_missing"]);
  assert.match(refused.requestId, /./);
  const misshaped = await client.api
    .POST("/api/v1/groups", { body: { name: 5 } })
    .catch((error) => error);
  assert.ok(misshaped instanceof atrium.ValidationError);
  assert.deepEqual([misshaped.status, Object.keys(misshaped.fields)], [422, ["name"]]);
  await articles.create({ title: "a", slug: "taken" });
  const clash = await articles.create({ title: "b", slug: "taken" }).catch((error) => error);
  assert.deepEqual([clash.constructor, clash.field, clash.code], [atrium.Conflict, "slug", "conflict"]);
  const nobody = new atrium.Client({ baseUrl, account: "acme" });
  await assert.rejects(nobody.records(collection).list(), atrium.Unauthorized);
  await assert.rejects(client.api.GET("/api/v1/users"), atrium.Forbidden);
  const nowhere = new atrium.Client({ baseUrl: "http://127.0.0.1:9", retries: 0 });
  await assert.rejects(nowhere.records(collection).list(), atrium.NetworkError);
});

test("the caller can stop a request", async () => {
  const signal = AbortSignal.abort();
  await assert.rejects(articles.list({ signal }), { name: "AbortError" });
});

test("a file is imported, and updates by key", async () => {
  const file = new Blob(["slug;title\nfile;first\n"]);
  const made = await articles.importFile(file, { upsert: "slug" });
  assert.deepEqual([made.created, made.updated, made.separator], [1, 0, ";"]);
  const row = JSON.stringify([{ slug: "file", title: "second" }]);
  const changed = await articles.importFile(row, { mediaType: "application/json", upsert: "slug" });
  assert.deepEqual([changed.created, changed.updated], [0, 1]);
  const bytes = new Blob([Buffer.from("slug|title\nfile|a;b \xfc\n", "latin1")]);
  const options = { upsert: "slug", encoding: "windows-1252", separator: "pipe" };
  assert.equal((await articles.importFile(bytes, options)).updated, 1);
  assert.deepEqual((await articles.list({ filter: f("slug").eq("file") })).items.map(({ title }) => title), ["a;b ü"]);
});

test("an export is read as a stream", async () => {
  await articles.createMany(Array.from({ length: 50 }, () => ({ title: "exported" })));
  const path = { collection };
  const query = { format: "jsonl", title: "exported" };
  const options = { params: { path, query }, parseAs: "stream" };
  const { data } = await client.api.GET("/api/v1/records/{collection}/export", options);
  assert.equal((await new Response(data).text()).trim().split("\n").length, 50);
});

test("every other operation is called by its path", async () => {
  const { data } = await client.api.GET("/api/v1/account/users", { params: { query: { limit: 5 } } });
  assert.equal(data.items[0].email, "alice@acme.example");
});
