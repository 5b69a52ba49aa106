import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { alice, atrium, atriumNode, makeCollection } from "./setting.mjs";

const collection = await makeCollection("documents");
const client = await alice();
const folder = await mkdtemp(join(tmpdir(), "atrium-"));

test("a file is streamed up, assigned, linked and streamed down", async () => {
  const bytes = randomBytes(3_000_000);
  const path = join(folder, 'an "odd" näme.bin');
  await writeFile(path, bytes);
  const sent = [];
  const uploaded = await client.files.upload(await atriumNode.openFile(path), {
    onProgress: (done, total) => sent.push([done, total]),
  });
  assert.equal(uploaded.sha256, createHash("sha256").update(bytes).digest("hex"));
  assert.equal(uploaded.name, 'an "odd" näme.bin');
  assert.ok(sent.length > 10 && sent.at(-1)[0] === sent.at(-1)[1]);

  const document = await client.records(collection).create({ title: "a", cover: uploaded.id });
  const received = [];
  const copy = join(folder, "copy");
  await atriumNode.downloadTo(client, document.cover, copy, {
    onProgress: (done, total) => received.push([done, total]),
  });
  assert.deepEqual(await readFile(copy), bytes);
  assert.deepEqual(received.at(-1), [bytes.length, bytes.length]);
  const part = await client.files.download(document.cover, { range: "bytes=10-19" });
  assert.deepEqual(Buffer.from(await part.arrayBuffer()), bytes.subarray(10, 20));

  const { url } = await client.files.link(document.cover, 60);
  assert.deepEqual(Buffer.from(await (await fetch(url)).arrayBuffer()), bytes);
});

test("an upload that no record has is deleted", async () => {
  const uploaded = await client.files.upload(new Blob(["text"]), { name: "a.txt" });
  assert.deepEqual([uploaded.name, uploaded.mime_type], ["a.txt", "text/plain"]);
  await client.files.delete(uploaded);
  await assert.rejects(client.files.download(uploaded), atrium.NotFound);
});

test("the caller can stop an upload", async () => {
  const stop = new AbortController();
  const upload = client.files.upload(new Blob([randomBytes(5_000_000)]), {
    onProgress: () => stop.abort(),
    signal: stop.signal,
  });
  await assert.rejects(upload, { name: "AbortError" });
});
