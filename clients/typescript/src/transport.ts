import { AtriumError, NetworkError, RateLimited, errorOf } from "./errors.js";
import { Session, memoryTokens, type TokenPair, type TokenStore } from "./session.js";

export type Send = (request: Request, init: RequestInit) => Promise<Response>;

export interface ClientOptions {
  /** The address of the instance, such as `https://atrium.example`. */
  baseUrl: string;
  apiKey?: string;
  /** The account to act in, for anonymous callers and superadmins: its slug, code or id. */
  account?: string;
  /** Where the session is stored; by default in memory. */
  tokens?: TokenStore;
  /** How often a request is repeated; 3 by default. */
  retries?: number;
  /** The milliseconds until the answer must be there; 30,000 by default. */
  timeout?: number;
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch;
}

export interface SendOptions {
  fetch?: Send;
  retries?: number;
  timeout?: number;
  signal?: AbortSignal | null | undefined;
  /** Sends no credential. */
  anonymous?: boolean;
  /** Leaves the body to be read, and its cuts and the signal to the reader. */
  streamed?: boolean;
}

const IDEMPOTENT = ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"];
const BRIEF = [0, 502, 503, 504]; // statuses of failures that may pass; 0 is no answer
const FIRST_WAIT = 250;
const LONGEST_WAIT = 30_000;
const KEY = "Idempotency-Key";
const EXPORT = /\/export\/?(\?|$)/; // answers that may take longer than the time limit

/** Sends requests with the credential, and repeats those that may be repeated. */
export class Transport {
  readonly baseUrl: string;
  readonly session: Session;

  constructor(private readonly options: ClientOptions) {
    this.baseUrl = options.baseUrl.replace(/\/+$/, "");
    const tokens = options.tokens ?? memoryTokens();
    this.session = new Session(options.apiKey, tokens, (token) => this.#exchange(token));
  }

  /** Returns the response, made anew for each attempt. Throws an AtriumError for 400 and above. */
  async send(make: () => Request, options: SendOptions = {}): Promise<Response> {
    const key = randomKey();
    const retries = options.retries ?? this.options.retries ?? 3;
    for (let attempt = 0; ; attempt++) {
      const request = make();
      if (request.method === "POST" && !isAuthentication(request)) setDefault(request, KEY, key);
      try {
        return await this.#authenticated(request, make, options);
      } catch (error) {
        const wait = attempt < retries ? waitAfter(error, request, attempt) : null;
        if (wait === null) throw error;
        await sleep(wait, options.signal);
      }
    }
  }

  /** Returns a request of a path below the base URL. */
  request(path: string, init?: RequestInit): Request {
    return new Request(`${this.baseUrl}${path}`, init);
  }

  async #authenticated(request: Request, make: () => Request, options: SendOptions) {
    const { session } = this;
    const credential = options.anonymous ? null : await session.credential();
    // Without a credential the server has no one to attribute the key to.
    if (!credential) request.headers.delete(KEY);
    try {
      return await this.#once(request, credential, options);
    } catch (error) {
      const replacement = isRefused(error) ? await session.replacement(credential) : null;
      if (!replacement) throw error;
      const again = make();
      setDefault(again, KEY, request.headers.get(KEY));
      return await this.#once(again, replacement, options);
    }
  }

  async #once(request: Request, credential: string | null, options: SendOptions) {
    if (credential) setDefault(request, "Authorization", `Bearer ${credential}`);
    setDefault(request, "X-Account-ID", this.options.account);
    const response = await this.#answer(request, options);
    if (response.status >= 400) throw await errorOf(response);
    return response;
  }

  async #answer(request: Request, options: SendOptions): Promise<Response> {
    const { signal } = options;
    const limit = new AbortController();
    const stop = () => limit.abort();
    const timer = setTimeout(stop, options.timeout ?? this.options.timeout ?? 30_000);
    const release = () => signal?.removeEventListener("abort", stop);
    signal?.addEventListener("abort", stop);
    const send: Send = options.fetch ?? this.options.fetch ?? fetch;
    // Only files may be elsewhere; a redirected POST would become a GET.
    const redirect = options.streamed ? "follow" : "error";
    try {
      signal?.throwIfAborted();
      const init = { signal: limit.signal, redirect, credentials: "omit" } as const;
      const response = await send(request, init);
      if (options.streamed || EXPORT.test(request.url)) return response; // the signal ends it
      const complete = await whole(response);
      release();
      return complete;
    } catch (error) {
      release();
      signal?.throwIfAborted();
      throw new NetworkError(`No answer from ${this.baseUrl}.`, error);
    } finally {
      clearTimeout(timer);
    }
  }

  async #exchange(refreshToken: string): Promise<TokenPair> {
    const body = JSON.stringify({ refresh_token: refreshToken });
    const headers = { "Content-Type": "application/json" };
    const make = () => this.request("/api/v1/auth/refresh", { method: "POST", headers, body });
    return (await (await this.send(make, { anonymous: true })).json()) as TokenPair;
  }
}

/** Returns the milliseconds until the next attempt, or null if there must be none. */
function waitAfter(error: unknown, request: Request, attempt: number): number | null {
  if (!(error instanceof AtriumError)) return null;
  const hasKey = request.headers.has(KEY);
  const repeatable = hasKey || IDEMPOTENT.includes(request.method);
  const passes =
    error instanceof RateLimited ||
    (repeatable && BRIEF.includes(error.status)) ||
    (hasKey && error.code === "in_progress");
  const wait = Math.max((error.retryAfter ?? 0) * 1000, backoff(attempt));
  return passes && wait <= LONGEST_WAIT ? wait : null;
}

/** Returns the milliseconds to wait after some failures in a row, at random. */
export function backoff(failures: number): number {
  return Math.min(FIRST_WAIT * 2 ** failures, LONGEST_WAIT) * (0.5 + Math.random() / 2);
}

/** Waits, unless the signal ends it with an error. */
export function sleep(milliseconds: number, signal?: AbortSignal | null): Promise<void> {
  return abortable(signal, new Promise((resolve) => setTimeout(resolve, milliseconds)));
}

/** Returns what the work does, unless the signal ends the wait for it with an error. */
export function abortable<T>(signal: AbortSignal | null | undefined, work: Promise<T>): Promise<T> {
  if (!signal) return work;
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop);
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}

// Within the time limit, and so that a cut is an error that may be repeated.
async function whole(response: Response): Promise<Response> {
  if (!response.body || response.status === 204) return response;
  const { status, headers } = response;
  return new Response(await response.arrayBuffer(), { status, headers });
}

// A wrong password is no matter of the token.
const isRefused = (error: unknown) =>
  error instanceof AtriumError && error.status === 401 && error.code !== "authentication_failed";

const isAuthentication = (request: Request) => request.url.includes("/api/v1/auth/");

function setDefault(request: Request, name: string, value: string | null | undefined): void {
  if (value && !request.headers.has(name)) request.headers.set(name, value);
}

/** Returns a text that is unique, not secret; crypto.randomUUID is missing on pages without https. */
export function randomKey(): string {
  const parts = [Date.now(), Math.random() * 2 ** 52, Math.random() * 2 ** 52];
  return parts.map((part) => Math.floor(part).toString(36)).join("-");
}
