"""Schemas of accounts, users and roles that several endpoints share."""

from __future__ import annotations

from typing import Any

import marshmallow as ma

from app.accounts import attributes, sign_in_settings, users
from app.accounts.attributes import Kind, Level
from app.accounts.models import UserKind
from app.accounts.plans import stored as plans
from app.accounts.plans.schemas import FLAGS
from app.accounts.sign_in_settings import MfaMode
from app.accounts.usage import quotas
from app.collections import attribute_values
from app.types import JSONObject
from app.web import fields
from app.web.app import LARGEST_ROLE_ID, get_g
from app.web.examples import USER_ID
from app.web.fields import doc
from app.web.paging import PageArgs, page_of
from app.web.schemas import Schema, View, example

CREDENTIAL_TYPES = JWT, API_KEY = "jwt", "api_key"

ORDER = ma.validate.OneOf(["asc", "desc"])
ACTIVE = doc("Filter by active or inactive.")
SORT_BY = doc("Sort field, `created_at` by default.")
KIND = "Whether the user is a person or a service, which has no address and never signs in."
VALUES = "Values of attributes, by name; those that the caller sees."
CHANGED_VALUES = "Values of attributes, by name; null takes one away, others stay."
MAY_BRAND = (
    "Whether the account may have a brand and texts of mails of its own; null: as the product's"
    " `accounts_may_brand` says for all."
)
OPENS_CONSOLE = (
    "Whether users of the role may work with records in the console; admins always may. By default"
    " not."
)
SORT_ORDER = doc("Sort direction, `desc` by default.")


