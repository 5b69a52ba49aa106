import type { Api } from "./client.js";
import type { components } from "./description.js";
import { NetworkError } from "./errors.js";
import { type Send, type Transport, abortable, randomKey } from "./transport.js";

export type UploadedFile = Required<components["schemas"]["UploadedFile"]>;
export type FileLink = Required<components["schemas"]["FileLink"]>;

/** Called with the bytes that have passed, and with all there are if that is known. */
export type OnProgress = (done: number, total: number | null) => void;

export interface UploadOptions {
  /** The name to store; by default that of the `File`. */
  name?: string;
  onProgress?: OnProgress;
  signal?: AbortSignal;
}

export interface DownloadOptions {
  /** For images: a thumbnail no larger than this, such as `200x200`. */
  thumb?: string;
  /** Of a thumbnail: the whole image, or cut to its shape. */
  fit?: "contain" | "cover";
  /** Of a thumbnail; by default WebP. */
  format?: "webp" | "jpeg" | "png";
  /** A part of the file, such as `bytes=100-199`. */
  range?: string;
  onProgress?: OnProgress;
  signal?: AbortSignal;
}

/** A file by its id, or as it stands in a record. */
export type FileReference = string | { id: string };

/** Uploads and downloads. */
export class Files {
  constructor(
    private readonly transport: Transport,
    private readonly api: Api,
  ) {}

  /** Uploads a file; put the `id` of what is returned into a record within 24 hours. */
  async upload(file: Blob, options: UploadOptions = {}): Promise<UploadedFile> {
    const name = options.name ?? ("name" in file ? String(file.name) : "file");
    const boundary = randomKey();
    const form = multipart(file, name, boundary);
    const headers = { "Content-Type": `multipart/form-data; boundary=${boundary}` };
    const make = () =>
      this.transport.request("/api/v1/files/upload", {
        method: "POST",
        headers,
      });
    const send = typeof XMLHttpRequest === "undefined" ? streamed : byXMLHttpRequest;
    const response = await this.transport.send(make, {
      fetch: send(form, options.onProgress),
      signal: options.signal,
      timeout: 2 ** 31 - 1, // the answer begins after the last byte
    });
    return ((await response.json()) as { file: UploadedFile }).file;
  }

  /** Returns the response with the bytes, for `.blob()`, `.arrayBuffer()` or `.body`. */
  async download(file: FileReference, options: DownloadOptions = {}): Promise<Response> {
    const query = new URLSearchParams();
    for (const name of ["thumb", "fit", "format"] as const) {
      const value = options[name];
      if (value) query.set(name, value);
    }
    const path = `/api/v1/files/${encodeURIComponent(idOf(file))}${query.size ? `?${query}` : ""}`;
    const init: RequestInit = options.range ? { headers: { Range: options.range } } : {};
    const { signal } = options;
    const make = () => this.transport.request(path, init);
    const response = await this.transport.send(make, { signal, streamed: true });
    const length = response.headers.get("Content-Length");
    const total = length && !response.headers.has("Content-Encoding") ? Number(length) : null;
    const { status, headers } = response;
    const body = response.body && counted(response.body, total, options.onProgress, signal);
    return new Response(body, { status, headers });
  }

  /** Returns an address that needs no credential; by default for an hour. */
  async link(file: FileReference, expiresIn = 3600): Promise<FileLink> {
    const { data } = await this.api.POST("/api/v1/files/{file_id}/link", {
      params: { path: { file_id: idOf(file) } },
      body: { expires_in: expiresIn },
    });
    return data as FileLink;
  }

  /** Deletes an upload that no record has. */
  async delete(file: FileReference): Promise<void> {
    const params = { path: { file_id: idOf(file) } };
    await this.api.DELETE("/api/v1/files/{file_id}", { params });
  }
}

const idOf = (file: FileReference): string => (typeof file === "string" ? file : file.id);

// A blob of blobs, which copies no bytes.
function multipart(file: Blob, name: string, boundary: string): Blob {
  const escaped = name.replace(/["\r\n]/g, encodeURIComponent);
  const type = file.type || "application/octet-stream";
  const head =
    `--${boundary}\r\nContent-Disposition: form-data; name="file"; filename="${escaped}"\r\n` +
    `Content-Type: ${type}\r\n\r\n`;
  return new Blob([head, file, `\r\n--${boundary}--\r\n`]);
}

function streamed(form: Blob, onProgress?: OnProgress): Send {
  return ({ url, method, headers }, init) => {
    const body = counted(form.stream(), form.size, onProgress);
    return fetch(url, { ...init, method, headers, body, duplex: "half" } as RequestInit);
  };
}

// `fetch` of browsers reports no progress of uploads.
function byXMLHttpRequest(form: Blob, onProgress?: OnProgress): Send {
  return (request, { signal }) =>
    new Promise((resolve, reject) => {
      const xhr = new XMLHttpRequest();
      xhr.open(request.method, request.url);
      request.headers.forEach((value, name) => xhr.setRequestHeader(name, value));
      xhr.responseType = "blob";
      xhr.upload.onprogress = ({ loaded, total }) => onProgress?.(loaded, total);
      xhr.onload = () => resolve(responseOf(xhr));
      xhr.onerror = () => reject(new TypeError("The connection failed."));
      xhr.onabort = () => reject(signal?.reason);
      signal?.addEventListener("abort", () => xhr.abort());
      xhr.send(form);
    });
}

function responseOf(xhr: XMLHttpRequest): Response {
  const lines = xhr.getAllResponseHeaders().trim().split("\r\n");
  const headers = lines.map((line): [string, string] => {
    const colon = line.indexOf(":");
    return [line.slice(0, colon), line.slice(colon + 1).trim()];
  });
  return new Response(xhr.response as Blob, { status: xhr.status, headers });
}

function counted(
  stream: ReadableStream<Uint8Array<ArrayBuffer>>,
  total: number | null,
  onProgress?: OnProgress,
  signal?: AbortSignal,
): ReadableStream<Uint8Array<ArrayBuffer>> {
  const reader = stream.getReader();
  let done = 0;
  return new ReadableStream({
    async pull(controller) {
      try {
        const chunk = await abortable(signal, reader.read());
        if (chunk.done) return controller.close();
        done += chunk.value.byteLength;
        onProgress?.(done, total);
        controller.enqueue(chunk.value);
      } catch (error) {
        reader.cancel(error).catch(() => undefined);
        controller.error(signal?.aborted ? error : new NetworkError("Cut off.", error));
      }
    },
    cancel: (reason) => reader.cancel(reason),
  });
}
