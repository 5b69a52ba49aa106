// What is repeated, against a server that answers as it is asked to.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, test } from "node:test";

import { atrium } from "./setting.mjs";

let answers = [];
let received = [];
const server = createServer(async (request, response) => {
  let size = 0;
  for await (const chunk of request) size += chunk.length;
  received.push({ size, key: request.headers["idempotency-key"] });
  const [status, body = {}, headers = {}] = answers.shift() ?? [200];
  if (status === "cut") return request.socket.destroy();
  if (status === "silence") return undefined;
  if (status === "partly") {
    response.writeHead(200, { "Content-Type": "application/json", "Content-Length": 99 });
    return response.write("{", () => request.socket.destroy());
  }
  response.writeHead(status, { "Content-Type": "application/json", ...headers });
  return response.end(status === 204 ? "" : JSON.stringify(body));
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
after(() => server.close() && server.closeAllConnections());
const baseUrl = `http://127.0.0.1:${server.address().port}`;

/** Sends a request to a server with these answers; returns the outcome and the attempts. */
async function attempt(method, given, options = {}) {
  [answers, received] = [[...given], []];
  const client = new atrium.Client({ baseUrl, apiKey: "svc_sk_x", ...options });
  const things = client.records("things");
  const calls = {
    GET: () => things.get("1"),
    POST: () => things.create({}),
    PUT: () => things.replace("1", {}),
    PATCH: () => things.update("1", {}),
    DELETE: () => things.delete("1"),
    upload: () => client.files.upload(new Blob(["x".repeat(100_000)]), { onProgress: () => {} }),
  };
  const outcome = await calls[method]().then(() => "ok", (error) => error);
  const [keys, sizes] = ["key", "size"].map((name) => new Set(received.map((one) => one[name])));
  return { outcome, attempts: received.length, keys, sizes };
}

const UNAVAILABLE = [503, { error: "unavailable", message: "" }];
const LIMITED = [429, { error: "rate_limited", message: "" }, { "Retry-After": "0" }];
const PENDING = [409, { error: "in_progress", message: "" }];

for (const [method, given, attempts] of [
  ["GET", [["cut"], [502], [200]], 3],
  ["GET", [["partly"], [200]], 2],
  ["PUT", [[504], [200]], 2],
  ["DELETE", [UNAVAILABLE, [204]], 2],
  ["POST", [["cut"], PENDING, [201]], 3],
  ["PATCH", [LIMITED, [200]], 2],
]) {
  test(`${method} is repeated after ${given[0][0]}`, async () => {
    const done = await attempt(method, given);
    assert.deepEqual([done.outcome, done.attempts], ["ok", attempts]);
    assert.equal(done.keys.size, 1);
    assert.equal(done.keys.has(undefined), method !== "POST");
  });
}

for (const [name, method, given, error, options] of [
  ["a change that may have happened", "PATCH", [["cut"], [200]], "NetworkError"],
  ["a change at a proxy", "PATCH", [UNAVAILABLE, [200]], "ServerError"],
  ["an error of the server", "GET", [[500], [200]], "ServerError"],
  ["a refusal", "GET", [[403], [200]], "Forbidden"],
  ["a conflict", "POST", [[409, { error: "conflict" }], [200]], "Conflict"],
  ["a long wait", "GET", [[429, {}, { "Retry-After": "900" }], [200]], "RateLimited"],
  ["a creation by nobody", "POST", [["cut"], [200]], "NetworkError", { apiKey: undefined }],
]) {
  test(`${name} is not repeated`, async () => {
    const { outcome, attempts } = await attempt(method, given, options);
    assert.deepEqual([outcome.name, attempts], [error, 1]);
    if (error === "RateLimited") assert.equal(outcome.retryAfter, 900);
  });
}

test("an upload is repeated as a whole, under the same key", async () => {
  const done = await attempt("upload", [UNAVAILABLE, [201, { file: {} }]]);
  assert.deepEqual([done.outcome, done.attempts, done.keys.size, done.sizes.size], ["ok", 2, 1, 1]);
});

test("a redirect, which would make a GET of a POST, is no answer", async () => {
  const { outcome } = await attempt("POST", Array(9).fill([302, {}, { Location: "/" }]), { retries: 0 });
  assert.equal(outcome.name, "NetworkError");
});

test("attempts are bounded, and each has its time", async () => {
  const silent = Array(9).fill(["silence"]);
  const { outcome, attempts } = await attempt("GET", silent, { retries: 1, timeout: 50 });
  assert.deepEqual([outcome.name, attempts], ["NetworkError", 2]);
  assert.equal((await attempt("GET", [UNAVAILABLE, [200]], { retries: 0 })).attempts, 1);
});

test("a page of a proxy is an error, too", async () => {
  const { outcome } = await attempt("GET", [[404, "no object", { "X-Correlation-ID": "c" }]]);
  assert.deepEqual([outcome.name, outcome.code, outcome.requestId], ["NotFound", "http_404", "c"]);
});
