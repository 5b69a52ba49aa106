// Follows changes through the published client, unmodified, by WebSocket or server-sent events. Any mismatch throws.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { SnackBaseClient } from "@snackbase/sdk";
import { EventSource, WebSocket } from "undici";

const [transport, server, baseUrl, account, email, rootEmail, password] = process.argv.slice(2);
const isSocket = transport === "websocket";
Object.assign(globalThis, { EventSource, WebSocket: isSocket ? WebSocket : undefined });

const options = { baseUrl, maxRetries: 0, storageBackend: "memory", realTimeReconnectionDelay: 100 };
const client = (more = {}) => new SnackBaseClient({ ...options, ...more });
const until = async (holds) => {
  for (let tries = 0; tries < 400; tries += 1) {
    if (holds()) return;
    await sleep(25);
  }
  throw new Error(`never: ${holds}`);
};
// The timeout of an earlier call makes the client miss the response to a later one, and wait for ever.
const subscribe = () => Promise.race([alice.realtime.subscribe("notes"), sleep(5000)]);
const connection = ({ realtime }) => realtime.socket ?? realtime.sse;

const root = client();
await root.auth.login({ account: "system", email: rootEmail, password });
const fields = [{ name: "title", type: "text" }];
const open = { list_rule: "true", view_rule: "true", create_rule: "true", update_rule: "true", delete_rule: "true" };
const notes = await root.collections.create({ name: "notes", fields });
await root.collectionRules.update("notes", open);

const alice = client();
await alice.auth.login({ account, email, password });
const key = await alice.apiKeys.create({ name: "writer" });
const writer = client({ apiKey: key.key });
const [heard, messages] = [[], []];
for (const operation of ["create", "update", "delete"]) {
  alice.realtime.on(`notes.${operation}`, (record) => heard.push([operation, record.id, record.title]));
}
alice.realtime.on("message", (message) => messages.push(message));
// By server-sent events, the client names its subscriptions only as it connects.
if (!isSocket) await subscribe();
await alice.realtime.connect();
if (isSocket) await subscribe();
assert.deepEqual([alice.realtime.getState(), Boolean(alice.realtime.socket)], ["connected", isSocket]);

const one = await writer.records.create("notes", { title: "One" });
await writer.records.patch("notes", one.id, { title: "Two" });
await writer.records.delete("notes", one.id);
await until(() => heard.length === 3);
assert.deepEqual(heard, [["create", one.id, "One"], ["update", one.id, "Two"], ["delete", one.id, undefined]]);

const reconnected = async (before) => {
  await until(() => alice.realtime.getState() === "connected" && connection(alice) !== before);
  if (isSocket) await subscribe(); // the client does not say when it has subscribed again
};
// After a reconnect by itself, the client's former EventSource goes on as well: it may hear twice.
const hears = async (title) => {
  const { id } = await writer.records.create("notes", { title });
  await until(() => heard.some((found) => found[1] === id && found[2] === title));
};

let before = connection(alice);
await alice.auth.refreshToken();
await reconnected(before);
await hears("after the token was refreshed");

before = connection(alice);
process.kill(Number(server), "SIGHUP");
await reconnected(before);
await hears("after the server restarted");

before = connection(alice);
const elsewhere = client();
await elsewhere.auth.login({ account, email, password });
await elsewhere.auth.logout();
assert.equal(alice.realtime.getState(), "connected"); // a logout ends its own session only
const post = async (path, body, token) => {
  const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  return (await fetch(`${baseUrl}/api/v1/${path}`, { method: "POST", headers, body: JSON.stringify(body) })).json();
};
const { token } = await post("auth/login", { account, email, password });
await post("auth/logout", { all: true }, token);
await until(() => alice.realtime.getState() === "connecting");
await alice.auth.login({ account, email, password });
await reconnected(before);
await hears("after signing in again");

if (isSocket) {
  alice.realtime.subscribe("nothing").catch(() => {});
  await until(() => messages.some(({ type, error }) => type === "error" && error === "not_found"));
  await alice.realtime.unsubscribe("nothing");
  await alice.realtime.unsubscribe("notes");
  const unheard = await writer.records.create("notes", { title: "unheard" });
  await subscribe();
  await hears("after subscribing again");
  assert.ok(!heard.some((found) => found[1] === unheard.id));
}

alice.realtime.disconnect();
assert.equal(alice.realtime.getState(), "disconnected");
await root.collections.delete(notes.id);
console.log("the client is served");
process.exit();
