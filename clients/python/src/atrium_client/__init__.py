"""A client of Atrium: `Client` for synchronous code, `AsyncClient` for asyncio."""

from atrium_client._async.changes import AsyncChanges
from atrium_client._async.client import AsyncClient
from atrium_client._async.files import AsyncFiles
from atrium_client._async.records import AsyncRecords
from atrium_client._sync.changes import Changes
from atrium_client._sync.client import Client
from atrium_client._sync.files import Files
from atrium_client._sync.records import Records
from atrium_client.changes import Change, ChangePage, Reset
from atrium_client.errors import (
    AtriumError,
    Conflict,
    FeedExpired,
    Forbidden,
    NetworkError,
    NotFound,
    PreconditionFailed,
    RateLimited,
    ServerError,
    SignatureRequired,
    TooLarge,
    Unauthorized,
    ValidationError,
)
from atrium_client.files import FileInfo, Link
from atrium_client.filters import Condition, F, Field, any_of, count_of, flag
from atrium_client.records import Newest, Page, Record, etag_of
from atrium_client.retries import Retries
from atrium_client.tokens import FileStorage, MemoryStorage, Tokens, TokenStorage
from atrium_client.version import VERSION as __version__

__all__ = [
    "AsyncChanges",
    "AsyncClient",
    "AsyncFiles",
    "AsyncRecords",
    "AtriumError",
    "Change",
    "ChangePage",
    "Changes",
    "Client",
    "Condition",
    "Conflict",
    "F",
    "FeedExpired",
    "Field",
    "FileInfo",
    "FileStorage",
    "Files",
    "Forbidden",
    "Link",
    "MemoryStorage",
    "NetworkError",
    "Newest",
    "NotFound",
    "Page",
    "PreconditionFailed",
    "RateLimited",
    "Record",
    "Records",
    "Reset",
    "Retries",
    "ServerError",
    "SignatureRequired",
    "TokenStorage",
    "Tokens",
    "TooLarge",
    "Unauthorized",
    "ValidationError",
    "__version__",
    "any_of",
    "count_of",
    "etag_of",
    "flag",
]
