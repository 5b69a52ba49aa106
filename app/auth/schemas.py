"""What `/auth` takes and answers."""

from __future__ import annotations

from typing import Any

import marshmallow as ma

from app import config
from app.accounts.schemas import USER, AccountView, UserView
from app.rest import fields
from app.rest.paging import Page, items_field
from app.rest.schemas import Message, Schema

MOST_KEYS_NAMED = 100

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


class Registration(Schema):
    """A new account and its first user. `account` and `name` are other names for slug and name."""

    account_name = fields.Text(longest=200)
    account_slug = fields.Text(longest=200)
    account = fields.Text(longest=200, metadata={"description": "The slug of the new account."})
    name = fields.Text(longest=200, metadata={"description": "The display name of the account."})
    email = fields.Text(longest=320, required=True)
    password = fields.Text(longest=20_000, required=True)

    @ma.validates_schema
    def names_the_account(self, data: dict[str, Any], **options: Any) -> None:
        """A name or a slug must be there, unless there is but one account."""
        if config.current().single_tenant:
            return
        if not any(data.get(key) for key in ("account_name", "account_slug", "account", "name")):
            raise ma.ValidationError("Missing data for required field.", "account_name")


class Registered(Schema):
    """The new account and user; no tokens until the address is verified."""

    message = ma.fields.String(required=True)
    account = ma.fields.Nested(AccountView, required=True)
    user = ma.fields.Nested(UserView, required=True)


class Credentials(Schema):
    """Who signs in. The account may be left out where the host name carries its slug."""

    account = fields.Text(longest=200, metadata={"description": "Slug, code or id."})
    email = fields.Text(longest=320, required=True)
    password = fields.Text(longest=20_000, required=True)


class TokenPair(Schema):
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


class RefreshBody(Schema):
    """A refresh token; the cookie serves where it is absent."""

    refresh_token = fields.Text(longest=100_000)


class TokenBody(Schema):
    """The token of a mailed link."""

    token = fields.Text(longest=500, required=True)


class Me(UserView):
    """The caller."""

    user_id = ma.fields.String(required=True)
    user = ma.fields.Nested(UserView, required=True)
    account = ma.fields.Nested(AccountView, required=True)
    is_superadmin = ma.fields.Boolean(required=True)


class EmailBody(Schema):
    """Whose address to verify; the caller's own where it is absent."""

    email = fields.Text(longest=320)


class ResendBody(Schema):
    """An address and the account it belongs to; without an address, the signed-in caller's."""

    email = fields.Text(longest=320)
    account = fields.Text(longest=200)


class VerifiedUser(Schema):
    """The user whose address is proved."""

    id = ma.fields.String(required=True)
    email = ma.fields.String(required=True)
    email_verified = ma.fields.Boolean(required=True)


class Verified(Schema):
    """That an address is proved."""

    message = ma.fields.String(required=True)
    user = ma.fields.Nested(VerifiedUser, required=True)


class OwnProfile(Schema):
    """What callers may change of themselves; a new address counts once it is verified."""

    name = fields.Text(longest=200, allow_none=True)
    email = fields.Text(longest=320)
    current_password = fields.Text(
        longest=20_000, metadata={"description": "For a new address, in place of a recent sign-in."}
    )


REVOKE_KEYS = "Whether all of the user's API keys end, too."


class PasswordChange(Schema):
    """The present password and the new one."""

    current_password = fields.Text(longest=20_000, required=True)
    new_password = fields.Text(longest=20_000, required=True)
    revoke_api_keys = fields.StrictBoolean(metadata={"description": REVOKE_KEYS})


class PasswordSet(Message):
    """That a password is set, and which API keys it did not end."""

    active_api_keys = ma.fields.Integer(
        required=True, metadata={"description": "How many API keys still act as the user."}
    )
    api_keys = ma.fields.List(
        ma.fields.String(),
        required=True,
        metadata={"description": f"The names of up to {MOST_KEYS_NAMED} of them."},
    )


class OwnPassword(Schema):
    """The present password."""

    password = fields.Text(longest=20_000, required=True)


class ForgotBody(Schema):
    """Whose password is forgotten. The account may be left out where the host name carries it."""

    email = fields.Text(longest=320, required=True)
    account = fields.Text(longest=200)


class ResetBody(Schema):
    """The token of the mailed link, and the new password."""

    token = fields.Text(longest=500, required=True)
    new_password = fields.Text(longest=20_000, required=True)
    revoke_api_keys = fields.StrictBoolean(metadata={"description": REVOKE_KEYS})


class ResetToken(Schema):
    """Whether a token is good, and until when."""

    valid = ma.fields.Boolean(required=True)
    expires_at = fields.Timestamp(required=True, allow_none=True)


class SessionView(Schema):
    """A sign-in: where it was made, and when it was last used."""

    id = ma.fields.String(required=True)
    kind = ma.fields.String(required=True, metadata={"description": "api or console"})
    ip_address = ma.fields.String(required=True, allow_none=True)
    user_agent = ma.fields.String(required=True, allow_none=True)
    created_at = fields.Timestamp(required=True)
    last_used_at = fields.Timestamp(required=True)
    expires_at = fields.Timestamp(required=True)


class SessionPage(Page):
    """A page of sessions."""

    items = items_field(SessionView)
