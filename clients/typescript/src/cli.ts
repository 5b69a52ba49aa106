#!/usr/bin/env node
import { writeFile } from "node:fs/promises";
import { parseArgs } from "node:util";

import { Client } from "./client.js";
import { AtriumError } from "./errors.js";
import { typesOf } from "./types.js";

const USAGE = `usage: atrium types --url URL [--account ACCOUNT --email EMAIL] [--output FILE]

Writes the types of the collections that are open to you. Set ATRIUM_API_KEY, or name account and
e-mail address and set ATRIUM_PASSWORD.`;

const OPTIONS = {
  url: { type: "string" },
  account: { type: "string" },
  email: { type: "string" },
  output: { type: "string" },
} as const;

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({ options: OPTIONS, allowPositionals: true });
  if (positionals.join() !== "types" || !values.url) throw new TypeError(USAGE);
  const { ATRIUM_API_KEY: apiKey, ATRIUM_PASSWORD: password } = process.env;
  const client = new Client({ baseUrl: values.url, ...(apiKey ? { apiKey } : {}) });
  const { account, email } = values;
  if (!apiKey && (!email || !password)) throw new TypeError(USAGE);
  if (!apiKey) await client.signIn({ email: email!, password: password!, ...(account && { account }) });
  const text = typesOf(await client.describe());
  if (!apiKey) await client.signOut();
  if (values.output) await writeFile(values.output, text);
  else process.stdout.write(text);
}

main().catch((error: unknown) => {
  const isExpected = error instanceof AtriumError || error instanceof TypeError;
  console.error(isExpected ? error.message : error);
  process.exitCode = 1;
});
