// What the scripts share: clients of an instance, and a collection of their own.
import { pathToFileURL } from "node:url";

const { ATRIUM_URL, PACKAGE, PASSWORD } = process.env;
const load = (name) => import(pathToFileURL(`${PACKAGE}/dist/${name}.js`));
export const atrium = await load("index");
export const atriumNode = await load("node");
export const baseUrl = ATRIUM_URL;

export const ALICE = { account: "acme", email: "alice@acme.example", password: PASSWORD };
const ROOT = { account: "system", email: "root@system.example", password: PASSWORD };
const OPEN = Object.fromEntries(
  ["list", "view", "create", "update", "delete"].map((operation) => [`${operation}_rule`, "true"]),
);
const FIELDS = [
  { name: "title", type: "text", required: true },
  { name: "slug", type: "text", unique: true },
  { name: "views", type: "number", default: 0 },
  { name: "effort", type: "number" },
  { name: "done", type: "boolean" },
  { name: "live", type: "boolean" },
  { name: "due", type: "date" },
  { name: "at", type: "datetime" },
  { name: "extra", type: "json" },
  { name: "state", type: "select", options: { choices: ["open", "done"] } },
  { name: "tags", type: "multi_select", options: { choices: ["a", "b"] } },
  { name: "cover", type: "file" },
];

/** A new client of Alice, signed in. */
export async function alice(options = {}) {
  const client = new atrium.Client({ baseUrl, ...options });
  await client.signIn(ALICE);
  return client;
}

/** A new collection, open to everyone who has signed in; returns its name. */
export async function makeCollection(kind, more = {}) {
  return await makeNamed(`${kind}_${Math.random().toString(36).slice(2, 8)}`, more);
}

/** A new collection of this name. */
export async function makeNamed(name, { schema: further = [], ...more } = {}) {
  const root = new atrium.Client({ baseUrl });
  await root.signIn(ROOT);
  const schema = [...FIELDS, ...further, { name: "parent", type: "reference", collection: name }];
  await root.api.POST("/api/v1/collections", { body: { name, schema, ...OPEN, ...more } });
  await root.signOut();
  return name;
}

/** A `fetch` that counts the requests by path. */
export function counting() {
  const counts = {};
  const fetched = (request, init) => {
    const { pathname } = new URL(request.url);
    counts[pathname] = (counts[pathname] ?? 0) + 1;
    return fetch(request, init);
  };
  return { counts, fetch: fetched };
}

/** Everything of an async iterable. */
export async function all(iterable) {
  const found = [];
  for await (const one of iterable) found.push(one);
  return found;
}
