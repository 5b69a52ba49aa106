import type { components } from "./description.js";

type ErrorBody = components["schemas"]["ErrorBody"];
export type Problem = components["schemas"]["Problem"];

/** Any failure of a request. `code` is stable; messages are for people and change. */
export class AtriumError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly body: Partial<ErrorBody> = {},
    /** The `X-Correlation-ID`, by which operators find the request. */
    readonly requestId: string | null = null,
    /** The seconds to wait that the server named. */
    readonly retryAfter: number | null = null,
    options?: ErrorOptions,
  ) {
    super(message, options);
    this.name = new.target.name;
  }

  /** Returns every problem; those of a 422 have the path of the value as their field. */
  get details(): Problem[] {
    const shapes = (this.body.detail ?? []).map(({ loc, msg, type }) => ({
      field: loc.slice(1).join("."),
      message: msg,
      code: type,
    }));
    return [...(this.body.details ?? []), ...shapes];
  }
}

/** No answer: no connection, a cut, or nothing within the time limit. */
export class NetworkError extends AtriumError {
  constructor(message: string, cause?: unknown) {
    super(0, "network_error", message, {}, null, null, { cause });
  }
}

/** 400 and 422: values that break a rule, or a request without the documented shape. */
export class ValidationError extends AtriumError {
  /** Returns the first message of each field; one of no field has the empty name. */
  get fields(): { [field: string]: string } {
    const messages = this.details.map(({ field, message }) => [field ?? "", message]);
    return Object.fromEntries(messages.reverse());
  }
}

/** 401: no valid credential. */
export class Unauthorized extends AtriumError {}
/** 403: the caller is not allowed to do this. */
export class Forbidden extends AtriumError {}
/** 404: no such object in this account. */
export class NotFound extends AtriumError {}
/** 409: conflict with stored data. */
export class Conflict extends AtriumError {
  /** Returns the field that clashes. */
  get field(): string | null {
    return this.body.field ?? null;
  }
}
/** 410: the feed does not have changes from there any more. */
export class FeedExpired extends AtriumError {
  /** Returns the oldest change that the feed has. */
  get oldest(): number | null {
    return this.body.oldest ?? null;
  }
}
/** 412: the record changed meanwhile. */
export class PreconditionFailed extends AtriumError {}
/** 413: body or answer too large. */
export class TooLarge extends AtriumError {}
/** 428: the collection requires an electronic signature. */
export class SignatureRequired extends AtriumError {}
/** 429: too many requests; `retryAfter` has the seconds to wait. */
export class RateLimited extends AtriumError {}
/** 5xx: an error of the server or of a proxy. */
export class ServerError extends AtriumError {}

const CLASSES: { [status: number]: typeof AtriumError } = {
  400: ValidationError,
  401: Unauthorized,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  410: FeedExpired,
  412: PreconditionFailed,
  413: TooLarge,
  422: ValidationError,
  428: SignatureRequired,
  429: RateLimited,
};

/** Returns the error that a response with a status of 400 or more stands for. */
export async function errorOf(response: Response): Promise<AtriumError> {
  const { status, headers } = response;
  const body = await bodyOf(response);
  return new (CLASSES[status] ?? (status >= 500 ? ServerError : AtriumError))(
    status,
    body.error ?? `http_${status}`,
    body.message ?? `The server answered ${status}.`,
    body,
    headers.get("X-Correlation-ID"),
    secondsOf(headers.get("Retry-After")),
  );
}

async function bodyOf(response: Response): Promise<Partial<ErrorBody>> {
  try {
    const body: unknown = await response.json();
    return typeof body === "object" && body !== null ? body : {};
  } catch {
    return {}; // a proxy's page
  }
}

function secondsOf(header: string | null): number | null {
  if (!header) return null;
  const seconds = Number(header);
  const wait = Number.isNaN(seconds) ? (Date.parse(header) - Date.now()) / 1000 : seconds;
  return Number.isNaN(wait) ? null : Math.max(0, wait);
}
