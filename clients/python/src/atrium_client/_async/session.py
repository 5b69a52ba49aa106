"""Requests with a credential, retries and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from atrium_client.concurrency import AsyncLock, async_shielded, async_sleep
from atrium_client.errors import AtriumError, NetworkError, Unauthorized, error_of
from atrium_client.records import sendable
from atrium_client.retries import Retries, add_idempotency_key, is_repeatable
from atrium_client.tokens import Tokens, TokenStorage
from atrium_client.version import VERSION

PREFIX = "/api/v1"
# A second use of a refresh token ends the session: these need no access token, and renew none.
SIGN_INS = (f"{PREFIX}/auth/login", f"{PREFIX}/auth/refresh")

# Servers close idle connections after 5 seconds or more; a request must not meet that.
LIMITS = httpx.Limits(max_connections=100, keepalive_expiry=4)


class AsyncSession(httpx.AsyncClient):
    """An HTTP client that signs in, repeats what may be repeated, and raises `AtriumError`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        account: str | None,
        storage: TokenStorage,
        retries: Retries,
        timeout: float,
    ) -> None:
        headers = {"User-Agent": f"atrium-client-python/{VERSION}"}
        if account:
            headers["X-Account-ID"] = account
        super().__init__(base_url=base_url, headers=headers, timeout=timeout, limits=LIMITS)
        self.retries = retries
        self._api_key = api_key
        self._storage = storage
        self._tokens = storage.load()
        self._renewing = AsyncLock()

    @property
    def tokens(self) -> Tokens | None:
        """The tokens of the session."""
        return self._tokens

    def store(self, tokens: Tokens | None) -> None:
        """Replace the tokens of the session, or forget them."""
        self._storage.save(tokens)
        self._tokens = tokens

    def build_request(
        self, method: str, url: httpx.URL | str, *, json: Any = None, **options: Any
    ) -> httpx.Request:
        """Build a request, in whose JSON decimals are texts."""
        return super().build_request(method, url, json=sendable(json), **options)

    async def json(self, method: str, path: str, **options: Any) -> Any:
        """Return the JSON that an operation answers, None if it answers nothing."""
        response = await self.request(method, f"{PREFIX}/{path}", **options)
        return response.json() if response.content else None

    @asynccontextmanager
    async def open(self, path: str, **options: Any) -> AsyncIterator[httpx.Response]:
        """Send a GET, and read its response in pieces. Raises AtriumError."""
        try:
            # A download may be redirected to a bucket, which is not sent the credential.
            options["follow_redirects"] = True
            async with self.stream("GET", path, **options) as response:
                yield response
        except httpx.RequestError as error:
            raise _network_error(path, error) from error

    async def send(
        self, request: httpx.Request, *, stream: bool = False, **options: Any
    ) -> httpx.Response:
        """Send a request, again where that is safe. Raises AtriumError."""
        add_idempotency_key(request)
        attempt, may_renew = 1, True
        while True:
            token = await self._authorize(request)
            try:
                return await self._send_once(request, stream=stream, **options)
            except AtriumError as error:
                if isinstance(error, Unauthorized) and token and may_renew and _is_stale(error):
                    may_renew = False
                    await async_shielded(self._renew(token))
                    if is_repeatable(request):
                        continue
                    raise
                delay = self.retries.delay(request, error, attempt)
                if delay is None:
                    raise
            await async_sleep(delay)
            attempt += 1

    async def _send_once(self, request: httpx.Request, **options: Any) -> httpx.Response:
        try:
            response = await super().send(request, **options)
            if response.is_success:
                return response
            await response.aread()
        except httpx.RequestError as error:
            raise _network_error(request.url.path, error) from error
        raise error_of(response)

    async def _authorize(self, request: httpx.Request) -> str | None:
        """Set the credential of a request; returns the token, if that can be renewed."""
        if not self._is_own(request.url) or request.url.path.endswith(SIGN_INS):
            return None
        if self._api_key:
            request.headers["Authorization"] = f"Bearer {self._api_key}"
            return None
        if self._tokens and self._tokens.is_expired:
            await async_shielded(self._renew(self._tokens.access_token))
        if self._tokens is None:
            return None
        request.headers["Authorization"] = f"Bearer {self._tokens.access_token}"
        return self._tokens.access_token

    def _is_own(self, url: httpx.URL) -> bool:
        own = self.base_url
        return (url.scheme, url.host, url.port) == (own.scheme, own.host, own.port)

    async def _renew(self, refused: str) -> Tokens | None:
        """Trade the refresh token, unless another call or process has replaced the refused one."""
        async with self._renewing:
            self._tokens = self._storage.load()
            if self._tokens is None or self._tokens.access_token != refused:
                return self._tokens
            body = {"refresh_token": self._tokens.refresh_token}
            try:
                answer = await self.json("POST", "auth/refresh", json=body)
            except Unauthorized:
                self.store(None)
                raise
            self.store(Tokens.from_answer(answer))
            return self._tokens


def _network_error(path: str, error: httpx.RequestError) -> NetworkError:
    return NetworkError(f"{path}: {error or type(error).__name__}")


def _is_stale(error: AtriumError) -> bool:
    # A wrong password is a 401, too.
    return error.code != "authentication_failed"
