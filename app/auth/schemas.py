"""Request and response schemas of `/auth`."""

from __future__ import annotations

import marshmallow as ma

from app import config, slugs
from app.accounts.schemas import AccountView, UserView, values_field
from app.auth.mfa.models import Method
from app.auth.models import SessionKind
from app.auth.tokens import BEARER
from app.web import fields
from app.web.examples import USER_ID
from app.web.fields import doc
from app.web.languages import LANGUAGES
from app.web.paging import page_of
from app.web.schemas import Message, Schema, View, example

MAX_KEY_NAMES = 100
CREDENTIAL = "What the browser returned, by `PublicKeyCredential.toJSON()`."

VERIFIED = {
    "message": "Your email address is verified. You can sign in now.",
    "user": {"id": USER_ID, "email": "alice@acme.example", "email_verified": True},
}


class RedirectBody(Schema):
    """The page that a mailed link leads to."""

    redirect_uri = fields.Text(
        longest=2000,
        **doc(
            "The page of your application that the mailed link leads to, with `token` in its"
            " query: one of the account's `allowed_redirect_uris`, or a link of the product.",
            **fields.URI,
        ),
    )


class Registration(RedirectBody):
    """A new account and its first user. `account` is an alias of the slug."""

    account_name = fields.Text(longest=200)
    account_slug = fields.Text(longest=200, metadata=slugs.DESCRIBED)
    account = fields.Text(longest=200, **doc("The slug of the new account.", **slugs.DESCRIBED))
    name = fields.Text(
        longest=200, **doc("The name of the user; of the account if nothing else names that one.")
    )
    email = fields.Text(longest=320, required=True, metadata=fields.EMAIL)
    password = fields.Text(longest=20_000, required=True)

    @ma.validates_schema
    def check_account(self, data: dict[str, object], **options: object) -> None:
        """Require a name or slug, except in single-tenant mode."""
        if config.current().single_tenant:
            return
        if not any(data.get(key) for key in ("account_name", "account_slug", "account", "name")):
            raise ma.ValidationError("Missing data for required field.", "account_name")


class Registered(View):
    """The new account and user, without tokens: the address must be verified first."""

    message = ma.fields.String()
    account = ma.fields.Nested(AccountView)
    user = ma.fields.Nested(UserView)


class Credentials(Schema):
    """Login credentials. The account is optional if the host name contains its slug."""

    account = fields.Text(longest=200, **doc("Slug, code or id."))
    email = fields.Text(longest=320, required=True)
    password = fields.Text(longest=20_000, required=True)


@example(token="eyJhbGciOi...")  # noqa: S106
class TokenPair(View):
    """An access token, under two names, and a refresh token."""

    token = ma.fields.String()
    access_token = ma.fields.String()
    refresh_token = ma.fields.String()
    token_type = fields.Choice((BEARER,))
    expires_in = ma.fields.Integer(**doc("Seconds."))


class SignedIn(TokenPair):
    """Tokens with their account and user."""

    account = ma.fields.Nested(AccountView)
    user = ma.fields.Nested(UserView)


class RefreshBody(Schema):
    """A refresh token; defaults to the cookie."""

    refresh_token = fields.Text(longest=100_000)


class SignOutBody(RefreshBody):
    """What to end; defaults to the session of the access token."""

    refresh_token = fields.Text(longest=100_000, **doc("Ends its session instead."))
    all = fields.StrictBoolean(**doc("Whether to end all of your sessions."))


class TokenBody(Schema):
    """The token of a mailed link."""

    token = fields.Text(longest=500, required=True)


class AddressVerification(TokenBody):
    """The token of a mailed link, and the password of its user or a new one."""

    password = fields.Text(
        longest=20_000, **doc("The one that was chosen at registration; else a 400.")
    )
    new_password = fields.Text(longest=20_000, **doc("Replaces it. Not for a changed address."))


class OwnUserView(UserView):
    """The caller's own user, with what only they may know."""

    language = fields.Choice(
        LANGUAGES,
        allow_none=True,
        **doc("Language of the console and of mails; null: the browser's."),
    )


class Me(OwnUserView):
    user_id = fields.Id()
    user = ma.fields.Nested(UserView)
    account = ma.fields.Nested(AccountView)
    is_superadmin = ma.fields.Boolean()


class EmailBody(RedirectBody):
    """The address to verify; defaults to the caller's."""

    email = fields.Text(longest=320)


class ResendBody(RedirectBody):
    """An address and its account; defaults to the signed-in caller's address."""

    email = fields.Text(longest=320)
    account = fields.Text(longest=200)


class VerifiedUser(View):
    id = fields.Id()
    email = ma.fields.String(metadata=fields.EMAIL)
    email_verified = ma.fields.Boolean()


class VerifiedAddress(View):
    message = ma.fields.String()
    user = ma.fields.Nested(VerifiedUser)


class OwnProfile(Schema):
    """The caller's changeable properties; a new address takes effect once it is verified."""

    name = fields.Text(longest=200, allow_none=True)
    language = fields.Choice(
        LANGUAGES,
        allow_none=True,
        **doc("Language of the console and of mails; null: the browser's."),
    )
    email = fields.Text(longest=320, metadata=fields.EMAIL)
    attributes = values_field()
    current_password = fields.Text(
        longest=20_000, **doc("Replaces a recent sign-in when changing the address.")
    )


REVOKE_KEYS = "Whether to revoke all of the user's API keys, too."


class PasswordChange(Schema):
    """The current and the new password."""

    current_password = fields.Text(longest=20_000, required=True)
    new_password = fields.Text(longest=20_000, required=True)
    revoke_api_keys = fields.StrictBoolean(**doc(REVOKE_KEYS))


class PasswordSet(Message):
    """Confirmation of a new password, with the API keys that stay active."""

    active_api_keys = ma.fields.Integer(**doc("Number of active API keys of the user."))
    api_keys = ma.fields.List(
        ma.fields.String(), **doc(f"Names of up to {MAX_KEY_NAMES} of these keys.")
    )


class Reauthentication(Schema):
    """The current password, and the second factor of a user who has one."""

    password = fields.Text(longest=20_000)
    method = fields.Choice(Method)
    code = fields.Text(longest=100)
    token = fields.Text(longest=1000, **doc("Of `POST /auth/mfa/options`."))
    assertion = ma.fields.Dict(**doc(CREDENTIAL))


class ForgotBody(RedirectBody):
    """A request for a reset link. The account is optional if the host name contains its slug."""

    email = fields.Text(longest=320, required=True)
    account = fields.Text(longest=200)


class MagicLinkBody(ForgotBody):
    """A request for a link to sign in."""


class ResetBody(Schema):
    """The token of the mailed link, and the new password."""

    token = fields.Text(longest=500, required=True)
    new_password = fields.Text(longest=20_000, required=True)
    revoke_api_keys = fields.StrictBoolean(**doc(REVOKE_KEYS))


class ResetToken(View):
    """Whether a token is valid, and its expiry."""

    valid = ma.fields.Boolean()
    expires_at = fields.Timestamp(allow_none=True)


class SessionView(View):
    """A session, with its origin and last use."""

    id = fields.Id()
    kind = fields.Choice(SessionKind)
    ip_address = ma.fields.String(allow_none=True)
    user_agent = ma.fields.String(allow_none=True)
    created_at = fields.Timestamp()
    last_used_at = fields.Timestamp()
    expires_at = fields.Timestamp()


SessionPage = page_of(SessionView)
