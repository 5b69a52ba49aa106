"""Who may do what to whom: caller x route x the object's owner."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.outbound import dns_client
from tests.builders import PASSWORD, Caller, Cast, make_user
from tests.mailbox import run_jobs
from tests.name_server import published_records

# anonymous, viewer bob, admin alice, other admin charlie, root at home, root acting in acme.
# What is acted upon belongs to acme, where alice and bob are.
CALLERS = ("anyone", "bob", "alice", "charlie", "root", "acting")
ANY_SUPERADMIN = (401, 403, 403, 403, 200, 200)
OF_ACCOUNT = (401, 403, 200, 404, 404, 200)
LIST_OF_ACCOUNT = (401, 403, 200, 200, 200, 200)
LIST_OF_ANYBODY = (401, 200, 200, 200, 200, 200)
Statuses = tuple[int, ...]

PORTAL = {"pages": ["team"], "return_url": "https://app.example.com/"}
NO_STREAM = (401, 403, 404, 404, 404, 404)
MAIL = "account/mail-templates/{kind}/{language}"
MAIL_TEXT = {"subject": "Join us", "text": "{{{{ link }}}}"}
TABLE: list[tuple[str, str, Any, Statuses]] = [
    ("GET", "accounts", None, ANY_SUPERADMIN),
    ("POST", "accounts", {"name": "{new}"}, ANY_SUPERADMIN),
    ("GET", "accounts/{acme}", None, ANY_SUPERADMIN),
    ("PUT", "accounts/{acme}", {"name": "Acme"}, ANY_SUPERADMIN),
    ("PATCH", "accounts/{acme}", {"is_active": True}, ANY_SUPERADMIN),
    ("GET", "accounts/{acme}/users", None, ANY_SUPERADMIN),
    ("GET", "accounts/{acme}/usage", None, ANY_SUPERADMIN),
    ("GET", "accounts/{acme}/quotas", None, ANY_SUPERADMIN),
    ("PUT", "accounts/{acme}/quotas", {"records": {"hard": 9}}, ANY_SUPERADMIN),
    ("PATCH", "accounts/{acme}/quotas", {"records": None}, ANY_SUPERADMIN),
    ("GET", "accounts/deletions", None, ANY_SUPERADMIN),
    ("GET", "accounts/{acme}/certificate", None, (401, 403, 403, 403, 404, 404)),
    ("GET", "account", None, LIST_OF_ACCOUNT),
    ("GET", "account/usage", None, LIST_OF_ACCOUNT),
    ("PUT", "account", {"name": "x"}, LIST_OF_ACCOUNT),
    ("PATCH", "account", {"name": "x"}, LIST_OF_ACCOUNT),
    ("GET", "account/brand", None, LIST_OF_ACCOUNT),
    ("PUT", "account/brand", {"name": "x"}, LIST_OF_ACCOUNT),
    ("PATCH", "account/brand", {"name": "x"}, LIST_OF_ACCOUNT),
    ("GET", "account/mail-templates", None, LIST_OF_ACCOUNT),
    ("GET", MAIL, None, LIST_OF_ACCOUNT),
    ("PUT", MAIL, MAIL_TEXT, LIST_OF_ACCOUNT),
    ("DELETE", MAIL, None, (401, 403, 404, 404, 404, 404)),
    ("POST", f"{MAIL}/preview", MAIL_TEXT, LIST_OF_ACCOUNT),
    ("POST", f"{MAIL}/test", MAIL_TEXT, LIST_OF_ACCOUNT),
    ("GET", "account/collections", None, LIST_OF_ANYBODY),
    ("GET", "account/roles", None, LIST_OF_ACCOUNT),
    ("GET", "account/sso/refusals", None, LIST_OF_ACCOUNT),
    ("POST", "account/sso/plan", {}, LIST_OF_ACCOUNT),
    ("GET", "account/sso/keys", None, LIST_OF_ACCOUNT),
    ("POST", "account/sso/keys", {}, LIST_OF_ACCOUNT),
    ("POST", "account/sso/keys/{saml_key}/activate", {}, OF_ACCOUNT),
    ("DELETE", "account/sso/keys/{saml_key}", None, OF_ACCOUNT),
    ("GET", "account/scim/tokens", None, LIST_OF_ACCOUNT),
    # Superadmins are not provisioned.
    ("POST", "account/scim/tokens", None, (401, 403, 200, 200, 403, 200)),
    ("DELETE", "account/scim/tokens/{scim_token}", None, OF_ACCOUNT),
    ("GET", "account/retention", None, LIST_OF_ACCOUNT),
    ("PUT", "account/retention", {"deliveries_days": 7}, LIST_OF_ACCOUNT),
    ("POST", "account/retention/plan", {"deliveries_days": 7}, LIST_OF_ACCOUNT),
    ("GET", "account/setup-links", None, LIST_OF_ACCOUNT),
    ("POST", "account/setup-links", {"name": "IT"}, (401, 403, 200, 200, 403, 200)),
    ("DELETE", "account/setup-links/{setup_link}", None, OF_ACCOUNT),
    # The system account has none, and root is no admin of acme to act as.
    ("POST", "account/portal-sessions", PORTAL, (401, 403, 200, 200, 403, 400)),
    ("GET", "account/users", None, LIST_OF_ACCOUNT),
    ("POST", "account/users", {"email": "{new}@x.example"}, LIST_OF_ACCOUNT),
    ("GET", "account/users/{user}", None, OF_ACCOUNT),
    ("PUT", "account/users/{user}", {"name": "x"}, OF_ACCOUNT),
    ("PATCH", "account/users/{user}", {"role": "editor"}, OF_ACCOUNT),
    ("DELETE", "account/users/{user}", None, OF_ACCOUNT),
    ("GET", "account/users/{user}/left", None, OF_ACCOUNT),
    ("GET", "account/domains", None, LIST_OF_ACCOUNT),
    ("POST", "account/domains", {"domain": "{new}.example"}, LIST_OF_ACCOUNT),
    ("POST", "account/domains/{domain}/verify", None, OF_ACCOUNT),
    ("PATCH", "account/domains/{domain}", {"auto_join": False}, OF_ACCOUNT),
    ("DELETE", "account/domains/{domain}", None, OF_ACCOUNT),
    ("GET", "account/audit-logs", None, LIST_OF_ACCOUNT),
    ("GET", "account/audit-logs/export", None, LIST_OF_ACCOUNT),
    ("GET", "account/security-log", None, LIST_OF_ACCOUNT),
    ("GET", "account/security-log/export", None, LIST_OF_ACCOUNT),
    ("GET", "account/security-log/verify", None, LIST_OF_ACCOUNT),
    ("GET", "account/security-log/access-report", None, LIST_OF_ACCOUNT),
    ("PUT", "account/security-log/stream", {"url": "http://127.0.0.1:9/"}, LIST_OF_ACCOUNT),
    ("GET", "account/security-log/stream", None, NO_STREAM),
    ("POST", "account/security-log/stream/rotate-secret", None, NO_STREAM),
    ("POST", "account/security-log/stream/test", None, NO_STREAM),
    ("POST", "account/security-log/stream/take-over", None, NO_STREAM),
    ("DELETE", "account/security-log/stream", None, NO_STREAM),
    # Superadmins outside pii_access may not, and the system account has none.
    ("POST", "account/export", {"passphrase": "{new} and more"}, (401, 403, 202, 202, 403, 403)),
    ("GET", "account/export", None, LIST_OF_ACCOUNT),
    ("GET", "account/export/contents", None, LIST_OF_ACCOUNT),
    ("GET", "account/export/{export}", None, OF_ACCOUNT),
    ("DELETE", "account/export/{export}", None, OF_ACCOUNT),
    ("GET", "account/export/{export}/download", None, (401, 403, 200, 404, 404, 403)),
    ("GET", "account/second-factors", None, LIST_OF_ACCOUNT),
    ("DELETE", "account/users/{user}/second-factors", None, OF_ACCOUNT),
    ("GET", "account/users/{user}/sessions", None, OF_ACCOUNT),
    ("DELETE", "account/users/{user}/sessions", None, OF_ACCOUNT),
    ("DELETE", "account/users/{user}/sessions/{session}", None, OF_ACCOUNT),
    ("GET", "users", None, ANY_SUPERADMIN),
    ("POST", "users", {"email": "{new}@x.example", "account_id": "{acme}"}, ANY_SUPERADMIN),
    ("GET", "users/{user}", None, ANY_SUPERADMIN),
    ("GET", "users/{user}/export", None, (401, 403, 200, 404, 200, 200)),
    ("PUT", "users/{user}", {"name": "x"}, ANY_SUPERADMIN),
    ("PATCH", "users/{user}", {"role": "admin"}, ANY_SUPERADMIN),
    ("PUT", "users/{user}/password", {"send_reset_link": True}, ANY_SUPERADMIN),
    ("POST", "users/{user}/password", {"send_reset_link": True}, ANY_SUPERADMIN),
    ("POST", "users/{user}/verify", None, ANY_SUPERADMIN),
    ("POST", "users/{user}/resend-verification", None, ANY_SUPERADMIN),
    ("DELETE", "users/{user}/second-factors", None, ANY_SUPERADMIN),
    ("DELETE", "users/{user}", None, ANY_SUPERADMIN),
    ("POST", "users/{user}/erase", None, ANY_SUPERADMIN),
    ("GET", "roles", None, ANY_SUPERADMIN),
    ("POST", "roles", {"name": "{new}"}, ANY_SUPERADMIN),
    ("GET", "roles/{role}", None, ANY_SUPERADMIN),
    ("PUT", "roles/{role}", {"description": "x"}, ANY_SUPERADMIN),
    ("PATCH", "roles/{role}", {"description": "x"}, ANY_SUPERADMIN),
    ("DELETE", "roles/{role}", None, ANY_SUPERADMIN),
    ("GET", "roles/{role}/permissions", None, ANY_SUPERADMIN),
    ("GET", "roles/{role}/permissions/matrix", None, ANY_SUPERADMIN),
    ("POST", "roles/validate-rule", {"rule": "true"}, ANY_SUPERADMIN),
    ("POST", "roles/test-rule", {"rule": "true"}, ANY_SUPERADMIN),
    ("GET", "groups", None, LIST_OF_ACCOUNT),
    ("POST", "groups", {"name": "{new}"}, LIST_OF_ACCOUNT),
    ("GET", "groups/{group}", None, OF_ACCOUNT),
    ("PUT", "groups/{group}", {"description": "x"}, OF_ACCOUNT),
    ("PATCH", "groups/{group}", {"description": "x"}, OF_ACCOUNT),
    ("POST", "groups/{group}/users", {"user_id": "{user}"}, OF_ACCOUNT),
    ("POST", "groups/{group}/members", {"user_id": "{user}"}, OF_ACCOUNT),
    ("DELETE", "groups/{group}/users/{member}", None, OF_ACCOUNT),
    ("DELETE", "groups/{group}/members/{member}", None, OF_ACCOUNT),
    ("DELETE", "groups/{group}", None, OF_ACCOUNT),
    ("GET", "invitations", None, LIST_OF_ACCOUNT),
    ("POST", "invitations", {"email": "{new}@x.example"}, LIST_OF_ACCOUNT),
    ("DELETE", "invitations/{invitation}", None, OF_ACCOUNT),
    ("POST", "invitations/{invitation}/resend", None, OF_ACCOUNT),
    ("DELETE", "accounts/{acme}", None, (401, 403, 403, 403, 204, 404)),
    ("DELETE", "accounts/" + SYSTEM_ACCOUNT_ID, None, (401, 403, 403, 403, 409, 409)),
]


class Stage:
    """A thing of acme of every kind, new for each caller."""

    def __init__(self, app: Flask, cast: Cast) -> None:
        self.app, self.cast, self.made = app, cast, 0

    def fill(self, template: Any) -> Any:
        """Put ids into a path or a body; what is named for the first time is made."""
        if isinstance(template, dict):
            return {key: self.fill(value) for key, value in template.items()}
        if not isinstance(template, str) or "{" not in template:
            return template
        return template.format_map(self)

    def begin(self) -> None:
        """Start anew."""
        self.made += 1
        self.ids: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self.ids:
            self.ids[name] = str(getattr(self, f"make_{name}")())
        return self.ids[name]

    def make_new(self) -> str:
        return f"thing-{self.made}"

    def make_acme(self) -> str:
        return self.cast.alice.account_id

    def make_kind(self) -> str:
        return "invitation"

    def make_language(self) -> str:
        return "en"

    def make_user(self) -> str:
        email = f"user{self.made}@acme.example"
        return make_user(self.app, self.cast.alice.account_id, email).id

    def make_domain(self) -> str:
        body = {"domain": f"domain{self.made}.example"}
        return str(self.cast.alice.post("account/domains", body).json["id"])

    def make_export(self) -> str:
        body = {"passphrase": "a long enough passphrase"}
        export_id = str(self.cast.alice.post("account/export", body).json["id"])
        run_jobs(self.app)
        return export_id

    def make_session(self) -> str:
        signing_in = {"account": "acme", "password": PASSWORD}
        signing_in["email"] = f"user{self.made}@acme.example"
        sessions = f"account/users/{self['user']}/sessions"
        assert Caller(self.app).post("auth/login", signing_in).status_code == 200
        return str(self.cast.alice.get(sessions).json["items"][0]["id"])

    def make_role(self) -> int:
        body = {"name": f"role{self.made}"}
        return int(self.cast.root.post("roles", body).json["id"])

    def make_group(self) -> str:
        body = {"name": f"group{self.made}"}
        return str(self.cast.alice.post("groups", body).json["id"])

    def make_member(self) -> str:
        body = {"user_id": self.cast.bob.id}
        answer = self.cast.alice.post(f"groups/{self['group']}/users", body)
        assert answer.status_code == 200
        return self.cast.bob.id

    def make_saml_key(self) -> str:
        for key in reversed(self.cast.alice.get("account/sso/keys").json["items"]):
            assert self.cast.alice.delete(f"account/sso/keys/{key['id']}").status_code == 204
        return str(self.cast.alice.post("account/sso/keys").json["id"])

    def make_setup_link(self) -> str:
        return str(self.cast.alice.post("account/setup-links", {"name": "IT"}).json["id"])

    def make_scim_token(self) -> str:
        for token in self.cast.alice.get("account/scim/tokens").json["items"]:
            self.cast.alice.delete(f"account/scim/tokens/{token['id']}")
        return str(self.cast.alice.post("account/scim/tokens").json["id"])

    def make_invitation(self) -> str:
        body = {"email": f"invited{self.made}@acme.example"}
        return str(self.cast.alice.post("invitations", body).json["id"])


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    TABLE,
    ids=[f"{method} {path}" for method, path, *_ in TABLE],
)
def test_access_matrix_status_per_route_and_caller(
    app: Flask,
    cast: Cast,
    method: str,
    path: str,
    body: Any,
    expected: Statuses,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dns_client, "txt_records", published_records)
    stage = Stage(app, cast)
    if path.startswith(("account/brand", "account/mail-templates")):
        assert cast.root.put("product", {"accounts_may_brand": True}).status_code == 200
    if body is PORTAL:
        assert cast.root.put("product", {"url": body["return_url"]}).status_code == 200
    callers = dict(zip(CALLERS, callers_of(app, cast), strict=True))
    for (name, caller), status in zip(callers.items(), expected, strict=True):
        stage.begin()
        answer = caller(method, stage.fill(path), stage.fill(body))
        answer.get_data()  # all of an export
        found = answer.status_code
        assert (200 if found in (201, 204) and status == 200 else found) == status, name
        if status == 403:
            superadmins = expected[CALLERS.index("alice")] == 403
            code = "superadmin_required" if superadmins else "forbidden"
            assert answer.json["error"] == code


def callers_of(app: Flask, cast: Cast) -> tuple[Caller, ...]:
    acting = cast.root.acting_in("acme")
    return Caller(app), cast.bob, cast.alice, cast.charlie, cast.root, acting


def test_access_matrix_has_row_for_every_route(app: Flask) -> None:
    prefix = "/api/v1/"
    known = {
        (method, template(rule.rule.removeprefix(prefix)))
        for rule in app.url_map.iter_rules()
        if rule.rule.removeprefix(prefix).partition("/")[0]
        in ("accounts", "account", "users", "roles", "groups", "invitations")
        and rule.rule.startswith(prefix)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    public = {("GET", "invitations/{}"), ("POST", "invitations/{}/accept")}
    assert {(method, template(path)) for method, path, *_ in TABLE} == known - public


def template(path: str) -> str:
    """A path without the names of its parts."""
    parts = path.replace(SYSTEM_ACCOUNT_ID, "{acme}").split("/")
    return "/".join("{}" if part[0] in "<{" else part for part in parts)
