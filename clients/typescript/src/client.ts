import createClient, { type Client as OpenApiClient } from "openapi-fetch";

import { Changes } from "./changes.js";
import type { components, paths } from "./description.js";
import { Unauthorized } from "./errors.js";
import { Files } from "./files.js";
import { type AnyCollections, type RecordOperation, Records, type Shape, type WriteOptions, sent } from "./records.js";
import type { TokenPair } from "./session.js";
import { type ClientOptions, Transport } from "./transport.js";

const send = (transport: Transport, request: Request) =>
  transport.send(() => request.clone() as Request, { signal: request.signal });

type Schemas = components["schemas"];
export type Api = OpenApiClient<paths>;
export type SignedIn = Schemas["SignedIn"];
export type OperationResult = Schemas["OperationResult"];

/** A client of one instance; `atrium types` writes its collections' types. */
export class Client<C extends { [N in keyof C]: Shape } = AnyCollections> {
  /** Every operation of the API, typed by its description: `api.GET("/api/v1/groups")`. */
  readonly api: Api;
  readonly files: Files;
  readonly changes: Changes<C>;
  readonly #transport: Transport;

  constructor(options: ClientOptions) {
    const transport = new Transport(options);
    const fetch = (request: Request) => send(transport, request);
    this.#transport = transport;
    this.api = createClient<paths>({ baseUrl: transport.baseUrl, fetch });
    this.files = new Files(transport, this.api);
    this.changes = new Changes<C>(transport, this.api);
  }

  /** Returns the records of a collection. */
  records<N extends keyof C & string>(collection: N): Records<C[N]> {
    return new Records<C[N]>(this.api, collection);
  }

  /** Changes records of several collections, all or none; returns the results in order. */
  async batch(
    operations: { [N in keyof C & string]: RecordOperation<N, C[N]> }[keyof C & string][],
    options: Omit<WriteOptions, "ifMatch"> = {},
  ): Promise<OperationResult[]> {
    const body = { operations } as Schemas["RecordOperations"];
    const { data } = await this.api.POST("/api/v1/batch", { body, ...sent(options) });
    return (data as Schemas["OperationResults"]).results;
  }

  /** Begins a session, which renews itself; returns the user and the account. */
  async signIn(credentials: Schemas["Credentials"]): Promise<SignedIn> {
    return this.#signedIn("login", credentials);
  }

  /** Completes a sign-in that failed with the code `mfa_required`, whose body has the `mfa_token`. */
  async verifySecondFactor(factor: Schemas["MfaVerification"]): Promise<SignedIn> {
    return this.#signedIn("mfa/verify", factor);
  }

  async #signedIn(path: string, body: object): Promise<SignedIn> {
    const signedIn = await this.#post<SignedIn>(path, body, true);
    await this.adopt(signedIn);
    return signedIn;
  }

  /** Goes on with the tokens of a sign-in by other means, such as an invitation or a provider. */
  async adopt(pair: TokenPair): Promise<void> {
    await this.#transport.session.adopt(pair);
  }

  /** Proves a recent sign-in, which sensitive operations need. */
  async reauthenticate(password: string): Promise<void> {
    await this.adopt(await this.#post<TokenPair>("reauthenticate", { password }));
  }

  /** Ends the session, here and on the server. */
  async signOut(): Promise<void> {
    const { session } = this.#transport;
    try {
      const tokens = await session.tokens();
      if (tokens) await this.#post("logout", { refresh_token: tokens.refresh });
    } catch (error) {
      if (!(error instanceof Unauthorized)) throw error; // else it has ended before
    } finally {
      await session.forget();
    }
  }

  /** Returns the description of the API, with the collections that are open to the caller. */
  async describe(): Promise<unknown> {
    const make = () => this.#transport.request("/openapi.json?collections=1");
    return (await this.#transport.send(make)).json();
  }

  async #post<T>(action: string, data: object, anonymous = false): Promise<T> {
    const headers = { "Content-Type": "application/json" };
    const init = { method: "POST", headers, body: JSON.stringify(data) };
    const make = () => this.#transport.request(`/api/v1/auth/${action}`, init);
    return (await (await this.#transport.send(make, { anonymous })).json()) as T;
  }
}