class ValuesOf(ma.fields.Field[Any]):
    """The values of attributes that the caller sees; absent in answers to a sign-in."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(metadata={"type": "object", "description": VALUES})
        self.kind = kind

    def get_value(self, obj: Any, attr: str, *args: Any, **options: Any) -> Any:
        """Return the values that the caller sees."""
        values, caller = getattr(obj, "attributes", None), get_g().get("principal")
        if values is None or caller is None:
            return ma.missing
        if not values:
            return {}
        level = attribute_values.level_for_account(caller)
        if self.kind is Kind.USERS and caller.user_id == obj.id:
            level = max(level, Level.SELF)
        # Once for all rows of a list.
        schemas = get_g().setdefault("attributes", {})
        if self.kind not in schemas:
            schemas[self.kind] = attributes.load(self.kind)
        return schemas[self.kind].shown(values, level)


def values_field() -> ma.fields.Field[Any]:
    """Values of attributes to change."""
    return ma.fields.Dict(keys=fields.Text(longest=100), **doc(CHANGED_VALUES))


@example(slug="acme", name="Acme")
class AccountView(View):
    """An account as all its users see it."""

    id = fields.Id()
    slug = ma.fields.String()
    name = ma.fields.String()
    account_code = ma.fields.String()
    created_at = fields.Timestamp()


class AddressField(ma.fields.String):
    """The address of a user; null for a service."""

    def __init__(self) -> None:
        super().__init__(allow_none=True, metadata=fields.EMAIL)

    def get_value(self, *args: Any, **options: Any) -> Any:
        """Return the address or None."""
        return super().get_value(*args, **options) or None


@example(
    id=USER_ID,
    kind="person",
    role="admin",
    role_name="admin",
    groups=["pii_access"],
    email_verified=True,
    email_verified_at="2026-11-20T12:00:00.123456Z",
    auth_provider="password",
)
class UserView(View):
    """A user, without the password hash."""

    optional = ("attributes",)

    id = fields.Id()
    kind = fields.Choice(UserKind, **doc(KIND))
    email = AddressField()
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
    attributes = ValuesOf(Kind.USERS)
    token_type = fields.Choice(
        CREDENTIAL_TYPES,
        dump_default=JWT,
        **doc(
            "Of the caller's credential in `GET /auth/me`; `jwt` in other responses. For"
            " `@snackbase/sdk`."
        ),
    )


class TermsOf(ma.fields.Field[Any]):
    """The flags or quotas of an account, by its plan and beside it."""

    def __init__(self, kind: str, **metadata: Any) -> None:
        super().__init__(metadata=metadata)
        self.kind = kind

    def get_value(self, obj: Any, attr: str, *args: Any, **options: Any) -> Any:
        """Return names of flags, or limits by meter."""
        # Once for all rows of a list.
        known = get_g().get("plans") or get_g().setdefault("plans", plans.load())
        plan = plans.of_account(obj.plan, known)
        if self.kind == "flags":
            return sorted(plans.flags(plan, obj.flags))
        limits = quotas.of_account(obj.id, obj.settings, plan)
        return {one.meter: {"soft": one.soft, "hard": one.hard} for one in limits}


@example(plan="pro", flags=["sla"], quotas={"records": {"soft": 80_000, "hard": 100_000}})
class FullAccountView(AccountView):
    """An account as superadmins and its own admins see it."""

    optional = ("attributes",)

    is_active = ma.fields.Boolean()
    may_brand = ma.fields.Boolean(allow_none=True, **doc(MAY_BRAND))
    updated_at = fields.Timestamp()
    attributes = ValuesOf(Kind.ACCOUNTS)
    plan = ma.fields.String(allow_none=True)
    flags = TermsOf("flags", type="array", items={"type": "string"}, description=FLAGS)
    quotas = TermsOf("quotas", type="object", description="The limits that apply, by meter.")


UserPage = page_of(UserView)


class TeamArgs(PageArgs):
    """Filters and sort order of a list of users."""

    kind = fields.Choice(UserKind, **doc("Only people, or only services."))
    role_id = fields.Integer(1, LARGEST_ROLE_ID, **doc("Only users with this role."))
    is_active = ma.fields.Boolean(**ACTIVE)
    search = fields.Text(longest=200, **doc("Part of the name or email address."))
    sort_by = ma.fields.String(validate=ma.validate.OneOf(list(users.SORTABLE)), **SORT_BY)
    sort_order = ma.fields.String(validate=ORDER, **SORT_ORDER)


class NewMember(Schema):
    """A new user of the own account: a person, who gets a link by mail, or a service."""

    kind = fields.Choice(UserKind, load_default=UserKind.PERSON, **doc(KIND))
    email = fields.Text(
        longest=320, metadata={**fields.EMAIL, "description": "Required of a person."}
    )
    name = fields.Text(longest=200, allow_none=True, **doc("Required of a service."))
    role_id = fields.Integer(1, LARGEST_ROLE_ID)
    role = fields.Text(longest=100)
    attributes = values_field()

    @ma.validates_schema
    def check_kind(self, data: JSONObject, **options: object) -> None:
        """Require an address of a person, and refuse what a service has not."""
        if data["kind"] == UserKind.PERSON:
            missing = [] if "email" in data else ["email"]
        else:
            missing = [] if data.get("name") else ["name"]
            if refused := {"email", "password"} & set(data):
                message = "A service user has neither an address nor a password."
                raise ma.ValidationError({name: [message] for name in refused})
        if missing:
            raise ma.ValidationError("Missing data for required field.", missing[0])


class ChangedUser(Schema):
    email = fields.Text(longest=320, metadata=fields.EMAIL)
    name = fields.Text(longest=200, allow_none=True)
    role_id = fields.Integer(1, LARGEST_ROLE_ID)
    role = fields.Text(longest=100)
    is_active = fields.StrictBoolean()
    attributes = values_field()


@example(id=3, name="viewer", description="Reads the account's records.", console=False)
class RoleView(View):
    id = ma.fields.Integer()
    name = ma.fields.String()
    description = ma.fields.String(allow_none=True)
    console = ma.fields.Boolean(**doc(OPENS_CONSOLE))
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()


RolePage = page_of(RoleView)


class ChangedGroup(Schema):
    """The properties of a group to change."""

    name = fields.Text(longest=100, shortest=1)
    description = fields.Text(longest=1000, allow_none=True)


class NewGroup(ChangedGroup):
    requires = ("name",)


class ChangedRole(ChangedGroup):
    """The properties of a role to change."""

    console = fields.StrictBoolean(**doc(OPENS_CONSOLE))


class NewRole(ChangedRole):
    requires = ("name",)


class GroupRole(Schema):
    """A provider's group and the role that its members get."""

    group = fields.Text(shortest=1, longest=300, required=True)
    role = fields.Text(shortest=1, longest=100, required=True)


