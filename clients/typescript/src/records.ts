import type { Api } from "./client.js";
import type { components } from "./description.js";
import { Field, type Filter, f } from "./filter.js";

type Schemas = components["schemas"];
export type RecordChange = Schemas["RecordChange"];

/** The types of a collection: what it answers, and what each operation takes. */
export interface Shape {
  record: object;
  /** A record in a list, where that differs. */
  item?: object;
  create: object;
  replace: object;
  update: object;
}

type Fields = { [field: string]: any };
export interface AnyShape extends Shape {
  record: Schemas["RecordObject"] & Fields & { id: string };
  create: Fields;
  replace: Fields;
  update: Fields;
}
/** Collections without generated types. */
export type AnyCollections = { [name: string]: AnyShape };

type ItemOf<S extends Shape> = S extends { item: infer I extends object } ? I : S["record"];
type Name<R> = keyof R & string;
type Chosen<R, K extends Name<R>> = Pick<R, K | Extract<"id" | "_highlights", keyof R>>;
/** A field, or what a reference leads to, such as `customer.name`. */
type Path<R> = Name<R> | `${Name<R>}.${string}`;
type Sorting<R> = Path<R> | `-${Path<R>}`;

export interface ReadOptions<R, K extends Name<R>> {
  fields?: K[];
  /**
   * References to include as `expand`, dotted to follow further ones, and records that refer here:
   * `comments_via_ticket`.
   */
  expand?: string[];
  /** Seconds, from 60 to 604800, for which the addresses of files work without a header. */
  fileLinks?: number;
  signal?: AbortSignal;
}

export interface ListOptions<R, K extends Name<R>> extends ReadOptions<R, K> {
  filter?: Filter | string;
  /** Words, `wor*`, `"words in a row"` and `-word`; the most relevant records come first, unless there is a `sort`. */
  search?: string;
  /** Whether to add `_highlights`: the parts of the fields that have what is searched, as HTML. */
  highlight?: boolean;
  sort?: Sorting<R> | Sorting<R>[];
  /** Up to 100. */
  limit?: number;
  /** Whether to list the records in the trash. */
  trash?: boolean;
}

export interface PageOptions<R, K extends Name<R>> extends ListOptions<R, K> {
  skip?: number;
  /** A page's `next_cursor`; empty for the first page. */
  cursor?: string;
  /** A page's `prev_cursor`; empty for the last page. */
  cursorBefore?: string;
  includeTotal?: boolean;
}

export interface WriteOptions {
  /** An `ETag`: the write fails if the record has changed since. */
  ifMatch?: string | null;
  /** Such as those of an electronic signature. */
  headers?: { [name: string]: string };
  signal?: AbortSignal;
}

/** Stands for a value of the record that an earlier operation has named, such as `order.id`. */
export type Reference = { $ref: string };
type Referring<T> = { [K in keyof T]: T[K] | Reference };

/** A change of a record of one collection. */
export type RecordOperation<N, S extends Shape> = { collection: N } & (
  | { method: "POST"; body: Referring<S["create"]>; as?: string }
  | { method: "PUT"; id: string | Reference; body: Referring<S["replace"]>; as?: string; if_match?: string }
  | { method: "PATCH"; id: string | Reference; body: Referring<S["update"]>; as?: string; if_match?: string }
  | { method: "DELETE"; id: string | Reference; if_match?: string }
);

export interface ImportOptions<N> extends Omit<WriteOptions, "ifMatch"> {
  /** CSV, unless it says otherwise. */
  mediaType?: string;
  /** A unique field: records that have its value already are updated. */
  upsert?: N;
  /** Of CSV, such as `windows-1252`; else it is found. */
  encoding?: string;
  /** Of CSV; else it is found. */
  separator?: "comma" | "semicolon" | "tab" | "pipe";
  dryRun?: boolean;
}

export interface AggregateOptions {
  /** Such as `count()` and `sum(price)`. */
  functions: string[];
  groupBy?: string[];
  filter?: Filter | string;
  search?: string;
  having?: Filter | string;
  skip?: number;
  limit?: number;
  signal?: AbortSignal;
}

