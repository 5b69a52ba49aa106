"""Schemas of accounts, users and roles that several endpoints share."""

from __future__ import annotations

import marshmallow as ma

from app.accounts import sign_in_settings, users
from app.accounts.sign_in_settings import MfaMode
from app.web import fields
from app.web.converters import LARGEST_ROLE_ID
from app.web.examples import USER_ID
from app.web.paging import PageArgs, page_of
from app.web.schemas import Schema, View, example

CREDENTIAL_TYPES = JWT, API_KEY = "jwt", "api_key"

ACCOUNT = {
    "id": "019a9f00-0000-7000-8000-00000000000a",
    "slug": "acme",
    "name": "Acme",
    "account_code": "AA0001",
    "created_at": "2026-11-20T12:00:00.123456Z",
}
USER = {
    "id": "019a9f00-0000-7000-8000-00000000000b",
    "email": "alice@acme.example",
    "name": None,
    "account_id": ACCOUNT["id"],
    "account_code": "AA0001",
    "account_name": "Acme",
    "role": "admin",
    "role_id": 1,
    "role_name": "admin",
    "groups": ["pii_access"],
    "is_active": True,
    "email_verified": True,
    "email_verified_at": "2026-11-20T12:00:00.123456Z",
    "auth_provider": "password",
    "created_at": "2026-11-20T12:00:00.123456Z",
    "updated_at": "2026-11-20T12:00:00.123456Z",
    "last_login": None,
    "token_type": JWT,
}
CREDENTIAL = (
    "Of the caller's credential in `GET /auth/me`; `jwt` in other responses. For `@snackbase/sdk`."
)
PAGE = {"skip": 0, "limit": 25}
ORDER = ma.validate.OneOf(["asc", "desc"])
METADATA = {
    "is_active": {"description": "Filter by active or inactive."},
    "sort_by": {"description": "Sort field, `created_at` by default."},
    "sort_order": {"description": "Sort direction, `desc` by default."},
    "role_id": {"description": "Only users with this role."},
}


@example(slug="acme", name="Acme")
class AccountView(View):
    """An account as all its users see it."""

    id = fields.Id()
    slug = ma.fields.String()
    name = ma.fields.String()
    account_code = ma.fields.String()
    created_at = fields.Timestamp()


@example(
    id=USER_ID,
    role="admin",
    role_name="admin",
    groups=["pii_access"],
    email_verified=True,
    email_verified_at="2026-11-20T12:00:00.123456Z",
    auth_provider="password",
)
class UserView(View):
    """A user, without the password hash."""

    id = fields.Id()
    email = ma.fields.String(metadata=fields.EMAIL)
    name = ma.fields.String(allow_none=True)
    account_id = fields.Id()
    account_code = ma.fields.String(attribute="account.account_code")
    account_name = ma.fields.String(attribute="account.name")
    role = ma.fields.String(attribute="role.name")
    role_id = ma.fields.Integer()
    role_name = ma.fields.String()
    groups = ma.fields.List(ma.fields.String(), attribute="group_names")
    is_active = ma.fields.Boolean()
    email_verified = ma.fields.Boolean()
    email_verified_at = fields.Timestamp(allow_none=True)
    auth_provider = ma.fields.String()
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()
    last_login = fields.Timestamp(allow_none=True)
    token_type = fields.Choice(
        CREDENTIAL_TYPES, dump_default=JWT, metadata={"description": CREDENTIAL}
    )


class FullAccountView(AccountView):
    """An account as superadmins and its own admins see it."""

    is_active = ma.fields.Boolean()
    updated_at = fields.Timestamp()


UserPage = page_of(UserView)


class TeamArgs(PageArgs):
    """Filters and sort order of a list of users."""

    role_id = fields.Integer(1, LARGEST_ROLE_ID, metadata=METADATA["role_id"])
    is_active = ma.fields.Boolean(metadata=METADATA["is_active"])
    search = fields.Text(
        longest=200, metadata={"description": "Part of the name or email address."}
    )
    sort_by = ma.fields.String(
        validate=ma.validate.OneOf(list(users.SORTABLE)), metadata=METADATA["sort_by"]
    )
    sort_order = ma.fields.String(validate=ORDER, metadata=METADATA["sort_order"])


class NewMember(Schema):
    """A new user of the own account, who gets a link to set a password by mail."""

    email = fields.Text(longest=320, required=True, metadata=fields.EMAIL)
    name = fields.Text(longest=200, allow_none=True)
    role_id = fields.Integer(1, LARGEST_ROLE_ID)
    role = fields.Text(longest=100)


class ChangedUser(Schema):
    email = fields.Text(longest=320, metadata=fields.EMAIL)
    name = fields.Text(longest=200, allow_none=True)
    role_id = fields.Integer(1, LARGEST_ROLE_ID)
    role = fields.Text(longest=100)
    is_active = fields.StrictBoolean()


