"""`/account`: the caller's account, for its admins."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.accounts import roles, sso_settings, tenants, users
from app.accounts.attributes import Kind
from app.accounts.domains import senders
from app.accounts.models import Account, User
from app.accounts.schemas import (
    ChangedUser,
    FullAccountView,
    GroupRole,
    NewMember,
    OwnAccountBody,
    RolePage,
    TeamArgs,
    UserPage,
    UserView,
)
from app.accounts.sign_in_settings import MfaMode
from app.accounts.types import Body, Query
from app.auth import account_settings, sessions
from app.auth.guard import principal
from app.auth.mfa import enrolment
from app.auth.schemas import SessionPage
from app.collections import attribute_values
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import PageArgs, page_body
from app.web.schemas import example

blueprint = Blueprint(
    "Account",
    __name__,
    url_prefix=f"{web.PREFIX}/account",
    description="Your account. For its admins.",
)


def _setting(name: str, default: object) -> JSONObject:
    """Options of a property of the response that shows a setting, described as in the request."""
    metadata = OwnAccountBody._declared_fields[name].metadata
    return {"attribute": f"settings.{name}", "dump_default": default, "metadata": metadata}


@example(
    allowed_redirect_uris=["https://client.example.com/signed-in"],
    cors_origins=["https://client.example.com"],
    sso_email_domains=["acme.example"],
    sso_group_roles=[{"group": "Finance", "role": "editor"}],
    sso_ignored_groups=[],
    mfa="optional",
    mfa_roles=[],
    mfa_grace_days=0,
    password_sign_in=True,
    new_device_mail=True,
)
class OwnAccountView(FullAccountView):
    """The caller's account with its settings."""

    allowed_redirect_uris = ma.fields.List(
        ma.fields.String(), attribute="settings.allowed_redirect_uris", dump_default=[]
    )
    default_redirect_uri = ma.fields.String(
        allow_none=True, attribute="settings.default_redirect_uri", dump_default=None
    )
    cors_origins = ma.fields.List(
        ma.fields.String(), attribute="settings.cors_origins", dump_default=[]
    )
    mail_from = ma.fields.String(allow_none=True, **_setting("mail_from", None))
    mail_from_active = ma.fields.Boolean(
        dump_default=False,
        **doc("Whether mails come from it: its domain is verified, and names this service."),
    )
    mail_from_advice = ma.fields.String(
        allow_none=True,
        dump_default=None,
        **doc("What its domain's DNS should have beside: a DMARC record."),
    )
    frame_ancestors = ma.fields.List(
        ma.fields.String(), attribute="settings.frame_ancestors", dump_default=[]
    )
    sso_provisioning = ma.fields.Boolean(allow_none=True, **_setting("sso_provisioning", None))
    sso_email_domains = ma.fields.List(ma.fields.String(), **_setting("sso_email_domains", []))
    sso_group_roles = ma.fields.List(ma.fields.Nested(GroupRole), **_setting("sso_group_roles", []))
    sso_allow_admin = ma.fields.Boolean(**_setting("sso_allow_admin", False))
    sso_ignored_groups = ma.fields.List(
        ma.fields.String(),
        dump_default=[],
        **doc(
            "Groups of `sso_group_roles` without effect: their role is `admin` while"
            " `sso_allow_admin` is off, or their role no longer exists."
        ),
    )
    sso_tokens_in_fragment = ma.fields.Boolean(**_setting("sso_tokens_in_fragment", False))
    mfa = fields.Choice(MfaMode, **_setting("mfa", MfaMode.OPTIONAL))
    mfa_roles = ma.fields.List(ma.fields.String(), **_setting("mfa_roles", []))
    mfa_grace_days = ma.fields.Integer(**_setting("mfa_grace_days", 0))
    password_sign_in = ma.fields.Boolean(**_setting("password_sign_in", True))
    magic_link = ma.fields.Boolean(**_setting("magic_link", False))
    new_device_mail = ma.fields.Boolean(**_setting("new_device_mail", True))
    session_idle_hours = ma.fields.Integer(allow_none=True, **_setting("session_idle_hours", None))
    session_max_hours = ma.fields.Integer(allow_none=True, **_setting("session_max_hours", None))

    @ma.post_dump(pass_original=True)
    def add_ignored_groups(
        self, dumped: dict[str, object], account: Account, **options: object
    ) -> dict[str, object]:
        """Add the mapped groups that have no effect, and whether the sender's address has."""
        has_sender = bool(account.settings.get("mail_from"))
        return dumped | {
            "sso_ignored_groups": sso_settings.ignored_groups(account.settings),
            "mail_from_active": has_sender and senders.of(account.id) is not None,
            "mail_from_advice": senders.advice(account.id) if has_sender else None,
        }


@blueprint.route("", methods=["GET"])
@blueprint.response(200, OwnAccountView)
@account_admin(operator="accounts")
def get_own_account() -> Account:
    """Get your account and its settings.

    Other users find the name in `GET /auth/me`. Superadmins get the account that `X-Account-ID`
    names, by default the system account.
    """
    return tenants.get(_account_id())


