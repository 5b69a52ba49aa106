export { Client, type Api, type OperationResult, type SignedIn } from "./client.js";
export type { Changes, FeedPage, FollowOptions, Following, Operation, StreamEvent } from "./changes.js";
export type { components, paths } from "./description.js";
export * from "./errors.js";
export type { DownloadOptions, FileLink, FileReference, Files, OnProgress, UploadOptions, UploadedFile } from "./files.js";
export { and, anyOf, countOf, escapeLike, f, flag, not, or, type Field, type Filter, type Value } from "./filter.js";
export { etagOf, type AnyCollections, type ImportOptions, type ListOptions, type Page, type PageOptions, type RecordOperation, type Records, type Reference, type Shape, type WriteOptions } from "./records.js";
export { memoryTokens, storageTokens, type TokenPair, type TokenStore, type Tokens } from "./session.js";
export type { ClientOptions } from "./transport.js";
