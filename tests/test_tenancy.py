"""No account reaches anything of another, by any route: a matrix made from the routes themselves.

Every route of the API has an entry in PUBLIC or CASES. A new route without one fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeVar

import pyotp
import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.jobs import worker
from app.web import PREFIX
from app.web.access import AccessLevel, access_of
from app.workflows.models import INSTANCES
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record

RANDOM_ID = "019a9f00-0000-7000-8000-00000000dead"
Route = tuple[str, str]

# Routes that take no credential, each with the reason.
PUBLIC: dict[Route, str] = {
    ("GET", "/product/logo"): "pages show it before a sign-in",
    ("GET", "/auth/providers"): "a sign-in page shows it",
    ("POST", "/auth/register"): "founds a new account; nobody is known yet",
    ("POST", "/auth/login"): "is where a credential comes from",
    ("POST", "/auth/mfa/verify"): "the mfa_token of the sign-in is the credential",
    ("POST", "/auth/mfa/totp"): "the mfa_token of the sign-in, or the caller's own token",
    ("POST", "/auth/mfa/totp/confirm"): "the mfa_token of the sign-in, or the caller's own token",
    ("POST", "/auth/mfa/passkeys"): "the mfa_token of the sign-in, or the caller's own token",
    ("POST", "/auth/mfa/passkeys/options"): "the mfa_token of the sign-in, or the caller's token",
    ("POST", "/auth/passkeys/options"): "begins a sign-in; nobody is known yet",
    ("POST", "/auth/passkeys/verify"): "the passkey is the credential",
    ("POST", "/auth/refresh"): "the refresh token in the body is the credential",
    ("POST", "/auth/verify-email"): "the token of the mailed link is the credential",
    ("POST", "/auth/resend-verification"): "for who cannot sign in yet; answers alike for all",
    ("POST", "/auth/forgot-password"): "for who cannot sign in; answers alike for all",
    ("POST", "/auth/magic-link"): "for who cannot sign in yet; answers alike for all users",
    ("POST", "/auth/magic-link/verify"): "the token of the mailed link is the credential",
    ("POST", "/auth/reset-password"): "the token of the mailed link is the credential",
    ("POST", "/auth/undo-email-change"): "the token of the mailed link is the credential",
    ("POST", "/auth/keep-email"): "the token of the mailed link is the credential",
    ("GET", "/auth/verify-reset-token/<token>"): "the token of the mailed link is the credential",
    ("POST", "/auth/oauth/<provider_name>/authorize"): "begins a sign-in; nobody is known yet",
    ("POST", "/auth/oauth/<provider_name>/callback"): "the code and the state are the credential",
    ("POST", "/auth/discover"): "before a sign-in; tells of domains only, and of no user",
    ("POST", "/auth/exchange"): "the one-time code is the credential",
    ("GET", "/auth/saml/sso"): "begins a sign-in; nobody is known yet",
    ("GET", "/auth/saml/metadata"): "what identity providers read; nothing of it is secret",
    ("POST", "/auth/saml/acs"): "the signed response is the credential",
    ("GET", "/invitations/<invitation>"): "the token of the mailed link is the credential",
    ("POST", "/invitations/<invitation>/accept"): "the same; who accepts has no user yet",
    ("POST", "/workflow-webhooks/<token>"): "the token is the credential",
    ("GET", "/files/link/<token>"): "the signed link is the credential",
}


@dataclass(frozen=True)
class Superadmin:
    """A route for superadmins: everyone else gets 403 `superadmin_required`."""

    body: Any = None


@dataclass(frozen=True)
class Owned:
    """A route with the id of a thing in its path: of another account it is 404 like none."""

    make: Callable[[Caller], str]
    read: str
    body: Any = None
    part: str = "record_id"
    by_id_alone: bool = False  # for superadmins who name no account


@dataclass(frozen=True)
class Own:
    """A route that only ever concerns the caller or the account acted in."""

    body: Any = None  # or what makes it, given the cast
    expected: tuple[int, ...] = (200,)


def a_record(owner: Caller) -> str:
    return str(make_record(owner, title="of acme", n=1)["id"])


def alices_refresh_token(cast: Cast) -> dict[str, str]:
    body = {"account": "acme", "email": cast.alice.email, "password": PASSWORD}
    return {"refresh_token": Caller(cast.alice.app).post("auth/login", body).json["refresh_token"]}


def a_file(owner: Caller) -> str:
    form = {"file": (BytesIO(b"of acme"), "a.txt")}
    return str(owner.post("files/upload", data=form).json["file"]["id"])


def sent(body: Any) -> dict[str, Any]:
    """A body as the options of a call: a form if it has a file."""
    has_file = isinstance(body, dict) and "file" in body
    return {"data" if has_file else "json": body}


MAIL = "/mail-templates/<string:kind>/<string:language>"
MAIL_TEXT = {"subject": "Join us", "text": "{{ link }}"}


def a_brand(cast: Cast) -> dict[str, str]:
    """The brand of an account, where acme has one, too."""
    assert cast.root.put("product", {"accounts_may_brand": True}).status_code == 200
    assert cast.alice.put("account/brand", {"name": "Brand of acme"}).status_code == 200
    return {"name": "Globex"}


def a_mail_text(cast: Cast) -> dict[str, str]:
    """A text of mails, where acme has another one."""
    a_brand(cast)
    path, text = "account/mail-templates/invitation/en", {**MAIL_TEXT, "subject": "of acme"}
    assert cast.alice.put(path, text).status_code == 200
    return MAIL_TEXT


OPERATOR_WEBHOOK = "/operator/webhooks/<uuid:webhook_id>"
OPERATOR_DELIVERY = "/deliveries/<uuid:delivery_id>"
OPERATOR_LISTENER = {"url": "http://127.0.0.1:9/", "types": ["account.*"]}


def a_user(owner: Caller) -> str:
    return str(owner.post("account/users", {"email": "dora@acme.example"}).json["id"])


def a_group(owner: Caller) -> str:
    return str(owner.post("groups", {"name": "finance"}).json["id"])


def a_membership(owner: Caller) -> str:
    group = a_group(owner)
    assert owner.post(f"groups/{group}/users", {"user_id": owner.id}).status_code == 200
    return group


def an_invitation(owner: Caller) -> str:
    return str(owner.post("invitations", {"email": "dora@acme.example"}).json["id"])


def a_key(owner: Caller) -> str:
    return str(owner.post("api-keys", {"name": "nightly"}).json["id"])


def a_domain(owner: Caller) -> str:
    return str(owner.post("account/domains", {"domain": "acme.example"}).json["id"])


PASSPHRASE = {"passphrase": "a long enough passphrase"}


def an_export(owner: Caller) -> str:
    return str(owner.post("account/export", PASSPHRASE).json["id"])


def a_session(owner: Caller) -> str:
    body = {"account": owner.slug, "email": owner.email, "password": PASSWORD}
    assert Caller(owner.app).post("auth/login", body).status_code == 200
    return str(owner.get("auth/sessions").json["items"][0]["id"])


def a_factor(owner: Caller) -> str:
    secret = owner.post("auth/mfa/totp", {}).json["secret"]
    code = {"code": pyotp.TOTP(secret).now()}
    return str(owner.post("auth/mfa/totp/confirm", code).json["factor"]["id"])


def with_a_factor(cast: Cast) -> dict[str, str]:
    assert a_factor(cast.charlie)
    return {}


TITLE = [{"name": "title", "type": "text"}]
ONE_RECORD = "records/posts/{id}"
BATCH = "/records/<collection>/batch"
OPERATION = {"method": "POST", "collection": "posts", "body": {"title": "of globex"}}
Case = Superadmin | Owned | Own
OnOne = Callable[..., Owned]


def posted(path: str, body: Any) -> Callable[[Caller], str]:
    """What creates a resource and returns its id."""
    return lambda owner: str(owner.post(path, body).json["id"])


def below(made: Callable[[Caller], str], one: str, part: str, **more: bool) -> OnOne:
    """What makes cases of routes below one resource; takes their body."""
    return lambda body=None: Owned(made, one, body, part, **more)


def each_verb(route: str, on_one: OnOne, change: Any) -> dict[Route, Case]:
    """The routes that read, change and delete one resource."""
    bodies = {"GET": None, "PUT": change, "PATCH": change, "DELETE": None}
    return {(verb, route): on_one(body) for verb, body in bodies.items()}


FACTOR, RENAMED = "/auth/mfa/factors/<uuid:factor_id>", {"name": "renamed"}
SIGN_IN: dict[Route, Case] = {
    ("PATCH", "/auth/me"): Own(lambda cast: {"name": "Charlie"}),
    ("POST", "/auth/change-password"): Own(
        lambda cast: {"current_password": PASSWORD, "new_password": "Another-horse-2"}
    ),
    # The cast's tokens are of no session, which alone is renewed.
    ("POST", "/auth/reauthenticate"): Own({"password": PASSWORD}, (403,)),
    ("GET", "/auth/mfa"): Own(),
    ("POST", "/auth/mfa/options"): Own(),
    ("POST", "/auth/signatures/options"): Own({"reason": "seen"}),
    ("POST", "/auth/mfa/recovery-codes"): Own(with_a_factor, (200,)),
    ("PATCH", FACTOR): Owned(a_factor, "auth/mfa/factors/{id}", RENAMED, "factor_id"),
    ("DELETE", FACTOR): Owned(a_factor, "auth/mfa/factors/{id}", part="factor_id"),
    ("GET", "/auth/sessions"): Own(),
    ("POST", "/auth/sessions/end-others"): Own(None, (204,)),
    ("DELETE", "/auth/sessions/<uuid:session_id>"): Owned(
        a_session, "auth/sessions", part="session_id"
    ),
}
ACCOUNT, USER = "/accounts/<uuid:account_id>", "/users/<uuid:user_id>"
ROLE = "/roles/<integer:role_id>"
DEMOTED = {"role": "viewer"}
LINK = {"send_reset_link": True}
QUOTA = {"records": {"hard": 100_000}}
PEOPLE: dict[Route, Case] = {
    ("GET", "/accounts"): Superadmin(),
    ("POST", "/accounts"): Superadmin({"name": "Initech"}),
    ("GET", ACCOUNT): Superadmin(),
    ("PUT", ACCOUNT): Superadmin(RENAMED),
    ("PATCH", ACCOUNT): Superadmin(RENAMED),
    ("DELETE", ACCOUNT): Superadmin(),
    ("GET", f"{ACCOUNT}/users"): Superadmin(),
    ("GET", "/users"): Superadmin(),
    ("POST", "/users"): Superadmin({"email": "dora@x.example", "account_id": RANDOM_ID}),
    ("GET", USER): Superadmin(),
    ("GET", f"{USER}/export"): Owned(
        a_user, "account/users/{id}", part="user_id", by_id_alone=True
    ),
    ("PUT", USER): Superadmin(RENAMED),
    ("PATCH", USER): Superadmin(DEMOTED),
    ("DELETE", USER): Superadmin(),
    ("GET", f"{ACCOUNT}/usage"): Superadmin(),
    ("GET", f"{ACCOUNT}/quotas"): Superadmin(),
    ("PUT", f"{ACCOUNT}/quotas"): Superadmin(QUOTA),
    ("PATCH", f"{ACCOUNT}/quotas"): Superadmin(QUOTA),
    ("DELETE", f"{USER}/second-factors"): Superadmin(),
    ("PUT", f"{USER}/password"): Superadmin(LINK),
    ("POST", f"{USER}/password"): Superadmin(LINK),
    ("POST", f"{USER}/verify"): Superadmin(),
    ("POST", f"{USER}/resend-verification"): Superadmin(),
    ("GET", "/accounts/deletions"): Superadmin(),
    ("GET", "/accounts/<uuid:account_id>/certificate"): Superadmin(),
    ("GET", "/account-templates"): Superadmin(),
    ("GET", "/account-templates/<template_name>/jobs"): Superadmin(),
    ("GET", "/account-templates/<template_name>/jobs/<uuid:template_job_id>"): Superadmin(),
    ("POST", "/account-templates/<template_name>/plan"): Superadmin({"accounts": "all"}),
    ("POST", "/account-templates/<template_name>/apply"): Superadmin(
        {"accounts": "all", "plan_hash": "x"}
    ),
    ("GET", "/operator/events"): Superadmin(),
    ("GET", "/operator/webhooks"): Superadmin(),
    ("POST", "/operator/webhooks"): Superadmin(OPERATOR_LISTENER),
    **{
        (method, f"{OPERATOR_WEBHOOK}{rest}"): Superadmin(body)
        for method, rest, body in (
            ("GET", "", None),
            ("PUT", "", {"is_active": False}),
            ("PATCH", "", {"is_active": False}),
            ("DELETE", "", None),
            ("POST", "/test", None),
            ("POST", "/take-over", None),
            ("POST", "/rotate-secret", None),
            ("GET", "/deliveries", None),
            ("GET", OPERATOR_DELIVERY, None),
            ("POST", f"{OPERATOR_DELIVERY}/redeliver", None),
        )
    },
    ("GET", "/plans"): Superadmin(),
    ("PUT", "/plans"): Superadmin({"pro": {"flags": ["sla"]}}),
    ("PATCH", "/plans"): Superadmin({"pro": {"flags": ["sla"]}}),
    ("GET", "/product"): Superadmin(),
    ("PUT", "/product"): Superadmin({"name": "Desk"}),
    ("PATCH", "/product"): Superadmin({"name": "Desk"}),
    ("GET", "/mail-templates"): Superadmin(),
    ("GET", MAIL): Superadmin(),
    ("PUT", MAIL): Superadmin(MAIL_TEXT),
    ("DELETE", MAIL): Superadmin(),
    ("POST", f"{MAIL}/preview"): Superadmin(MAIL_TEXT),
    ("POST", f"{MAIL}/test"): Superadmin(MAIL_TEXT),
    ("GET", "/directory"): Own(),
    ("GET", "/directory/settings"): Superadmin(),
    ("PUT", "/directory/settings"): Superadmin({"fields": ["role"]}),
    ("PATCH", "/directory/settings"): Superadmin({"fields": ["role"]}),
    **{
        (verb, f"/attributes/{kind}{more}"): case
        for kind in ("users", "accounts")
        for verb, more, case in (
            ("GET", "", Own()),
            ("PUT", "", Superadmin({"fields": TITLE})),
            ("PATCH", "", Superadmin({"fields": TITLE})),
            ("POST", "/plan", Superadmin({"fields": TITLE})),
        )
    },
    ("GET", "/roles"): Superadmin(),
    ("POST", "/roles"): Superadmin({"name": "auditor"}),
    ("GET", f"{ROLE}/permissions"): Superadmin(),
    ("GET", f"{ROLE}/permissions/matrix"): Superadmin(),
    ("GET", ROLE): Superadmin(),
    ("PUT", ROLE): Superadmin({"description": "x"}),
    ("PATCH", ROLE): Superadmin({"description": "x"}),
    ("DELETE", ROLE): Superadmin(),
}
DOMAIN = "/account/domains/<uuid:domain_id>"
STREAM = "/account/security-log/stream"
EXPORT = "/account/export/<uuid:export_id>"
MEMBER, ONE_MEMBER = "/account/users/<uuid:user_id>", "account/users/{id}"
OWN_ACCOUNT: dict[Route, Case] = {
    ("GET", "/account"): Own(),
    ("PUT", "/account"): Own(lambda cast: RENAMED),
    ("PATCH", "/account"): Own(lambda cast: RENAMED),
    **{(verb, "/account/brand"): Own(a_brand) for verb in ("GET", "PUT", "PATCH")},
    ("GET", "/account/mail-templates"): Own(a_mail_text),
    ("GET", f"/account{MAIL}"): Own(a_mail_text),
    ("PUT", f"/account{MAIL}"): Own(a_mail_text),
    ("DELETE", f"/account{MAIL}"): Own(a_mail_text, (404,)),
    ("POST", f"/account{MAIL}/preview"): Own(a_mail_text),
    ("POST", f"/account{MAIL}/test"): Own(a_mail_text, (204,)),
    ("GET", "/account/collections"): Own(),
    ("GET", "/account/roles"): Own(),
    ("GET", "/account/domains"): Own(),
    ("POST", "/account/domains"): Own(lambda cast: {"domain": "globex.example"}, (201,)),
    ("POST", f"{DOMAIN}/verify"): Owned(a_domain, "account/domains", part="domain_id"),
    ("PATCH", DOMAIN): Owned(a_domain, "account/domains", {"auto_join": True}, "domain_id"),
    ("DELETE", DOMAIN): Owned(a_domain, "account/domains", part="domain_id"),
    ("GET", "/account/audit-logs"): Own(),
    ("GET", "/account/audit-logs/export"): Own(),
    ("GET", "/account/security-log"): Own(),
    ("GET", "/account/security-log/export"): Own(),
    ("GET", "/account/security-log/verify"): Own(),
    ("GET", "/account/security-log/access-report"): Own(),
    ("GET", STREAM): Own(None, (404,)),
    ("PUT", STREAM): Own(lambda cast: {"url": "http://127.0.0.1:9/"}),
    ("POST", f"{STREAM}/rotate-secret"): Own(None, (404,)),
    ("POST", f"{STREAM}/test"): Own(None, (404,)),
    ("POST", f"{STREAM}/take-over"): Own(None, (404,)),
    ("DELETE", STREAM): Own(None, (404,)),
    ("GET", "/account/export"): Own(),
    ("GET", "/account/export/contents"): Own(),
    ("POST", "/account/export"): Own(PASSPHRASE, (202,)),
    ("DELETE", EXPORT): Owned(an_export, "account/export/{id}", part="export_id"),
    ("GET", EXPORT): Owned(an_export, "account/export/{id}", part="export_id"),
    ("GET", f"{EXPORT}/download"): Owned(an_export, "account/export/{id}", part="export_id"),
    ("GET", "/account/second-factors"): Own(),
    ("GET", "/account/usage"): Own(),
    ("GET", "/account/users"): Own(),
    ("POST", "/account/users"): Own(lambda cast: {"email": "dora@x.example"}, (201,)),
    ("GET", MEMBER): Owned(a_user, ONE_MEMBER, part="user_id"),
    ("GET", f"{MEMBER}/left"): Owned(a_user, f"{ONE_MEMBER}/left", part="user_id"),
    ("PUT", MEMBER): Owned(a_user, ONE_MEMBER, RENAMED, "user_id"),
    ("PATCH", MEMBER): Owned(a_user, ONE_MEMBER, DEMOTED, "user_id"),
    ("DELETE", MEMBER): Owned(a_user, ONE_MEMBER, part="user_id"),
    ("DELETE", f"{MEMBER}/second-factors"): Owned(a_user, ONE_MEMBER, part="user_id"),
    ("GET", f"{MEMBER}/sessions"): Owned(a_user, ONE_MEMBER, part="user_id"),
    ("DELETE", f"{MEMBER}/sessions"): Owned(a_user, ONE_MEMBER, part="user_id"),
    ("DELETE", f"{MEMBER}/sessions/<uuid:session_id>"): Owned(
        a_session, "auth/sessions", part="session_id"
    ),
}
GROUP, ONE_GROUP = "/groups/<uuid:group_id>", "groups/{id}"
SOMEBODY = {"user_id": RANDOM_ID}
GROUPS: dict[Route, Case] = {
    ("GET", "/groups"): Own(),
    ("POST", "/groups"): Own(lambda cast: {"name": "finance"}, (201,)),
    **each_verb(GROUP, below(a_group, ONE_GROUP, "group_id"), RENAMED),
}
for word in ("users", "members"):
    GROUPS |= {
        ("POST", f"{GROUP}/{word}"): Owned(a_group, ONE_GROUP, SOMEBODY, "group_id"),
        ("DELETE", f"{GROUP}/{word}/<uuid:user_id>"): Owned(
            a_membership, ONE_GROUP, part="group_id"
        ),
    }
INVITATION = "/invitations/<uuid:invitation>"
INVITATIONS: dict[Route, Case] = {
    ("GET", "/invitations"): Own(),
    ("POST", "/invitations"): Own(lambda cast: {"email": "dora@x.example"}, (201,)),
    ("DELETE", INVITATION): Owned(an_invitation, "invitations", part="invitation"),
    ("POST", f"{INVITATION}/resend"): Owned(an_invitation, "invitations", part="invitation"),
}
KEYS: dict[Route, Case] = {}
for prefix in ("/api-keys", "/admin/api-keys"):
    KEYS |= {
        ("GET", prefix): Own(),
        ("POST", prefix): Own(lambda cast: {"name": "nightly"}, (201,)),
        ("GET", f"{prefix}/<uuid:key_id>"): Owned(a_key, "api-keys/{id}", part="key_id"),
        ("POST", f"{prefix}/<uuid:key_id>/revoke"): Owned(a_key, "api-keys/{id}", part="key_id"),
        ("DELETE", f"{prefix}/<uuid:key_id>"): Owned(a_key, "api-keys/{id}", part="key_id"),
    }
KEYS |= {
    ("POST", "/api-keys/<uuid:key_id>/rotate"): Owned(a_key, "api-keys/{id}", part="key_id"),
    ("PATCH", "/api-keys/<uuid:key_id>"): Owned(a_key, "api-keys/{id}", RENAMED, "key_id"),
}
SCIM_TOKENS = "/account/scim/tokens"
KEYS |= {
    ("GET", SCIM_TOKENS): Own(),
    ("POST", SCIM_TOKENS): Own(lambda cast: None, (201,)),
    ("DELETE", f"{SCIM_TOKENS}/<uuid:scim_token_id>"): Owned(
        posted("account/scim/tokens", None), "account/scim/tokens", part="scim_token_id"
    ),
}
SETUP_LINKS = "/account/setup-links"
KEYS |= {
    ("GET", SETUP_LINKS): Own(),
    ("POST", SETUP_LINKS): Own(lambda cast: {"name": "IT"}, (201,)),
    ("DELETE", f"{SETUP_LINKS}/<uuid:setup_link_id>"): Owned(
        posted("account/setup-links", {"name": "IT"}), "account/setup-links", part="setup_link_id"
    ),
}
PORTAL_URL = "https://app.example.com/"


def portal_body(cast: Cast) -> dict[str, Any]:
    """A portal of charlie, which leads back to the product."""
    assert cast.root.put("product", {"url": PORTAL_URL}).status_code == 200
    return {"pages": ["team"], "return_url": PORTAL_URL}


KEYS[("POST", "/account/portal-sessions")] = Own(portal_body, (201,))
RETENTION = "/account/retention"
KEYS |= {
    ("GET", RETENTION): Own(),
    ("PUT", RETENTION): Own(lambda cast: {"deliveries_days": 7}, (200,)),
    ("POST", f"{RETENTION}/plan"): Own(lambda cast: {"deliveries_days": 7}, (200,)),
}
WEBHOOK, ONE_WEBHOOK = "/webhooks/<uuid:webhook_id>", "webhooks/{id}"
DELIVERY = f"{WEBHOOK}/deliveries/<uuid:delivery_id>"
LISTENER = {"url": "http://127.0.0.1:9/", "collection": "posts", "events": ["create"]}
on_a_webhook = below(posted("webhooks", LISTENER), ONE_WEBHOOK, "webhook_id")
WEBHOOKS: dict[Route, Case] = {
    ("GET", "/webhooks"): Own(),
    ("POST", "/webhooks"): Own(lambda cast: LISTENER, (201,)),
    **each_verb(WEBHOOK, on_a_webhook, {"enabled": False}),
    ("POST", f"{WEBHOOK}/test"): on_a_webhook(),
    ("POST", f"{WEBHOOK}/rotate-secret"): on_a_webhook(),
    ("POST", f"{WEBHOOK}/take-over"): on_a_webhook(),
    ("GET", f"{WEBHOOK}/deliveries"): on_a_webhook(),
    ("POST", f"{WEBHOOK}/deliveries/redeliver"): on_a_webhook({"since": "2026-01-01"}),
    ("GET", DELIVERY): on_a_webhook(),
    ("POST", f"{DELIVERY}/redeliver"): on_a_webhook(),
}
WORKFLOW, ONE_WORKFLOW = "/workflows/<uuid:workflow_id>", "workflows/{id}"
INSTANCE, ONE_INSTANCE = "/workflow-instances/<uuid:instance_id>", "workflow-instances/{id}"
STEPS = [{"name": "rest", "type": "wait_delay", "duration": "1h"}]
FLOW = {"name": "flow", "trigger": {"type": "manual"}, "steps": STEPS}
a_workflow = posted("workflows", FLOW)


def an_instance(owner: Caller) -> str:
    return str(owner.post(f"workflows/{a_workflow(owner)}/trigger").json["instance_id"])


def a_failed_instance(owner: Caller) -> str:
    id = an_instance(owner)
    with owner.app.app_context(), db.transaction() as session:
        session.execute(sa.update(INSTANCES).values(status="failed", due_at=None))
    return id


on_a_workflow = below(a_workflow, ONE_WORKFLOW, "workflow_id")
HOOK, ONE_HOOK = "/hooks/<uuid:hook_id>", "hooks/{id}"
DELETING = {"type": "delete_record", "config": {"collection": "posts", "record_id": "x"}}
A_HOOK = {"name": "hook", "trigger": {"type": "manual"}, "actions": [DELETING]}
on_a_hook = below(posted("hooks", A_HOOK), ONE_HOOK, "hook_id")
WORKFLOWS: dict[Route, Case] = {
    ("GET", "/hooks"): Own(),
    ("POST", "/hooks"): Own(lambda cast: A_HOOK, (201,)),
    **each_verb(HOOK, on_a_hook, {"name": "other"}),
    ("PATCH", f"{HOOK}/toggle"): on_a_hook(),
    ("POST", f"{HOOK}/trigger"): on_a_hook(),
    ("GET", f"{HOOK}/executions"): on_a_hook(),
    ("GET", "/workflows"): Own(),
    ("POST", "/workflows"): Own(lambda cast: FLOW, (201,)),
    **each_verb(WORKFLOW, on_a_workflow, {"name": "other"}),
    ("PATCH", f"{WORKFLOW}/toggle"): on_a_workflow(),
    ("POST", f"{WORKFLOW}/trigger"): on_a_workflow(),
    ("GET", f"{WORKFLOW}/instances"): on_a_workflow(),
    ("GET", "/workflow-instances"): Own(),
    ("POST", "/workflow-instances/resume"): Own(),
    ("GET", INSTANCE): Owned(an_instance, ONE_INSTANCE, part="instance_id"),
    ("GET", f"{INSTANCE}/step-logs"): Owned(an_instance, ONE_INSTANCE, part="instance_id"),
    ("POST", f"{INSTANCE}/cancel"): Owned(an_instance, ONE_INSTANCE, part="instance_id"),
    ("POST", f"{INSTANCE}/resume"): Owned(a_failed_instance, ONE_INSTANCE, part="instance_id"),
    ("POST", f"{INSTANCE}/rerun"): Owned(a_failed_instance, ONE_INSTANCE, part="instance_id"),
}
CONFIGURATION, ONE_CONFIGURATION = "/admin/configuration", "admin/configuration/{id}"
NOWHERE = "http://127.0.0.1:9"
PROVIDER = {
    "category": "auth_providers",
    "provider_name": "google",
    "config": {
        "client_id": "x",
        "client_secret": "y",
        "token_url": f"{NOWHERE}/token",
        "jwks_url": f"{NOWHERE}/keys",
    },
}
on_a_provider = below(
    posted("admin/configuration", PROVIDER),
    ONE_CONFIGURATION,
    "configuration_id",
    by_id_alone=True,
)
SAML_KEY = "/account/sso/keys/<uuid:saml_key_id>"
on_a_saml_key = below(posted("account/sso/keys", {}), "account/sso/keys/{id}", "saml_key_id")
SSO: dict[Route, Case] = {
    ("GET", f"{CONFIGURATION}/stats"): Superadmin(),
    ("GET", f"{CONFIGURATION}/recent"): Superadmin(),
    ("GET", f"{CONFIGURATION}/system"): Superadmin(),
    ("GET", f"{CONFIGURATION}/account"): Own(),
    ("GET", CONFIGURATION): Own(),
    ("POST", CONFIGURATION): Own(lambda cast: PROVIDER, (201,)),
    ("GET", f"{CONFIGURATION}/providers"): Own(),
    ("GET", f"{CONFIGURATION}/schema/<category>/<provider>"): Own(),
    ("POST", f"{CONFIGURATION}/test-connection"): Own(lambda cast: PROVIDER),
    ("GET", f"{CONFIGURATION}/<uuid:configuration_id>"): on_a_provider(),
    ("PATCH", f"{CONFIGURATION}/<uuid:configuration_id>"): on_a_provider({"enabled": False}),
    ("DELETE", f"{CONFIGURATION}/<uuid:configuration_id>"): on_a_provider(),
    ("GET", f"{CONFIGURATION}/<uuid:configuration_id>/values"): on_a_provider(),
    ("PATCH", f"{CONFIGURATION}/<uuid:configuration_id>/values"): on_a_provider({"client_id": "z"}),
    ("POST", "/auth/saml/logout"): Own(lambda cast: {}, (403,)),
    ("GET", "/account/sso/refusals"): Own(),
    ("GET", f"{CONFIGURATION}/<uuid:configuration_id>/metadata"): on_a_provider(),
    ("POST", f"{CONFIGURATION}/<uuid:configuration_id>/metadata"): on_a_provider({}),
    ("GET", "/account/sso/keys"): Own(),
    ("POST", "/account/sso/keys"): Own(expected=(201,)),
    ("POST", f"{SAML_KEY}/activate"): on_a_saml_key(),
    ("DELETE", SAML_KEY): on_a_saml_key(),
    ("POST", "/account/sso/plan"): Own(lambda cast: {}),
}
CASES: dict[Route, Case] = {
    ("POST", "/auth/logout"): Own(alices_refresh_token, (403,)),
    ("GET", "/auth/me"): Own(),
    # What streams show of whom: tests/realtime. Here is no socket that one could go on with.
    ("GET", "/changes"): Own(),
    ("GET", "/realtime/subscribe"): Own(expected=(501,)),
    ("GET", "/realtime/ws"): Own(expected=(426,)),
    ("POST", "/realtime/tickets"): Own(expected=(201,)),
    ("POST", "/auth/send-verification"): Own(lambda cast: {"email": cast.alice.email}),
    ("GET", "/files/waiting"): Own(),
    ("GET", "/files/<file_id>"): Owned(a_file, "files/{id}", part="file_id"),
    ("DELETE", "/files/<file_id>"): Owned(a_file, "files/{id}", part="file_id"),
    ("POST", "/files/<file_id>/link"): Owned(a_file, "files/{id}", {}, part="file_id"),
    ("DELETE", "/files/<file_id>/links"): Owned(a_file, "files/{id}", part="file_id"),
    ("GET", "/files/<account_id>/<file_id>"): Owned(a_file, "files/{id}", part="file_id"),
    ("DELETE", "/files/<account_id>/<file_id>"): Owned(a_file, "files/{id}", part="file_id"),
    ("GET", "/files/download/<account_id>/<file_id>"): Owned(a_file, "files/{id}", part="file_id"),
    ("POST", "/files/upload"): Own(lambda cast: {"file": (BytesIO(b"x"), "a.txt")}, (201,)),
    ("GET", "/records/<collection>"): Own(),
    ("POST", "/records/<collection>"): Own(lambda cast: {"title": "of globex"}, (201,)),
    # What it tells of whom: tests/records/test_aggregate.py. Without a function it tells nothing.
    ("GET", "/records/<collection>/aggregate"): Own(expected=(400,)),
    ("POST", BATCH): Own({"records": [{"title": "of globex"}]}, (201,)),
    ("PATCH", BATCH): Own({"records": [{"id": RANDOM_ID, "data": {}}]}, (404,)),
    ("DELETE", BATCH): Own({"ids": [RANDOM_ID]}, (404,)),
    # Records of others by their ids: tests/records/test_operations.py.
    ("POST", "/batch"): Own({"operations": [OPERATION]}),
    ("GET", "/records/<collection>/export"): Own(),
    ("POST", "/records/<collection>/import"): Own(lambda cast: [{"title": "of globex"}]),
    ("GET", "/records/<collection>/<record_id>"): Owned(a_record, ONE_RECORD),
    ("PUT", "/records/<collection>/<record_id>"): Owned(a_record, ONE_RECORD, {"title": "x"}),
    ("PATCH", "/records/<collection>/<record_id>"): Owned(a_record, ONE_RECORD, {"title": "x"}),
    ("DELETE", "/records/<collection>/<record_id>"): Owned(a_record, ONE_RECORD),
    ("GET", "/records/<collection>/<record_id>/history"): Owned(a_record, ONE_RECORD),
    ("POST", "/records/<collection>/<record_id>/restore"): Owned(
        a_record, ONE_RECORD, {"audit_id": 1}
    ),
    ("POST", "/records/<collection>/<record_id>/erase"): Owned(a_record, ONE_RECORD),
    ("POST", "/users/<uuid:user_id>/erase"): Superadmin(),
    ("GET", "/collections"): Superadmin(),
    ("POST", "/collections"): Superadmin({"name": "others", "schema": TITLE}),
    ("GET", "/collections/names"): Superadmin(),
    ("GET", "/collections/export"): Superadmin(),
    ("POST", "/collections/import"): Superadmin({"data": {"collections": []}}),
    ("GET", "/collections/<collection_id>"): Superadmin(),
    ("PUT", "/collections/<uuid:collection_id>"): Superadmin({"schema": TITLE}),
    ("PATCH", "/collections/<uuid:collection_id>"): Superadmin({"schema": TITLE}),
    ("POST", "/collections/<uuid:collection_id>/plan"): Superadmin({"schema": TITLE}),
    ("DELETE", "/collections/<uuid:collection_id>"): Superadmin(),
    ("GET", "/collections/<collection_name>/rules"): Superadmin(),
    ("PUT", "/collections/<collection_name>/rules"): Superadmin({"delete_rule": None}),
    ("POST", "/collections/<collection_name>/rules/explain"): Superadmin({"operation": "view"}),
    ("POST", "/collections/<collection_name>/rules/diff"): Superadmin({"rules": {}}),
    ("POST", "/rules/validate"): Superadmin({"rule": "true"}),
    ("POST", "/rules/test"): Superadmin({"rule": "true"}),
    ("GET", "/rules/fragments"): Superadmin(),
    ("PUT", "/rules/fragments"): Superadmin({"staff": "true"}),
    ("POST", "/rules/fragments/plan"): Superadmin({}),
    ("POST", "/roles/validate-rule"): Superadmin({"rule": "true"}),
    ("POST", "/roles/test-rule"): Superadmin({"rule": "true"}),
    ("GET", "/rules/denials/<explain_id>"): Superadmin(),
    ("GET", "/dashboard/stats"): Own(),
    ("GET", "/audit-logs"): Superadmin(),
    ("GET", "/audit-logs/<large:entry_id>"): Superadmin(),
    ("GET", "/audit-logs/export"): Superadmin(),
    ("GET", "/audit-logs/verify"): Superadmin(),
    ("GET", "/audit-logs/checkpoints"): Superadmin(),
    ("GET", "/migrations"): Superadmin(),
    ("GET", "/migrations/history"): Superadmin(),
    ("GET", "/migrations/current"): Superadmin(),
    ("GET", "/manifest/export"): Superadmin(),
    ("POST", "/manifest/plan"): Superadmin({"manifest": {"version": 1}}),
    ("POST", "/manifest/apply"): Superadmin({"manifest": {"version": 1}, "plan_hash": "none"}),
    **SIGN_IN,
    **PEOPLE,
    **OWN_ACCOUNT,
    **GROUPS,
    **INVITATIONS,
    **KEYS,
    **WEBHOOKS,
    **WORKFLOWS,
    **SSO,
}


Kind = TypeVar("Kind", Superadmin, Owned, Own)


def of_kind(kind: type[Kind]) -> list[tuple[Route, Kind]]:
    """The routes of CASES of one kind."""
    return [(route, case) for route, case in CASES.items() if isinstance(case, kind)]


def by_thing() -> Any:
    """The routes of things, as parameters: those of one thing together, as none changes it."""
    groups: dict[str, list[tuple[Route, Owned]]] = {}
    for route, case in of_kind(Owned):
        groups.setdefault(case.make.__name__, []).append((route, case))
    return pytest.mark.parametrize("cases", groups.values(), ids=groups)


def routes(app: Flask) -> dict[Route, Callable[..., Any]]:
    """Every route of the API with its view."""
    return {
        (method, rule.rule.removeprefix(PREFIX)): app.view_functions[rule.endpoint]
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith(PREFIX)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


NUMBER = {"name": "n", "type": "number"}
PARTS = {
    "collection": "posts",
    "collection_id": "posts",
    "collection_name": "posts",
    "role_id": "1",
    "category": "auth_providers",
    "provider": "google",
    "kind": "invitation",
    "language": "en",
}


def address(route: Route, **values: str) -> str:
    """The path of a route: the given values by name; else what exists, or an id of nothing."""
    parts = []
    for part in route[1].strip("/").split("/"):
        name = part.strip("<>").rpartition(":")[2]
        parts.append(values.get(name, PARTS.get(name, RANDOM_ID)) if part[0] == "<" else part)
    return "/".join(parts)


def make_posts(root: Caller) -> dict[str, Any]:
    return make_collection(root, schema=[*TITLE, NUMBER, {"name": "file", "type": "file"}])


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    return make_posts(root)


def test_access_table_has_entry_for_every_route(app: Flask) -> None:
    known = routes(app)
    assert not PUBLIC.keys() & CASES.keys()
    assert PUBLIC.keys() | CASES.keys() == known.keys()
    for route, view in known.items():
        level = access_of(view).level
        assert (level is AccessLevel.PUBLIC) == (route in PUBLIC), route
        superadmins = isinstance(CASES.get(route), Superadmin)
        assert (level is AccessLevel.SUPERADMIN) == superadmins, route


@pytest.mark.long
@pytest.mark.one_database
def test_route_without_credential_is_401(anyone: Caller, posts: dict[str, Any]) -> None:
    nonsense = Caller(anyone.app, Authorization="Bearer nonsense")
    callers = [
        one for c in (anyone, nonsense) for one in (c, c.acting_in("acme"), c.acting_in("system"))
    ]
    for route, case in CASES.items():
        path = address(route, collection_id=posts["id"], record_id=RANDOM_ID)
        body = case.body if not callable(case.body) else {}
        for caller in callers:
            answer = caller(route[0], path, body)
            assert answer.status_code == 401, (route, answer.text)
            assert answer.json["error"] == "unauthorized", route


@pytest.mark.long
@pytest.mark.one_database
def test_superadmin_route_is_403_for_others(cast: Cast, posts: dict[str, Any]) -> None:
    ids = {"account_id": cast.bob.account_id, "user_id": cast.bob.id, "collection_id": posts["id"]}
    seen = ("collections", "users", "roles", "accounts")
    before = [cast.root.get(path).json for path in seen]
    for route, case in of_kind(Superadmin):
        path = address(route, **ids)
        for caller in (cast.alice, cast.bob, cast.charlie, cast.alice.acting_in("acme")):
            for target in (path, path.replace("posts", "nothing").replace(posts["id"], RANDOM_ID)):
                answer = caller(route[0], target, case.body)
                assert answer.status_code == 403, route
                assert answer.json["error"] == "superadmin_required", route
        named = cast.alice.acting_in("system")(route[0], path, case.body)
        assert (named.status_code, named.json["error"]) == (403, "forbidden"), route
        assert [cast.root.get(path).json for path in seen] == before, route


@pytest.mark.one_database
@by_thing()
def test_object_of_other_account_is_404_like_unknown_object(
    cast: Cast, posts: dict[str, Any], cases: list[tuple[Route, Owned]]
) -> None:
    id = cases[0][1].make(cast.alice)
    for route, case in cases:
        read = case.read.format(id=id)
        before = cast.alice.get(read).json
        # A superadmin acts in the system account unless another is named: to it, too, this is none.
        strangers = [cast.charlie, cast.root.acting_in("globex")]
        for stranger in strangers if case.by_id_alone else [*strangers, cast.root]:
            theirs = stranger(route[0], address(route, **{case.part: id}), case.body)
            none = stranger(route[0], address(route, **{case.part: RANDOM_ID}), case.body)
            assert theirs.status_code == none.status_code == 404, route
            assert theirs.data == none.data, route
            assert set(theirs.headers.keys()) == set(none.headers.keys()), route
        assert cast.alice.get(read).json == before, route


@pytest.mark.long
@pytest.mark.one_database
@by_thing()
def test_route_naming_other_account_is_403(
    cast: Cast, posts: dict[str, Any], cases: list[tuple[Route, Owned]]
) -> None:
    id = cases[0][1].make(cast.alice)
    for route, case in cases:
        read = case.read.format(id=id)
        before = cast.alice.get(read).json
        path = address(route, **{case.part: id})
        for name in ("acme", "ACME", cast.alice.account_id, "AA0001", "*", "system"):
            answer = cast.charlie.acting_in(name)(route[0], path, case.body)
            assert (answer.status_code, answer.json["error"]) == (403, "forbidden"), route
        hosted = cast.charlie(route[0], path, case.body, headers={"Host": "acme.atrium.test"})
        assert (hosted.status_code, hosted.json["error"]) == (403, "forbidden"), route
        assert cast.alice.get(read).json == before, route


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("route", "case"), of_kind(Own), ids=[" ".join(route) for route, _ in of_kind(Own)]
)
def test_route_about_caller_does_not_touch_others(
    app: Flask, cast: Cast, posts: dict[str, Any], route: Route, case: Own
) -> None:
    kept = make_record(cast.alice, title="of acme")
    signed_in = alices_refresh_token(cast)
    body = case.body(cast) if callable(case.body) else case.body
    answer = cast.charlie(route[0], address(route), **sent(body))
    assert answer.status_code in case.expected
    for secret in ("acme", cast.alice.id, cast.alice.account_id, kept["id"]):
        assert secret not in answer.text
    with app.app_context():
        worker.run_due()
    assert not [mail for mail in _mails(app) if cast.alice.email in mail]
    assert cast.alice.get("records/posts").json["items"] == [kept]
    assert Caller(app).post("auth/refresh", signed_in).status_code == 200


FORGED = ("account_id", "id", "created_by", "created_at", "updated_by")


def test_system_fields_in_body_are_field_read_only(cast: Cast, posts: dict[str, Any]) -> None:
    mine = make_record(cast.charlie, title="mine")
    for name in FORGED:
        value = getattr(cast.alice, name, None) or cast.alice.id
        for method, path in (("POST", "posts"), ("PATCH", f"posts/{mine['id']}")):
            answer = cast.charlie(method, f"records/{path}", {"title": "x", name: value})
            assert answer.status_code == 400
            assert [item["code"] for item in answer.json["details"]] == ["field_read_only"]
    assert cast.charlie.get("records/posts").json["items"] == [mine]
    assert cast.alice.get("records/posts").json["items"] == []


def test_filter_on_account_id_finds_nothing_of_other_account(
    cast: Cast, posts: dict[str, Any]
) -> None:
    make_record(cast.alice, title="of acme")
    for query in (
        {"account_id": cast.alice.account_id},
        {"created_by": cast.alice.id},
        {"title": "of acme"},
    ):
        answer = cast.charlie.get("records/posts", query_string=query).json
        assert (answer["items"], answer["total"]) == ([], 0)


def test_superadmin_reads_across_accounts_only_on_request(
    cast: Cast, posts: dict[str, Any]
) -> None:
    theirs = [make_record(one, title="x")["id"] for one in (cast.alice, cast.charlie)]

    def seen(caller: Caller) -> list[str]:
        return [one["id"] for one in caller.get("records/posts?sort=id").json["items"]]

    assert seen(cast.root) == []
    assert seen(cast.root.acting_in("acme")) == theirs[:1]
    assert seen(cast.root.acting_in("*")) == theirs
    assert cast.root.acting_in("*").post("records/posts", {"title": "x"}).status_code == 400


def _mails(app: Flask) -> list[str]:
    outbox = app.extensions["atrium.config"].instance_dir / "outbox"
    return [file.read_text() for file in outbox.glob("*.eml")]