@example(id=3, name="viewer", description="Reads the account's records.")
class RoleView(View):
    id = ma.fields.Integer()
    name = ma.fields.String()
    description = ma.fields.String(allow_none=True)
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()


RolePage = page_of(RoleView)


class ChangedRole(Schema):
    """The properties of a role or group to change."""

    name = fields.Text(longest=100, shortest=1)
    description = fields.Text(longest=1000, allow_none=True)


class NewRole(ChangedRole):
    requires = ("name",)


PROVISIONING = (
    "Whether a first sign-in with a provider creates a user. Null means yes for the account's own"
    " providers and no for the system's. OAuth providers create users only if `sso_email_domains`"
    " lists domains, the provider names a Microsoft tenant, or this is true and you host the"
    " provider yourself."
)
DOMAINS = (
    "Verified addresses in these domains become users. If empty, only SAML, a named Microsoft"
    " tenant and providers that you host yourself create users."
)
GROUP_ROLES = "Roles assigned at sign-in by the provider's groups; the first match applies."
ALLOW_ADMIN = "Whether a sign-in may assign the role `admin`."
IGNORED = (
    "Groups of `sso_group_roles` without effect: their role is `admin` while `sso_allow_admin` is"
    " off, or their role no longer exists."
)
FRAGMENT = "Whether browsers return with tokens in the URL fragment instead of a one-time code."


class GroupRole(Schema):
    """A provider's group and the role that its members get."""

    group = fields.Text(shortest=1, longest=300, required=True)
    role = fields.Text(shortest=1, longest=100, required=True)


MFA = (
    "Second factors: `off` uses none, `optional` those that users have set up, `required` also"
    " makes others set one up at sign-in. Sign-ins with the account's own provider need none."
)
MFA_ROLES = "Names of the roles that `required` concerns; empty: all."
MFA_GRACE = "Days before `required` takes effect, from its start or the user's creation."
MAGIC_LINK = (
    "Whether users may sign in by a link that is mailed to them. Without effect where"
    " `password_sign_in` is false."
)
DEVICE_MAIL = "Whether users get a mail about a sign-in from a device that is new for them."
SESSION_IDLE = (
    "Hours until a session ends without use, which is a refresh of its tokens or an opened page of"
    " the console. Null, or more than the service allows: as the service's."
)
SESSION_MAX = "Hours until a session ends in any case; null: as the service's."
PASSWORDS = "Whether users may sign in by password. Superadmins always may."


class OwnAccountBody(Schema):
    """The properties of the own account to change."""

    name = fields.Text(shortest=1, longest=200)
    allowed_redirect_uris = ma.fields.List(
        fields.Text(longest=2000, metadata=fields.URI), validate=ma.validate.Length(max=50)
    )
    default_redirect_uri = fields.Text(longest=2000, allow_none=True, metadata=fields.URI)
    cors_origins = ma.fields.List(
        fields.Text(longest=300, metadata=fields.URI), validate=ma.validate.Length(max=50)
    )
    sso_provisioning = fields.StrictBoolean(allow_none=True, metadata={"description": PROVISIONING})
    sso_email_domains = ma.fields.List(
        fields.Text(longest=253),
        validate=ma.validate.Length(max=50),
        metadata={"description": DOMAINS},
    )
    sso_group_roles = ma.fields.List(
        ma.fields.Nested(GroupRole),
        validate=ma.validate.Length(max=200),
        metadata={"description": GROUP_ROLES},
    )
    sso_allow_admin = fields.StrictBoolean(metadata={"description": ALLOW_ADMIN})
    sso_tokens_in_fragment = fields.StrictBoolean(metadata={"description": FRAGMENT})
    mfa = fields.Choice(MfaMode, metadata={"description": MFA})
    mfa_roles = ma.fields.List(
        fields.Text(shortest=1, longest=100),
        validate=ma.validate.Length(max=50),
        metadata={"description": MFA_ROLES},
    )
    mfa_grace_days = fields.Integer(
        0, sign_in_settings.MAX_GRACE_DAYS, metadata={"description": MFA_GRACE}
    )
    password_sign_in = fields.StrictBoolean(metadata={"description": PASSWORDS})
    magic_link = fields.StrictBoolean(metadata={"description": MAGIC_LINK})
    new_device_mail = fields.StrictBoolean(metadata={"description": DEVICE_MAIL})
    session_idle_hours = fields.Integer(
        1,
        sign_in_settings.MAX_IDLE_HOURS,
        allow_none=True,
        metadata={"description": SESSION_IDLE},
    )
    session_max_hours = fields.Integer(
        1,
        sign_in_settings.MAX_SESSION_HOURS,
        allow_none=True,
        metadata={"description": SESSION_MAX},
    )