@blueprint.route("", methods=["PUT", "PATCH"])
@blueprint.arguments(OwnAccountBody, example={"name": "Acme Ltd"})
@blueprint.response(200, OwnAccountView)
@blueprint.fails(429, 503)
@account_admin(operator="accounts")
def update_own_account(body: Body) -> Account:
    """Change your account's name and settings.

    API keys can change the name and attributes only (403). All other changes need a recent sign-in
    (403 `recent_sign_in_required`). A redirect URI added by somebody outside `pii_access` does not
    work for members of that group until a member has submitted it, too. The DNS of a new
    `mail_from` is looked up.
    """
    level = attribute_values.level_for_account(principal())
    body = attribute_values.replaced(Kind.ACCOUNTS, body, level)
    return account_settings.change(_account_id(), body, by=principal())


@blueprint.route("/roles", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, RolePage)
@account_admin(operator="users")
def list_roles_for_account(args: Query) -> dict[str, object]:
    """List the roles that a user of the account can have.

    In order of creation, built-in roles first. All accounts share the same roles; only superadmins
    change them (`/roles`).
    """
    return page_body(*roles.page(args["skip"], args["limit"]), args)


@blueprint.route("/users", methods=["GET"])
@blueprint.arguments(TeamArgs, location="query")
@blueprint.response(200, UserPage)
@account_admin(operator="users")
def list_team(args: Query) -> dict[str, object]:
    """List the users of your account.

    Newest first by default. Includes inactive users.
    """
    return page_body(*users.page(_account_id(), args), args)


@blueprint.route("/users", methods=["POST"])
@blueprint.arguments(NewMember, example={"email": "bob@acme.example", "role": "viewer"})
@blueprint.response(201, UserView)
@blueprint.fails(409, 429)
@account_admin(operator="users")
def create_member(body: Body) -> User:
    """Add a user to your account; the user gets a link to set a password by mail.

    With `kind: service` it is a service user: with a name and a role, without an address, a
    password or any other sign-in. Its API keys act for it, workflows and webhooks may belong to it,
    and it goes on when people leave. Names of service users are unique (409).

    API keys cannot create admins (403), but an operator key the first one of an account.
    """
    enrolment.check_role(body, by=principal(), joins=_account_id())
    level = attribute_values.level_for_account(principal())
    body = attribute_values.replaced(Kind.USERS, body, level, is_new=True)
    return enrolment.enrol(_account_id(), body)


@blueprint.route("/users/<uuid:user_id>", methods=["GET"])
@blueprint.response(200, UserView)
@account_admin(operator="users")
def get_member(user_id: str) -> User:
    """Get a user of your account.

    A user of another account is a 404.
    """
    return users.get(_account_id(), user_id)


@blueprint.route("/users/<uuid:user_id>", methods=["PUT", "PATCH"])
@blueprint.arguments(ChangedUser, example={"role": "editor"})
@blueprint.response(200, UserView)
@blueprint.fails(409, 429)
@account_admin(operator="users")
def update_member(body: Body, user_id: str) -> User:
    """Change a user of your account.

    You cannot deactivate or demote your own user (403) or the account's last admin (409). A new
    role or a deactivation takes effect with the user's next request. API keys cannot change email
    addresses or create admins (403). A new address needs a recent sign-in (403
    `recent_sign_in_required`); the old address gets a mail. If the caller is not in `pii_access`,
    a new address removes the user from that group, and its members get a mail.
    """
    user = users.get(_account_id(), user_id)
    enrolment.check_role(body, by=principal(), user=user)
    enrolment.check_address(_account_id(), user_id, body, by=principal())
    level = attribute_values.level_for_account(principal())
    body = attribute_values.replaced(Kind.USERS, body, level)
    return users.change(_account_id(), user_id, body, by=principal().user_id)


@blueprint.route("/users/<uuid:user_id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@account_admin(operator="users")
def delete_member(user_id: str) -> Response:
    """Delete a user of your account; their records stay.

    Sessions and API keys of the user stop working at once. You cannot delete your own user (403) or
    the account's last active admin (409).

    Records that refer to the user follow `on_delete` of the field; `restrict` refuses (409). If
    more than 1,000 refer to the user, a job changes them.
    """
    users.delete(_account_id(), user_id, by=principal().user_id)
    return Response(status=204)


@blueprint.route("/users/<uuid:user_id>/sessions", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, SessionPage)
@account_admin(operator="users")
def list_sessions_of_member(args: Query, user_id: str) -> dict[str, object]:
    """List the active sessions of a user of your account.

    The last used comes first.
    """
    user = users.get(_account_id(), user_id)
    return page_body(*sessions.page(_account_id(), user.id, args["skip"], args["limit"]), args)


@blueprint.route("/users/<uuid:user_id>/sessions", methods=["DELETE"])
@blueprint.response(204)
@account_admin(operator="users")
def end_sessions_of_member(user_id: str) -> Response:
    """End all sessions of a user of your account.

    Their tokens stop working at once; API keys stay.
    """
    sessions.end_all(_account_id(), users.get(_account_id(), user_id).id)
    return Response(status=204)


@blueprint.route("/users/<uuid:user_id>/sessions/<uuid:session_id>", methods=["DELETE"])
@blueprint.response(204)
@account_admin(operator="users")
def end_session_of_member(user_id: str, session_id: str) -> Response:
    """End a session of a user of your account.

    Its tokens stop working at once.
    """
    sessions.end_active(_account_id(), users.get(_account_id(), user_id).id, session_id)
    return Response(status=204)


def _account_id() -> str:
    return principal().require_account_id()
