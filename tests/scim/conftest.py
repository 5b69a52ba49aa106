"""A directory that provisions acme, and one of globex."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Caller, Cast

TOKENS = "account/scim/tokens"


def token_of(admin: Caller) -> str:
    """The text of a new SCIM token."""
    answer = admin.post(TOKENS)
    assert answer.status_code == 201, answer.text
    return str(answer.json["token"])


class Directory(Caller):
    """A directory with a token: sends SCIM to paths below `/scim/v2`."""

    def __init__(self, admin: Caller) -> None:
        self.token = token_of(admin)
        super().__init__(admin.app, Authorization=f"Bearer {self.token}")

    def __call__(self, method: str, path: str, json: Any = None, **options: Any) -> Any:
        """Send a request."""
        return super().__call__(method, f"/scim/v2/{path}", json, **options)

    def make_user(
        self, user_name: str = "dora@acme.example", /, **attributes: Any
    ) -> dict[str, Any]:
        """A new user."""
        answer = self.post("Users", {"userName": user_name, **attributes})
        assert answer.status_code == 201, answer.text
        user: dict[str, Any] = answer.json
        return user

    def make_group(self, name: str, *user_ids: str) -> dict[str, Any]:
        """A new group."""
        members = [{"value": user_id} for user_id in user_ids]
        answer = self.post("Groups", {"displayName": name, "members": members})
        assert answer.status_code == 201, answer.text
        group: dict[str, Any] = answer.json
        return group


@pytest.fixture
def okta(cast: Cast) -> Directory:
    """The directory of acme."""
    return Directory(cast.alice)


@pytest.fixture
def entra(cast: Cast) -> Directory:
    """The directory of globex."""
    return Directory(cast.charlie)
