"""What `/auth` takes and answers."""

from __future__ import annotations

from typing import Any

import marshmallow as ma

from app import config, rest
from app.accounts.schemas import USER, AccountView, UserView

PAIR = {
    "token": "eyJhbGciOi...",
    "access_token": "eyJhbGciOi...",
    "refresh_token": "eyJhbGciOi...",
    "token_type": "bearer",
    "expires_in": 3600,
}
SESSION = {
    "id": "019a9f00-0000-7000-8000-00000000000d",
    "kind": "api",
    "ip_address": "192.0.2.7",
    "user_agent": "curl/8.5.0",
    "created_at": "2026-11-20T12:00:00.123456Z",
    "last_used_at": "2026-11-20T12:00:00.123456Z",
    "expires_at": "2026-11-27T12:00:00.123456Z",
}
VERIFIED = {
    "message": "Your email address is verified. You can sign in now.",
    "user": {"id": USER["id"], "email": USER["email"], "email_verified": True},
}


class Registration(rest.Schema):
    """A new account and its first user. `account` and `name` are other names for slug and name."""

    account_name = rest.Text(longest=200)
    account_slug = rest.Text(longest=200)
    account = rest.Text(longest=200, metadata={"description": "The slug of the new account."})
    name = rest.Text(longest=200, metadata={"description": "The display name of the account."})
    email = rest.Text(longest=320, required=True)
    password = rest.Text(longest=20_000, required=True)

    @ma.validates_schema
    def names_the_account(self, data: dict[str, Any], **options: Any) -> None:
        """A name or a slug must be there, unless there is but one account."""
        if config.current().single_tenant:
            return
        if not any(data.get(key) for key in ("account_name", "account_slug", "account", "name")):
            raise ma.ValidationError("Missing data for required field.", "account_name")


class Registered(rest.Schema):
    """The new account and user; no tokens until the address is verified."""

    message = ma.fields.String(required=True)
    account = ma.fields.Nested(AccountView, required=True)
    user = ma.fields.Nested(UserView, required=True)


class Credentials(rest.Schema):
    """Who signs in. The account may be left out where the host name carries its slug."""

    account = rest.Text(longest=200, metadata={"description": "Slug, code or id."})
    email = rest.Text(longest=320, required=True)
    password = rest.Text(longest=20_000, required=True)


class TokenPair(rest.Schema):
    """An access token (under both of its names) and a refresh token."""

    token = ma.fields.String(required=True)
    access_token = ma.fields.String(required=True)
    refresh_token = ma.fields.String(required=True)
    token_type = ma.fields.String(required=True)
    expires_in = ma.fields.Integer(required=True, metadata={"description": "Seconds."})


class SignedIn(TokenPair):
    """Tokens, and whose they are."""

    account = ma.fields.Nested(AccountView, required=True)
    user = ma.fields.Nested(UserView, required=True)


class RefreshBody(rest.Schema):
    """A refresh token; the cookie serves where it is absent."""

    refresh_token = rest.Text(longest=100_000)


class TokenBody(rest.Schema):
    """The token of a mailed link."""

    token = rest.Text(longest=500, required=True)


class Me(UserView):
    """The caller."""

    user_id = ma.fields.String(required=True)
    user = ma.fields.Nested(UserView, required=True)
    account = ma.fields.Nested(AccountView, required=True)
    is_superadmin = ma.fields.Boolean(required=True)


class EmailBody(rest.Schema):
    """Whose address to verify; the caller's own where it is absent."""

    email = rest.Text(longest=320)


class ResendBody(rest.Schema):
    """An address and the account it belongs to; without an address, the signed-in caller's."""

    email = rest.Text(longest=320)
    account = rest.Text(longest=200)


class VerifiedUser(rest.Schema):
    """The user whose address is proved."""

    id = ma.fields.String(required=True)
    email = ma.fields.String(required=True)
    email_verified = ma.fields.Boolean(required=True)


class Verified(rest.Schema):
    """That an address is proved."""

    message = ma.fields.String(required=True)
    user = ma.fields.Nested(VerifiedUser, required=True)


class OwnProfile(rest.Schema):
    """What callers may change of themselves; a new address counts once it is verified."""

    name = rest.Text(longest=200, allow_none=True)
    email = rest.Text(longest=320)


class PasswordChange(rest.Schema):
    """The present password and the new one."""

    current_password = rest.Text(longest=20_000, required=True)
    new_password = rest.Text(longest=20_000, required=True)


class ForgotBody(rest.Schema):
    """Whose password is forgotten. The account may be left out where the host name carries it."""

    email = rest.Text(longest=320, required=True)
    account = rest.Text(longest=200)


class ResetBody(rest.Schema):
    """The token of the mailed link, and the new password."""

    token = rest.Text(longest=500, required=True)
    new_password = rest.Text(longest=20_000, required=True)


class ResetToken(rest.Schema):
    """Whether a token is good, and until when."""

    valid = ma.fields.Boolean(required=True)
    expires_at = rest.Timestamp(required=True, allow_none=True)


class SessionView(rest.Schema):
    """A sign-in: where it was made, and when it was last used."""

    id = ma.fields.String(required=True)
    kind = ma.fields.String(required=True, metadata={"description": "api or console"})
    ip_address = ma.fields.String(required=True, allow_none=True)
    user_agent = ma.fields.String(required=True, allow_none=True)
    created_at = rest.Timestamp(required=True)
    last_used_at = rest.Timestamp(required=True)
    expires_at = rest.Timestamp(required=True)


class SessionPage(rest.page_schema(SessionView)):  # type: ignore[misc]
    """A page of sessions."""
