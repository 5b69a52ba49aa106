import type { components } from "./description.js";
import { Unauthorized } from "./errors.js";

export type TokenPair = Pick<
  components["schemas"]["TokenPair"],
  "access_token" | "refresh_token" | "expires_in"
>;

/** What a session needs to go on after a restart. */
export interface Tokens {
  access: string;
  refresh: string;
  /** In milliseconds since 1970. */
  expires: number;
}

/** Where a session's tokens are stored. */
export interface TokenStore {
  load(): Promise<Tokens | null> | Tokens | null;
  save(tokens: Tokens | null): Promise<void> | void;
  /** Runs the work while nobody else who shares the store does, so that nobody refreshes twice. */
  exclusively?<T>(work: () => Promise<T>): Promise<T>;
}

/** Returns a store that lasts as long as the client. */
export function memoryTokens(): TokenStore {
  let stored: Tokens | null = null;
  return {
    load: () => stored,
    save: (tokens) => {
      stored = tokens;
    },
  };
}

/** Returns a store in a browser's storage, which all tabs share. */
export function storageTokens(storage: Storage = localStorage, key = "atrium"): TokenStore {
  return {
    load: () => JSON.parse(storage.getItem(key) ?? "null") as Tokens | null,
    save: (tokens) =>
      tokens ? storage.setItem(key, JSON.stringify(tokens)) : storage.removeItem(key),
    exclusively: async (work) =>
      globalThis.navigator?.locks ? await navigator.locks.request(`atrium:${key}`, work) : await work(),
  };
}

const EARLY_MILLISECONDS = 10_000; // refresh before the server's clock gets there

/** A credential: an API key, or tokens that it renews. */
export class Session {
  #renewing: Promise<Tokens | null> | null = null;

  constructor(
    private readonly apiKey: string | undefined,
    private readonly store: TokenStore,
    private readonly exchange: (refreshToken: string) => Promise<TokenPair>,
  ) {}

  /** Returns the access token or API key to send, or null for an anonymous caller. */
  async credential(): Promise<string | null> {
    return this.apiKey ?? (await this.tokens())?.access ?? null;
  }

  /** Returns the tokens, renewed if it is time. */
  async tokens(): Promise<Tokens | null> {
    const tokens = await this.store.load();
    if (!tokens || tokens.expires - EARLY_MILLISECONDS > Date.now()) return tokens;
    return await this.#renew(tokens.access);
  }

  /** Returns a credential that replaces a refused one, or null if there is none. */
  async replacement(refused: string | null): Promise<string | null> {
    if (this.apiKey || !refused) return null;
    return (await this.#renew(refused))?.access ?? null;
  }

  /** Stores the tokens of a sign-in. */
  async adopt(pair: TokenPair): Promise<Tokens> {
    const expires = Date.now() + pair.expires_in * 1000;
    const tokens = { access: pair.access_token, refresh: pair.refresh_token, expires };
    await this.store.save(tokens);
    return tokens;
  }

  /** Forgets the tokens. */
  async forget(): Promise<void> {
    await this.store.save(null);
  }

  // A refresh token works once, and its second use ends the session: one call trades it for all.
  #renew(used: string): Promise<Tokens | null> {
    this.#renewing ??= this.#exclusively(() => this.#trade(used)).finally(() => {
      this.#renewing = null;
    });
    return this.#renewing;
  }

  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    return this.store.exclusively ? this.store.exclusively(work) : work();
  }

  async #trade(used: string): Promise<Tokens | null> {
    const tokens = await this.store.load();
    if (!tokens || tokens.access !== used) return tokens; // somebody else has renewed them
    try {
      return await this.adopt(await this.exchange(tokens.refresh));
    } catch (error) {
      if (error instanceof Unauthorized) await this.store.save(null);
      throw error;
    }
  }
}
