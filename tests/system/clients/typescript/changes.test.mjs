import assert from "node:assert/strict";
import { connect, createServer } from "node:net";
import { test } from "node:test";

import { alice, atrium, baseUrl, makeCollection } from "./setting.mjs";

const collection = await makeCollection("messages");
const writer = await alice();
const messages = writer.records(collection);

/** A proxy of the instance whose connections can be cut, or go silent. */
async function proxy(context) {
  const sockets = new Set();
  const { hostname, port } = new URL(baseUrl);
  const server = createServer((client) => {
    const upstream = connect(Number(port), hostname);
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on("error", () => undefined).on("close", () => sockets.delete(socket));
    }
    client.pipe(upstream).pipe(client);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const cut = () => sockets.forEach((socket) => socket.destroy());
  context.after(() => {
    cut();
    server.close();
  });
  return {
    baseUrl: `http://127.0.0.1:${server.address().port}`,
    cut,
    silence: () => sockets.forEach((socket) => socket.unpipe().pause()),
  };
}

async function next(changes) {
  const { value } = await changes.next();
  return value && [value.type, value.data?.title];
}

test("changes are followed from the moment on, over cuts, in order and once", async (context) => {
  const between = await proxy(context);
  const client = await alice({ baseUrl: between.baseUrl });
  await messages.create({ title: "earlier" });
  const following = await client.changes.follow([collection]);
  const changes = following[Symbol.asyncIterator]();
  const made = await messages.create({ title: "one" });
  assert.deepEqual(await next(changes), ["create", "one"]);
  for (const title of ["two", "three"]) {
    between.cut();
    await messages.update(made.id, { title });
    assert.deepEqual(await next(changes), ["update", title]);
  }
  await messages.delete(made.id);
  assert.deepEqual((await changes.next()).value.data, { id: made.id });
  following.close();
  assert.equal(await next(changes), undefined);
});

test("a connection that goes silent is replaced", async (context) => {
  const between = await proxy(context);
  const client = await alice({ baseUrl: between.baseUrl });
  const following = await client.changes.follow([collection], { silence: 300 });
  between.silence();
  await messages.create({ title: "heard" });
  assert.deepEqual(await next(following[Symbol.asyncIterator]()), ["create", "heard"]);
  following.close();
});

test("a stream goes on with a new token", async (context) => {
  const between = await proxy(context);
  const tokens = atrium.memoryTokens();
  const client = await alice({ baseUrl: between.baseUrl, tokens });
  const following = await client.changes.follow([collection]);
  await tokens.save({ ...(await tokens.load()), access: "expired" });
  between.cut();
  await messages.create({ title: "renewed" });
  assert.deepEqual(await next(following[Symbol.asyncIterator]()), ["create", "renewed"]);
  await client.signOut();
  between.cut();
  await assert.rejects(next(following[Symbol.asyncIterator]()), atrium.Unauthorized);
});

test("operations and filters choose the changes", async () => {
  const client = await alice();
  const following = await client.changes.follow([collection], {
    operations: { [collection]: ["create"] },
    filters: { [collection]: atrium.f("title").ne('"no"') },
  });
  const made = await messages.create({ title: '"no"' });
  await messages.update(made.id, { views: 2 });
  await messages.create({ title: "yes" });
  assert.deepEqual(await next(following[Symbol.asyncIterator]()), ["create", "yes"]);
  following.close();
});

test("a position that the server does not know is a reset", async () => {
  const client = await alice();
  const following = await client.changes.follow([collection], { since: 10 ** 9 });
  const changes = following[Symbol.asyncIterator]();
  assert.deepEqual((await changes.next()).value, { type: "reset" });
  await messages.create({ title: "after" });
  assert.deepEqual(await next(changes), ["create", "after"]);
  following.close();
});

test("a stream is read again from a stored position, and ends with its signal", async () => {
  const client = await alice();
  const earlier = await client.changes.follow([collection]);
  const since = earlier.position;
  earlier.close();
  await messages.create({ title: "first" });
  await messages.create({ title: "second" });
  const stop = new AbortController();
  const titles = [];
  const following = await client.changes.follow([collection], { since, signal: stop.signal });
  for await (const change of following) {
    titles.push(change.data.title);
    if (titles.length === 2) stop.abort();
  }
  assert.deepEqual(titles, ["first", "second"]);
  const page = await client.changes.poll({ since, collections: [collection] });
  assert.deepEqual(page.items.map(({ record }) => record.title), titles);
  assert.equal(following.position, page.items[1].change);
});

test("a refusal is an error at once", async () => {
  const client = await alice();
  await assert.rejects(client.changes.follow(["nothing_here"]), atrium.NotFound);
});