class OwnAccountBody(Schema):
    """The properties of the own account to change."""

    name = fields.Text(shortest=1, longest=200)
    attributes = values_field()
    allowed_redirect_uris = ma.fields.List(
        fields.Text(longest=2000, metadata=fields.URI), validate=ma.validate.Length(max=50)
    )
    default_redirect_uri = fields.Text(longest=2000, allow_none=True, metadata=fields.URI)
    cors_origins = ma.fields.List(
        fields.Text(longest=300, metadata=fields.URI), validate=ma.validate.Length(max=50)
    )
    mail_from = fields.Text(
        longest=320,
        allow_none=True,
        **doc(
            "The address that mails about the account come from, in a verified domain whose SPF or"
            " DKIM record names this service. Null: that of the service.",
            **fields.EMAIL,
        ),
    )
    frame_ancestors = ma.fields.List(
        fields.Text(longest=300, metadata=fields.URI),
        validate=ma.validate.Length(max=50),
        **doc("Origins whose pages may show portals in a frame; by default none."),
    )
    sso_provisioning = fields.StrictBoolean(
        allow_none=True,
        **doc(
            "Whether a first sign-in with a provider creates a user. Null means yes for the"
            " account's own providers and no for the system's. OAuth providers create users only if"
            " `sso_email_domains` lists domains, the provider names a Microsoft tenant, or this is"
            " true and you host the provider yourself."
        ),
    )
    sso_email_domains = ma.fields.List(
        fields.Text(longest=253),
        validate=ma.validate.Length(max=50),
        **doc(
            "Verified addresses in these domains become users. If empty, only SAML, a named"
            " Microsoft tenant and providers that you host yourself create users."
        ),
    )
    sso_group_roles = ma.fields.List(
        ma.fields.Nested(GroupRole),
        validate=ma.validate.Length(max=200),
        **doc("Roles assigned at sign-in by the provider's groups; the first match applies."),
    )
    sso_allow_admin = fields.StrictBoolean(**doc("Whether a sign-in may assign the role `admin`."))
    sso_tokens_in_fragment = fields.StrictBoolean(
        **doc("Whether browsers return with tokens in the URL fragment instead of a one-time code.")
    )
    mfa = fields.Choice(
        MfaMode,
        **doc(
            "Second factors: `off` uses none, `optional` those that users have set up, `required`"
            " also makes others set one up at sign-in. Sign-ins with the account's own provider"
            " need none."
        ),
    )
    mfa_roles = ma.fields.List(
        fields.Text(shortest=1, longest=100),
        validate=ma.validate.Length(max=50),
        **doc("Names of the roles that `required` concerns; empty: all."),
    )
    mfa_grace_days = fields.Integer(
        0,
        sign_in_settings.MAX_GRACE_DAYS,
        **doc("Days before `required` takes effect, from its start or the user's creation."),
    )
    password_sign_in = fields.StrictBoolean(
        **doc("Whether users may sign in by password. Superadmins always may.")
    )
    magic_link = fields.StrictBoolean(
        **doc(
            "Whether users may sign in by a link that is mailed to them. Without effect where"
            " `password_sign_in` is false."
        )
    )
    new_device_mail = fields.StrictBoolean(
        **doc("Whether users get a mail about a sign-in from a device that is new for them.")
    )
    session_idle_hours = fields.Integer(
        1,
        sign_in_settings.MAX_IDLE_HOURS,
        allow_none=True,
        **doc(
            "Hours until a session ends without use, which is a refresh of its tokens or an opened"
            " page of the console. Null, or more than the service allows: as the service's."
        ),
    )
    session_max_hours = fields.Integer(
        1,
        sign_in_settings.MAX_SESSION_HOURS,
        allow_none=True,
        **doc("Hours until a session ends in any case; null: as the service's."),
    )
