import assert from "node:assert/strict";
import { mkdtemp, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { ALICE, alice, atrium, atriumNode, baseUrl, counting } from "./setting.mjs";

const me = async (client) => (await client.api.GET("/api/v1/auth/me")).data.email;
const REFRESH = "/api/v1/auth/refresh";

/** A store whose tokens have been changed. */
async function storeWith(change) {
  const tokens = atrium.memoryTokens();
  await alice({ tokens });
  await tokens.save({ ...(await tokens.load()), ...change });
  return tokens;
}

for (const [name, change] of [
  ["an expired", { expires: 0 }],
  ["a refused", { access: "no-token" }],
]) {
  test(`${name} token is renewed once for all calls`, async () => {
    const tokens = await storeWith(change);
    const { counts, fetch } = counting();
    const client = new atrium.Client({ baseUrl, tokens, fetch });
    const emails = await Promise.all(Array.from({ length: 20 }, () => me(client)));
    assert.deepEqual(new Set(emails), new Set([ALICE.email]));
    assert.equal(counts[REFRESH], 1);
    await tokens.save({ ...(await tokens.load()), ...change });
    assert.equal(await me(client), ALICE.email); // the session has not ended
  });
}

test("a session survives a restart in a file", async () => {
  const path = join(await mkdtemp(join(tmpdir(), "atrium-")), "tokens");
  await alice({ tokens: atriumNode.fileTokens(path) });
  assert.equal((await stat(path)).mode & 0o777, 0o600);
  const client = new atrium.Client({ baseUrl, tokens: atriumNode.fileTokens(path) });
  assert.equal(await me(client), ALICE.email);
  await client.signOut();
  await assert.rejects(stat(path), { code: "ENOENT" });
});

test("a session that has ended is forgotten", async () => {
  const tokens = await storeWith({ expires: 0, refresh: "ended" });
  const client = new atrium.Client({ baseUrl, tokens });
  await assert.rejects(me(client), atrium.Unauthorized);
  assert.equal(await tokens.load(), null);
});

test("signing out ends the session on the server", async () => {
  const tokens = atrium.memoryTokens();
  const client = await alice({ tokens });
  const before = await tokens.load();
  await client.signOut();
  await assert.rejects(me(client), atrium.Unauthorized);
  await tokens.save(before);
  await assert.rejects(me(client), atrium.Unauthorized);
});

test("a wrong password is no reason to renew a token", async () => {
  const { counts, fetch } = counting();
  const client = await alice({ fetch });
  await assert.rejects(client.reauthenticate("wrong"), atrium.AtriumError);
  assert.equal(counts[REFRESH], undefined);
  await client.reauthenticate(ALICE.password);
  assert.equal(await me(client), ALICE.email);
});

test("an API key is sent as it is", async () => {
  const client = await alice();
  const { data } = await client.api.POST("/api/v1/api-keys", { body: { name: "key" } });
  assert.equal(await me(new atrium.Client({ baseUrl: `${baseUrl}/`, apiKey: data.key })), ALICE.email);
  const refused = new atrium.Client({ baseUrl, apiKey: "svc_sk_wrong" });
  await assert.rejects(me(refused), atrium.Unauthorized);
});
