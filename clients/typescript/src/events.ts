import { NetworkError } from "./errors.js";
import { abortable } from "./transport.js";

/** A server-sent event. */
export interface ServerEvent {
  type: string;
  id: string;
  data: string;
}

/** Returns the events of a stream. Throws a NetworkError when it is cut, or silent for too long. */
export async function* events(
  stream: ReadableStream<Uint8Array>,
  silence: number,
  signal: AbortSignal,
): AsyncGenerator<ServerEvent, void> {
  let event = emptyEvent();
  for await (const line of lines(stream, silence, signal)) {
    if (line) {
      const [name, value] = split(line);
      if (name === "event") event.type = value;
      if (name === "id") event.id = value;
      if (name === "data") event.data += event.data ? `\n${value}` : value;
    } else {
      if (event.data || event.type !== "message") yield event;
      event = emptyEvent();
    }
  }
}

const emptyEvent = (): ServerEvent => ({ type: "message", id: "", data: "" });

function split(line: string): [string, string] {
  const colon = line.indexOf(":");
  return colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
}

async function* lines(
  stream: ReadableStream<Uint8Array>,
  silence: number,
  signal: AbortSignal,
): AsyncGenerator<string> {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await abortable(signal, within(silence, reader.read()));
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const complete = text.split(/\r?\n/);
      text = complete.pop()!;
      yield* complete;
    }
  } catch (error) {
    throw new NetworkError("The stream was cut off.", error);
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

function within<T>(milliseconds: number, work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("silence")), milliseconds);
    work.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}