export type Page<R> = Omit<Schemas["RecordPage"], "items"> & { items: R[] };

const etags = new WeakMap<object, string>();

/** Returns the `ETag` of a record that was got or written by itself. */
export const etagOf = (record: object): string | null => etags.get(record) ?? null;

const ALL = "/api/v1/records/{collection}";
const ONE = "/api/v1/records/{collection}/{record_id}";
const BATCH = "/api/v1/records/{collection}/batch";

/** The records of one collection. */
export class Records<S extends Shape = AnyShape> {
  constructor(
    private readonly api: Api,
    readonly collection: string,
  ) {}

  /** Returns a field to filter by, which takes values of its type only. */
  f<K extends Name<ItemOf<S>>>(name: K): Field<ItemOf<S>[K]> {
    return f(name);
  }

  async get<K extends Name<S["record"]> = Name<S["record"]>>(
    id: string,
    { fields, expand, fileLinks, signal }: ReadOptions<S["record"], K> = {},
  ): Promise<Chosen<S["record"], K>> {
    const query = { fields: listed(fields), expand: listed(expand), file_links: fileLinks };
    const params = { path: this.#one(id), query };
    return tagged(await this.api.GET(ONE, { params, signal }));
  }

  /** Returns a page of records. */
  async list<K extends Name<ItemOf<S>> = Name<ItemOf<S>>>(
    options: PageOptions<ItemOf<S>, K> = {},
  ): Promise<Page<Chosen<ItemOf<S>, K>>> {
    const query = {
      filter: options.filter?.toString(),
      search: options.search,
      highlight: options.highlight,
      sort: listed(options.sort),
      fields: listed(options.fields),
      expand: listed(options.expand),
      file_links: options.fileLinks,
      limit: options.limit,
      skip: options.skip,
      cursor: options.cursor,
      cursor_before: options.cursorBefore,
      include_total: options.includeTotal,
      trash: options.trash,
    };
    const params = { path: this.#all, query };
    return plain(await this.api.GET(ALL, { params, signal: options.signal }));
  }

  /** Returns all records, a page at a time: none is repeated or left out while others write. */
  async *iterate<K extends Name<ItemOf<S>> = Name<ItemOf<S>>>(
    options: ListOptions<ItemOf<S>, K> = {},
  ): AsyncGenerator<Chosen<ItemOf<S>, K>, void> {
    let cursor: string | null | undefined = "";
    while (cursor !== null && cursor !== undefined) {
      const page: Page<Chosen<ItemOf<S>, K>> = await this.list({ limit: 100, ...options, cursor });
      yield* page.items;
      cursor = page.next_cursor;
    }
  }

  async create(data: S["create"], options: WriteOptions = {}): Promise<S["record"]> {
    const params = { path: this.#all };
    return tagged(await this.api.POST(ALL, { params, body: fieldsOf(data), ...sent(options) }));
  }

  /** Changes the fields that are sent; returns the record. */
  async update(id: string, data: S["update"], options: WriteOptions = {}): Promise<S["record"]> {
    const params = { path: this.#one(id) };
    return tagged(await this.api.PATCH(ONE, { params, body: fieldsOf(data), ...sent(options) }));
  }

  /** Replaces all fields: an absent one takes its default; returns the record. */
  async replace(id: string, data: S["replace"], options: WriteOptions = {}): Promise<S["record"]> {
    const params = { path: this.#one(id) };
    return tagged(await this.api.PUT(ONE, { params, body: fieldsOf(data), ...sent(options) }));
  }

  /** Deletes a record; `permanently` passes by the trash, or deletes what is there. */
  async delete(
    id: string,
    { permanently, ...options }: WriteOptions & { permanently?: boolean } = {},
  ): Promise<void> {
    const params = { path: this.#one(id), query: { permanently } };
    await this.api.DELETE(ONE, { params, ...sent(options) });
  }

  /** Creates all or none; returns the records. */
  async createMany(records: S["create"][], options: WriteOptions = {}): Promise<S["record"][]> {
    const body = { records: records.map(fieldsOf) };
    const params = { path: this.#all };
    const answer = await this.api.POST(BATCH, { params, body, ...sent(options) });
    return plain<{ created: S["record"][] }>(answer).created;
  }

  /** Updates those whose unique field `on` has the same value, and creates the others. */
  async upsertMany(
    records: S["create"][],
    on: Name<S["record"]>,
    options: WriteOptions = {},
  ): Promise<{ created: S["record"][]; updated: S["record"][] }> {
    const params = { path: this.#all, query: { mode: "upsert" as const, on } };
    const body = { records: records.map(fieldsOf) };
    return plain(await this.api.POST(BATCH, { params, body, ...sent(options) }));
  }

  /** Changes all or none; returns the records. */
  async updateMany(
    records: { id: string; data: S["update"] }[],
    options: WriteOptions = {},
  ): Promise<S["record"][]> {
    const body = { records: records.map(({ id, data }) => ({ id, data: fieldsOf(data) })) };
    const params = { path: this.#all };
    const answer = await this.api.PATCH(BATCH, { params, body, ...sent(options) });
    return plain<{ updated: S["record"][] }>(answer).updated;
  }

  /** Deletes all or none. */
  async deleteMany(ids: string[], options: WriteOptions = {}): Promise<void> {
    const params = { path: this.#all };
    await this.api.DELETE(BATCH, { params, body: { ids }, ...sent(options) });
  }

  /** Imports the records of a file, all or none; returns how many. */
  async importFile(
    file: Blob | string,
    options: ImportOptions<Name<S["record"]>> = {},
  ): Promise<Schemas["RecordImport"]> {
    const { mediaType = "text/csv", upsert, encoding, separator, dryRun, headers, signal } = options;
    const query = { upsert, encoding, separator, dry_run: dryRun };
    const params = { path: this.#all, query };
    const body = file as unknown as Fields[];
    const typed = { ...headers, "Content-Type": mediaType };
    const request = { params, body, bodySerializer: () => file, headers: typed, signal };
    return plain(await this.api.POST(`${ALL}/import`, request));
  }

  /** Returns counts, sums, averages, minima and maxima, by group. */
  async aggregate(options: AggregateOptions): Promise<Schemas["Aggregates"]> {
    const query = {
      functions: options.functions.join(","),
      group_by: listed(options.groupBy),
      filter: options.filter?.toString(),
      search: options.search,
      having: options.having?.toString(),
      skip: options.skip,
      limit: options.limit,
    };
    const params = { path: this.#all, query };
    return plain(await this.api.GET(`${ALL}/aggregate`, { params, signal: options.signal }));
  }

  /** Returns a page of the record's changes, the newest first. */
  async history(
    id: string,
    { skip, limit, signal }: { skip?: number; limit?: number; signal?: AbortSignal } = {},
  ): Promise<Schemas["RecordChangePage"]> {
    const params = { path: this.#one(id), query: { skip, limit } };
    return plain(await this.api.GET(`${ONE}/history`, { params, signal }));
  }

  /** Writes the record's state at an entry of its history, or brings it back from the trash,
   * with `values` in the place of its own. */
  async restore(
    id: string,
    auditId?: number,
    { values, ...options }: WriteOptions & { values?: S["update"] } = {},
  ): Promise<S["record"]> {
    const params = { path: this.#one(id) };
    const body = { audit_id: auditId, values: values && fieldsOf(values) };
    return tagged(await this.api.POST(`${ONE}/restore`, { params, body, ...sent(options) }));
  }

  get #all() {
    return { collection: this.collection };
  }

  #one(id: string) {
    return { collection: this.collection, record_id: id };
  }
}

interface Answer {
  data?: unknown;
  response: Response;
}

const fieldsOf = (data: object): Fields => ({ ...data });

const plain = <T>(answer: Answer): T => answer.data as T;

function tagged<T extends object>(answer: Answer): T {
  const record = plain<T>(answer);
  const etag = answer.response.headers.get("ETag");
  if (etag) etags.set(record, etag);
  return record;
}

const listed = (names: string | string[] | undefined): string | undefined => names?.toString();

export function sent({ ifMatch, headers, signal }: WriteOptions) {
  return { headers: { ...headers, ...(ifMatch ? { "If-Match": ifMatch } : {}) }, signal };
}
