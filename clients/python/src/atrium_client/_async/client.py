"""The client of an instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from atrium_client._async.changes import AsyncChanges
from atrium_client._async.files import AsyncFiles
from atrium_client._async.records import AsyncRecords
from atrium_client._async.session import AsyncSession
from atrium_client.rest import AuthenticatedClient
from atrium_client.retries import Retries
from atrium_client.tokens import MemoryStorage, Tokens, TokenStorage

Untyped = dict[str, Any]


class AsyncClient:
    """A client of an Atrium instance, with an API key or the session of a user.

    `account` names the account to act in, for callers that may choose one.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        account: str | None = None,
        storage: TokenStorage | None = None,
        retries: Retries | None = None,
        timeout: float = 30,
    ) -> None:
        self.session = AsyncSession(
            base_url,
            api_key=api_key,
            account=account,
            storage=storage or MemoryStorage(),
            retries=retries or Retries(),
            timeout=timeout,
        )
        self.files = AsyncFiles(self.session)
        self.changes = AsyncChanges(self.session)
        api = AuthenticatedClient(base_url, "", raise_on_unexpected_status=True)
        self.api = api.set_async_httpx_client(self.session)
        """What the functions below `atrium_client.rest.api` take as `client`."""

    async def sign_in(self, account: str, email: str, password: str) -> dict[str, Any]:
        """Sign in; returns the user.

        Users with a second factor get Unauthorized with the code `mfa_required`: its `body` has the
        `mfa_token` for `verify_second_factor`, and the `methods`.
        """
        body = {"account": account, "email": email, "password": password}
        return await self._signed_in("login", body)

    async def verify_second_factor(
        self, mfa_token: str, code: str, method: str = "totp"
    ) -> dict[str, Any]:
        """Complete a sign-in with a code; returns the user."""
        body = {"mfa_token": mfa_token, "method": method, "code": code}
        return await self._signed_in("mfa/verify", body)

    async def _signed_in(self, path: str, body: dict[str, str]) -> dict[str, Any]:
        answer = await self.session.json("POST", f"auth/{path}", json=body)
        self.session.store(Tokens.from_answer(answer))
        user: dict[str, Any] = answer["user"]
        return user

    async def sign_out(self) -> None:
        """End the session, and forget its tokens."""
        if tokens := self.session.tokens:
            body = {"refresh_token": tokens.refresh_token}
            await self.session.json("POST", "auth/logout", json=body)
        self.session.store(None)

    @property
    def is_signed_in(self) -> bool:
        """Whether there is a session, which may have expired."""
        return self.session.tokens is not None

    def records(self, collection: str) -> AsyncRecords[Untyped, Untyped, Untyped, Untyped, Untyped]:
        """Return the records of a collection."""
        return AsyncRecords(self, collection)

    async def batch(self, operations: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Change records of several collections, all or none; returns the results in order.

        An operation has `method`, `collection`, `id`, `body`, `as` and `if_match`, as far as it
        needs them.
        """
        answer = await self.session.json("POST", "batch", json={"operations": operations})
        results: Sequence[Mapping[str, Any]] = answer["results"]
        return results

    async def close(self) -> None:
        """Close the connections."""
        await self.session.aclose()

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self.close()
