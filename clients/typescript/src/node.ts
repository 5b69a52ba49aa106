import { createWriteStream } from "node:fs";
import * as fs from "node:fs";
import { readFile, rename, rm, writeFile } from "node:fs/promises";
import { basename } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { ReadableStream } from "node:stream/web";

import type { Client } from "./client.js";
import type { DownloadOptions, FileReference } from "./files.js";
import type { TokenStore, Tokens } from "./session.js";

/** Returns a store in a file that only its owner can read, for one process at a time. */
export function fileTokens(path: string): TokenStore {
  return {
    async load() {
      const text = await readFile(path, "utf8").catch(() => "null");
      return JSON.parse(text) as Tokens | null;
    },
    async save(tokens) {
      if (!tokens) return await rm(path, { force: true });
      await writeFile(`${path}.new`, JSON.stringify(tokens), { mode: 0o600 });
      await rename(`${path}.new`, path);
    },
  };
}

/** Returns a file to upload, which is read while it is sent (before Node 20 at once). */
export async function openFile(path: string): Promise<Blob & { name: string }> {
  const name = basename(path);
  if (fs.openAsBlob) return Object.assign(await fs.openAsBlob(path), { name });
  return Object.assign(new Blob([new Uint8Array(await readFile(path))]), { name });
}

/** Writes a file of the instance to a path. */
export async function downloadTo(
  client: Client<any>,
  file: FileReference,
  path: string,
  options?: DownloadOptions,
): Promise<void> {
  const { body } = await client.files.download(file, options);
  const bytes = body ? Readable.fromWeb(body as ReadableStream) : Readable.from([]);
  await pipeline(bytes, createWriteStream(path));
}
