import type { Api } from "./client.js";
import type { components } from "./description.js";
import { AtriumError, NetworkError } from "./errors.js";
import { events, type ServerEvent } from "./events.js";
import type { Filter } from "./filter.js";
import type { Shape } from "./records.js";
import { type Transport, backoff, sleep } from "./transport.js";

export type FeedPage = components["schemas"]["FeedPage"];
export type Operation = "create" | "update" | "delete";
type Name<C> = keyof C & string;
type Shapes<C> = { [N in keyof C]: Shape };

/** What a stream brings: changes, and `reset` where some are missing, so read the records anew: those of `collection`,
 * if your rights have changed, else all. */
export type StreamEvent<C extends Shapes<C>, N extends Name<C> = Name<C>> =
  | { [K in N]: Change<K, C[K]["record"]> }[N]
  | { type: "reset"; collection?: N; change?: number };
type Change<N, R> = { collection: N; change: number; timestamp: string } & (
  | { type: "create" | "update"; data: R }
  /** `hidden`: the record exists, but the caller may not view it any more, or it left the filter. */
  | { type: "delete"; data: { id: string }; hidden?: boolean }
);

export interface FollowOptions<N extends string> {
  /** The last change that you have; without it, the stream begins with the next change. */
  since?: number;
  filters?: { [K in N]?: Filter | string };
  operations?: { [K in N]?: Operation[] };
  signal?: AbortSignal;
  /** The milliseconds of silence after which a connection counts as dead; 40,000 by default. */
  silence?: number;
}

const LASTING = [400, 401, 403, 404, 422, 501]; // statuses that another attempt does not change

/** Changes of records, by polling or as a stream. */
export class Changes<C extends Shapes<C>> {
  constructor(
    private readonly transport: Transport,
    private readonly api: Api,
  ) {}

  /** Returns a page of changes; `next` is the `since` of the next one. */
  async poll(
    options: { since?: number; collections?: Name<C>[]; limit?: number; signal?: AbortSignal } = {},
  ): Promise<FeedPage> {
    const { since, collections, limit, signal } = options;
    const params = { query: { since, collections: collections?.join(","), limit } };
    return (await this.api.GET("/api/v1/changes", { params, signal })).data as FeedPage;
  }

  /** Returns the changes from now on, or after `since`, once the stream is open. */
  async follow<N extends Name<C>>(
    collections: N[],
    options: FollowOptions<N> = {},
  ): Promise<Following<StreamEvent<C, N>>> {
    const query = new URLSearchParams();
    for (const name of collections) {
      const operations = options.operations?.[name];
      query.append("collections", operations ? `${name}:${operations.join(",")}` : name);
      const filter = options.filters?.[name];
      if (filter) query.set(`filter.${name}`, String(filter));
    }
    const following = new Following<StreamEvent<C, N>>(this.transport, query, options);
    await following.open();
    return following;
  }
}

/** A stream of changes that reconnects by itself and goes on where it was. */
export class Following<E> implements AsyncIterable<E> {
  #position: number | null;
  readonly #stop = new AbortController();
  #connection: AsyncGenerator<ServerEvent, void> | null = null;
  #pending: ServerEvent | undefined;

  constructor(
    private readonly transport: Transport,
    private readonly query: URLSearchParams,
    private readonly options: FollowOptions<string>,
  ) {
    this.#position = options.since ?? null;
    options.signal?.addEventListener("abort", () => this.close());
    if (options.signal?.aborted) this.close();
  }

  /** The last change that was read: the `since` to go on from after a restart. */
  get position(): number | null {
    return this.#position;
  }

  /** Ends the stream, and the loop that reads it. */
  close(): void {
    this.#stop.abort();
    void this.#connection?.return(undefined);
  }

  /** Connects, and waits for the position at which the stream begins. */
  async open(): Promise<void> {
    const first = await this.#next();
    if (first?.type === "heartbeat") this.#position = Number(first.id);
    else this.#pending = first;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<E, void> {
    try {
      for (let event; (event = await this.#next()); ) {
        if (event.type === "reset") yield { type: "reset" } as E;
        if (event.type === "message") yield changeOf(event) as E;
        // Only now: a reader that fails handles the change again.
        if (event.id) this.#position = Number(event.id);
      }
    } finally {
      this.close();
    }
  }

  // The next event, over as many connections as it takes; undefined once closed.
  async #next(): Promise<ServerEvent | undefined> {
    const { signal } = this.#stop;
    const pending = this.#pending;
    this.#pending = undefined;
    if (pending) return pending;
    for (let failures = 0; !signal.aborted; failures++) {
      try {
        this.#connection ??= await this.#connect();
        const next = await this.#connection.next();
        if (!next.done) return next.value;
        throw new NetworkError("The stream ended.");
      } catch (error) {
        this.#connection = null;
        if (signal.aborted) break;
        if (!(error instanceof AtriumError) || LASTING.includes(error.status)) throw error;
        const wait = Math.max(backoff(failures), (error.retryAfter ?? 0) * 1000);
        await sleep(wait, signal).catch(() => undefined);
      }
    }
    return undefined;
  }

  async #connect(): Promise<AsyncGenerator<ServerEvent, void>> {
    const query = new URLSearchParams(this.query);
    if (this.#position !== null) query.set("since", String(this.#position));
    const { signal } = this.#stop;
    const make = () =>
      this.transport.request(`/api/v1/realtime/subscribe?${query}`, {
        headers: { Accept: "text/event-stream" },
      });
    const { silence: timeout = 40_000 } = this.options;
    const once = { signal, timeout, retries: 0, streamed: true };
    const response = await this.transport.send(make, once);
    return events(response.body!, timeout, signal);
  }
}

function changeOf(event: ServerEvent) {
  const { type, ...change } = JSON.parse(event.data) as { type: string };
  const [collection, operation] = type.split(".");
  return { type: operation, collection, ...change };
}
