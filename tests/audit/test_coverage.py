"""Nothing changes without an entry: every table and every route is walked.

The database is read before and after each request of the routes that change something. Whatever
differs, but for tables whose policy says otherwise, must be told by a new entry of the right chain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyotp
import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.audit import append
from app.auth import api_keys, mail_tokens
from app.auth.models import LinkPurpose
from app.db.policy import SYSTEM_COLUMNS, Audited
from app.jobs import worker
from app.outbound import dns_client
from tests import test_tenancy as tenancy
from tests.audit.chains import entries, verified
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_drawer, make_record
from tests.mailbox import outbox, run_jobs, token_in
from tests.name_server import published_records
from tests.passkeys import Authenticator
from tests.sso import openid, saml_idp
from tests.sso.flows import Stage, query_of
from tests.test_tenancy import Route

Rows = dict[tuple[str, ...], dict[str, Any]]
READING = ("GET",)
# Routes that change nothing that is audited, each with what they change.
UNTOLD: dict[Route, str] = {
    ("POST", "/attributes/users/plan"): "nothing: it only plans",
    ("POST", "/attributes/accounts/plan"): "nothing: it only plans",
    ("POST", "/account-templates/<template_name>/plan"): "nothing: it only plans",
    ("POST", "/auth/login"): "a session (tokens) and last_login",
    ("POST", "/auth/mfa/verify"): "a session (tokens), a used code",
    ("POST", "/auth/mfa/options"): "nothing: it only signs",
    ("POST", "/auth/signatures/options"): "nothing: it only signs",
    ("POST", "/auth/mfa/passkeys/options"): "nothing: it only signs",
    ("POST", "/auth/mfa/recovery-codes"): "recovery codes (tokens)",
    ("POST", "/auth/passkeys/options"): "nothing: it only signs",
    ("POST", "/auth/passkeys/verify"): "a session (tokens), a counter",
    ("POST", "/auth/discover"): "nothing: it only reads",
    ("POST", "/auth/refresh"): "a session (tokens)",
    ("POST", "/auth/reauthenticate"): "a session (tokens)",
    ("POST", "/auth/logout"): "a session (tokens)",
    ("POST", "/auth/saml/logout"): "a session (tokens)",
    ("DELETE", "/auth/sessions/<uuid:session_id>"): "a session (tokens)",
    ("POST", "/account/portal-sessions"): "a session (tokens)",
    ("DELETE", "/account/users/<uuid:user_id>/sessions"): "sessions (tokens)",
    ("DELETE", "/account/users/<uuid:user_id>/sessions/<uuid:session_id>"): "a session (tokens)",
    ("POST", "/realtime/tickets"): "a ticket (tokens)",
    ("POST", "/files/upload"): "an upload: audited when a record takes it",
    ("DELETE", "/files/<file_id>"): "an upload that no record has",
    ("DELETE", "/files/<account_id>/<file_id>"): "an upload that no record has",
    ("POST", "/files/<file_id>/link"): "an event of the security log",
    ("DELETE", "/files/<file_id>/links"): "an event of the security log",
    ("POST", "/auth/send-verification"): "a job and a mailed token",
    ("POST", "/auth/resend-verification"): "a job and a mailed token",
    ("POST", "/auth/forgot-password"): "a job and a mailed token",
    ("POST", "/auth/sessions/end-others"): "sessions (tokens)",
    ("POST", "/auth/keep-email"): "a mailed token",
    ("POST", "/auth/magic-link"): "a job and a mailed token",
    ("POST", "/auth/magic-link/verify"): "a session (tokens) and last_login",
    ("POST", "/users/<uuid:user_id>/resend-verification"): "a job and a mailed token",
    ("POST", "/collections/<uuid:collection_id>/plan"): "nothing: it only plans",
    ("POST", f"{tenancy.OPERATOR_WEBHOOK}/test"): "a delivery",
    ("POST", f"{tenancy.OPERATOR_WEBHOOK}/take-over"): "nothing where the caller is the owner",
    (
        "POST",
        f"{tenancy.OPERATOR_WEBHOOK}{tenancy.OPERATOR_DELIVERY}/redeliver",
    ): "a delivery",
    ("POST", "/webhooks/<uuid:webhook_id>/test"): "a delivery",
    ("POST", "/webhooks/<uuid:webhook_id>/take-over"): "nothing where the caller is the maker",
    ("POST", "/webhooks/<uuid:webhook_id>/deliveries/redeliver"): "a job, and deliveries",
    ("POST", "/webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver"): "a delivery",
    ("POST", "/workflows/<uuid:workflow_id>/trigger"): "an instance, whose changes are audited",
    ("POST", "/hooks/<uuid:hook_id>/trigger"): "an instance, whose changes are audited",
    ("POST", "/workflow-instances/resume"): "an instance",
    ("POST", "/workflow-instances/<uuid:instance_id>/cancel"): "an instance",
    ("POST", "/workflow-instances/<uuid:instance_id>/resume"): "an instance",
    ("POST", "/workflow-instances/<uuid:instance_id>/rerun"): "an instance",
    ("POST", "/admin/configuration/test-connection"): "nothing: it only tries",
    ("POST", "/admin/configuration/<uuid:configuration_id>/metadata"): "nothing without an address",
    ("POST", "/account/sso/plan"): "nothing: it only plans",
    ("POST", "/account/retention/plan"): "nothing: it only plans",
    ("POST", "/account/sso/keys/<uuid:saml_key_id>/activate"): "nothing where it is active",
    ("POST", "/rules/validate"): "nothing: it only judges",
    ("POST", "/account/security-log/stream/test"): "nothing: it only tries",
    ("POST", "/account/security-log/stream/take-over"): "nothing where the caller is the maker",
    ("POST", "/rules/test"): "nothing: it only tries",
    ("POST", "/rules/fragments/plan"): "nothing: it only shows what would change",
    ("POST", "/roles/validate-rule"): "nothing: it only judges",
    ("POST", "/roles/test-rule"): "nothing: it only tries",
    ("POST", "/collections/<collection_name>/rules/explain"): "nothing: it only explains",
    ("POST", "/collections/<collection_name>/rules/diff"): "nothing: it only compares",
    ("POST", "/manifest/plan"): "nothing: it only plans",
    ("POST", f"{tenancy.MAIL}/preview"): "nothing: it only shows",
    ("POST", f"{tenancy.MAIL}/test"): "a job",
    ("POST", f"/account{tenancy.MAIL}/preview"): "nothing: it only shows",
    ("POST", f"/account{tenancy.MAIL}/test"): "a job",
}
FIELDS = [*tenancy.TITLE, {"name": "n", "type": "number"}]


def audited_tables() -> dict[str, Audited]:
    """How each audited table is audited."""
    found = {name: policy.audit for name, policy in db.policies().items()}
    return {name: audit for name, audit in found.items() if isinstance(audit, Audited)}


def test_audit_coverage_excludes_secret_columns() -> None:
    for name, tracked in audited_tables().items():
        for column in db.Base.metadata.tables[name].columns:
            if any(word in column.name for word in ("hash", "secret", "token", "password")):
                told = tracked.includes(column.name) and column.name not in tracked.hidden
                assert not told, (name, column.name)


def contents() -> dict[str, Rows]:
    """Everything that is stored, but the audit log."""
    found: dict[str, Rows] = {}
    for name in audited_tables():
        table = db.Base.metadata.tables[name]
        key = [column.name for column in table.primary_key]
        rows = db.connection().execute(sa.select(table)).mappings()
        found[name] = {tuple(str(row[k]) for k in key): flat(name, row) for row in rows}
    present = sa.inspect(db.connection()).get_table_names()
    for name in (name for name in present if name.startswith("col_")):
        # As text: to look at every column of each table would take most of the test's time.
        rows = db.connection().execute(sa.text(f'SELECT * FROM "{name}"')).mappings()  # noqa: S608
        found[name] = {(row["account_id"], row["id"]): dict(row) for row in rows}
    return found


def flat(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row, with each of the attributes of users and accounts as a column of its own."""
    values = dict(row)
    for name, value in values.pop("attributes").items() if table in ("users", "accounts") else ():
        values[f"attributes.{name}"] = value
    return values


def expected(before: dict[str, Rows], after: dict[str, Rows]) -> set[tuple[str, ...]]:
    """What must be told: (chain, operation, table, record, column) of every difference."""
    told = set()
    for table in before.keys() | after.keys():
        old, new = before.get(table, {}), after.get(table, {})
        for key in old.keys() | new.keys():
            told |= differences(table, old.get(key, {}), new.get(key, {}))
    return told


def differences(table: str, old: dict[str, Any], new: dict[str, Any]) -> set[tuple[str, ...]]:
    """Of one row."""
    operation = "UPDATE" if old and new else "CREATE" if new else "DELETE"
    row, tracked = new or old, audited_tables().get(table)
    skipped = tracked.ignored if tracked else ("created_by", "updated_by")
    chain = tracked.chain if tracked else "account_id"
    id = row["id"] if "id" in row else f"{row['group_id']}/{row['user_id']}"
    return {
        (row[chain] if chain else SYSTEM_ACCOUNT_ID, operation, table, str(id), column)
        for column in row
        if old.get(column) != new.get(column)
        and column not in SYSTEM_COLUMNS.union(skipped)
        and not (tracked is None and column == "id" and operation == "UPDATE")
    }


def check(cast: Cast, act: Callable[[], Any]) -> int:
    """Everything that an act changes must be told, and nothing else. Returns how much."""
    app = cast.root.app
    with app.app_context():
        before = contents()
    last = max((entry["id"] for entry in newest(cast.root, 1)), default=0)
    act()
    with app.app_context():
        wanted = expected(before, contents())
    new = [entry for entry in newest(cast.root) if entry["id"] > last]
    values = [entry[side] or "" for entry in new for side in ("old_value", "new_value")]
    assert not [value for value in values if value.startswith('"')], "a text is stored as it is"
    names = ("account_id", "operation", "table_name", "record_id", "column_name")
    # An erasure names entries of the log: no row is changed, but by the deletion before it.
    told = {
        tuple(entry[name] for name in names)
        for entry in new
        if not entry["extra_metadata"] and entry["table_name"] != "audit_log"
    }
    # What is created and changed in one transaction is, seen from outside, created.
    made = {(one[0], *one[2:4]) for one in told if one[1] == "CREATE"}
    told = {(one[0], "CREATE" if (one[0], *one[2:4]) in made else one[1], *one[2:]) for one in told}
    assert told == wanted
    return len(wanted)


def newest(root: Caller, limit: int = 500) -> list[dict[str, Any]]:
    """The newest entries."""
    return entries(root, sort_order="desc", include_total="false", limit=limit)


def of_tenancy() -> list[Any]:
    """The writing routes with a case in the matrix of tenancy."""
    routes = [route for route in tenancy.CASES if route[0] not in READING]
    return [pytest.param(route, id=" ".join(route)) for route in routes]


@pytest.mark.one_database
@pytest.mark.parametrize("route", of_tenancy())
def test_audit_coverage_of_every_writing_route(
    app: Flask, cast: Cast, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns_client, "txt_records", published_records)
    posts = make_collection(cast.root, schema=FIELDS)
    make_collection(cast.root, "others", tenancy.TITLE)
    make_drawer(cast.root)
    caller, path, body = prepared(cast, route, posts["id"])

    def act() -> None:
        answer = caller(route[0], path, **tenancy.sent(body))
        assert answer.status_code in (200, 201, 202, 204), answer.text

    changed = check(cast, act)
    assert (changed == 0) == (route in UNTOLD)
    assert verified(cast.root)["valid"]


def prepared(cast: Cast, route: Route, posts_id: str) -> tuple[Caller, str, Any]:
    """Who calls the route, and how, so that it changes something."""
    case = tenancy.CASES[route]
    if isinstance(case, tenancy.Own):
        body = case.body(cast) if callable(case.body) else case.body
        if route[1] == tenancy.BATCH and route[0] != "POST":
            id = make_record(cast.charlie, title="of globex", n=1)["id"]
            change = {"id": id, "data": {"title": "changed"}}
            body = {"records": [change]} if route[0] == "PATCH" else {"ids": [id]}
        own = (
            cast.alice if route[1] in ("/auth/logout", "/auth/send-verification") else cast.charlie
        )
        if route[1].startswith(tenancy.STREAM) and route[0] != "PUT":
            own.put("account/security-log/stream", {"url": "http://127.0.0.1:9/"})
        if route == ("DELETE", f"/account{tenancy.MAIL}"):
            own.put(tenancy.address(route), tenancy.MAIL_TEXT)
        if route[1] in ("/auth/reauthenticate", "/auth/saml/logout"):
            own = signed_in(own)
        return own, tenancy.address(route), body
    if isinstance(case, tenancy.Owned):
        id = case.make(cast.alice)
        path = tenancy.address(route, **{case.part: id, "account_id": cast.alice.account_id})
        body = {"user_id": cast.bob.id} if case.body == tenancy.SOMEBODY else case.body
        if route == ("PATCH", tenancy.MEMBER):
            body = {"role": "editor"}
        if route[1].startswith(f"{tenancy.DELIVERY}/"):
            cast.alice.post(f"webhooks/{id}/test")
            sent = cast.alice.get(f"webhooks/{id}/deliveries").json["items"][0]["id"]
            path = tenancy.address(route, webhook_id=id, delivery_id=sent)
        if route[1].endswith("/restore"):
            cast.alice.patch(f"records/posts/{id}", {"title": "changed"})
            changes = cast.alice.get(f"records/posts/{id}/history").json["items"]
            body = {"audit_id": changes[-1]["audit_id"]}
        if route[1].endswith("/second-factors"):
            path = path.replace(id, with_a_factor(cast.bob))
        if route[0] == "DELETE":
            path = path.replace(tenancy.RANDOM_ID, cast.alice.id)
        return cast.alice, path, body
    return cast.root, *of_superadmin(cast, route, case.body, posts_id)


def signed_in(caller: Caller) -> Caller:
    """The same user, in a session."""
    body = {"account": caller.slug, "email": caller.email, "password": PASSWORD}
    token = Caller(caller.app).post("auth/login", body).json["token"]
    return Caller(caller.app, Authorization=f"Bearer {token}")


def with_a_factor(user: Caller) -> str:
    """The id of the user, who has a second factor now."""
    assert tenancy.a_factor(user)
    return user.id


def of_superadmin(cast: Cast, route: Route, body: Any, posts_id: str) -> tuple[str, Any]:
    """The path and body of a route for superadmins."""
    role = cast.root.post("roles", {"name": "temporary"}).json["id"]
    ids = {"account_id": cast.bob.account_id, "user_id": cast.bob.id, "collection_id": posts_id}
    unverified = cast.alice.post("account/users", {"email": "new@acme.example"}).json["id"]
    if route[1].endswith(("/verify", "/resend-verification")):
        ids["user_id"] = unverified
    if route[1].startswith(tenancy.OPERATOR_WEBHOOK):
        made = cast.root.post("operator/webhooks", tenancy.OPERATOR_LISTENER).json["id"]
        cast.root.post(f"operator/webhooks/{made}/test")
        sent = cast.root.get(f"operator/webhooks/{made}/deliveries").json["items"][0]["id"]
        ids |= {"webhook_id": made, "delivery_id": sent}
    if route == ("POST", "/users"):
        body = {"email": "dora@acme.example", "account_id": cast.alice.account_id}
    if route == ("POST", "/collections"):
        body = {"name": "more", "schema": tenancy.TITLE}
    if route[1].startswith("/collections/<uuid:collection_id>") and body:
        body = {"schema": [*FIELDS, {"name": "added", "type": "text", "default": "x"}]}
    if route == ("POST", "/collections/import"):
        body = {"data": {"collections": [{"name": "more", "schema": tenancy.TITLE}]}}
    if route == ("POST", "/manifest/apply"):
        body = {"manifest": {"version": 1, "roles": [{"name": "more"}]}}
        body["plan_hash"] = cast.root.post("manifest/plan", body).json["plan_hash"]
    if "<template_name>" in route[1]:
        made: dict[str, Any] = {
            "manifest": {"version": 1, "account_templates": {"small": {"version": 1}}}
        }
        made["plan_hash"] = cast.root.post("manifest/plan", made).json["plan_hash"]
        assert cast.root.post("manifest/apply", made).status_code == 200
        ids["template_name"], body = "small", {"accounts": "all"}
        if route[1].endswith("/apply"):
            planned = cast.root.post("account-templates/small/plan", body).json
            body["plan_hash"] = planned["plan_hash"]
    if route[1] == "/users/<uuid:user_id>" and route[0] == "PATCH":
        body = {"role": "editor"}
    if route[1].endswith("/second-factors"):
        with_a_factor(cast.bob)
    if route == ("DELETE", tenancy.MAIL):
        cast.root.put(tenancy.address(route), tenancy.MAIL_TEXT)
    if route[1].endswith("/password"):
        body = {"new_password": "Another-horse-2"}
    return tenancy.address(route, role_id=str(role), **ids), body


def token_mailed_to(app: Flask, email: str) -> str:
    """The token of the newest mail to an address."""
    run_jobs(app)
    return token_in([mail for mail in outbox(app) if mail["To"] == email][-1])


def whose(cast: Cast) -> str:
    """The address of whoever made the newest change."""
    newest_entry = newest(cast.root)[0]
    assert newest_entry["user_id"] not in ("anonymous", "system")
    return str(newest_entry["user_email"])


@pytest.mark.long
def test_audit_coverage_of_routes_without_credential(app: Flask, cast: Cast) -> None:
    anyone, seen = Caller(app), set()

    def post(path: str, body: Any) -> Callable[[], Any]:
        seen.add(("POST", f"/{path}"))

        def act() -> None:
            assert anyone.post(path, body).status_code in (200, 201)

        return act

    new = {"account_name": "New", "email": "eve@new.example", "password": PASSWORD}
    assert check(cast, post("auth/register", new)) > 10
    named = {"account": "new", "email": "eve@new.example"}
    assert check(cast, post("auth/resend-verification", named)) == 0
    assert check(cast, post("auth/discover", {"email": "eve@new.example"})) == 0
    token = token_mailed_to(app, "eve@new.example")
    assert check(cast, post("auth/verify-email", {"token": token})) == 2
    assert whose(cast) == "eve@new.example"
    signed_in = anyone.post("auth/login", {**named, "password": PASSWORD}).json
    assert check(cast, post("auth/login", {**named, "password": PASSWORD})) == 0
    refresh = {"refresh_token": signed_in["refresh_token"]}
    assert check(cast, post("auth/refresh", refresh)) == 0
    assert check(cast, post("auth/forgot-password", named)) == 0
    reset = {"token": token_mailed_to(app, "eve@new.example"), "new_password": "Another-horse-2"}
    assert check(cast, post("auth/reset-password", reset)) == 1
    assert whose(cast) == "eve@new.example"
    assert cast.bob.patch("auth/me", {"email": "robert@acme.example"}).status_code == 200
    moved = {"token": token_mailed_to(app, "robert@acme.example")}
    assert check(cast, post("auth/verify-email", moved)) == 2
    assert whose(cast) == cast.bob.email
    undo = {"token": token_mailed_to(app, cast.bob.email)}
    assert check(cast, post("auth/undo-email-change", undo)) == 3
    assert whose(cast) == "robert@acme.example"
    with app.app_context():
        user = db.db.session.get_one(User, (cast.bob.account_id, cast.bob.id))
        keep = {"token": mail_tokens.issue(user, LinkPurpose.EMAIL_KEEP)}
    assert check(cast, post("auth/keep-email", keep)) == 0
    assert cast.alice.patch("account", {"magic_link": True}).status_code == 200
    named = {"account": "acme", "email": cast.alice.email}
    assert check(cast, post("auth/magic-link", named)) == 0
    link = {"token": token_mailed_to(app, cast.alice.email)}
    assert check(cast, post("auth/magic-link/verify", link)) == 0
    invited = cast.alice.post("invitations", {"email": "fay@acme.example"}).json["token"]
    body = {"password": PASSWORD}
    accepted = check(cast, lambda: anyone.post(f"invitations/{invited}/accept", body))
    assert accepted > 5
    assert whose(cast) == "fay@acme.example"
    seen.add(("POST", "/invitations/<invitation>/accept"))
    seen.add(("POST", "/workflow-webhooks/<token>"))
    flow = {**tenancy.FLOW, "trigger": {"type": "webhook"}}
    token = cast.alice.post("workflows", flow).json["trigger"]["token"]
    assert check(cast, lambda: anyone.post(f"workflow-webhooks/{token}")) == 0
    seen |= with_second_factors(app, cast)
    with openid.providing() as provider:
        seen |= signed_in_by_providers(Stage(app, cast, provider))
    assert seen == {route for route in tenancy.PUBLIC if route[0] != "GET"}


def with_second_factors(app: Flask, cast: Cast) -> set[Route]:
    """Set up an app and a passkey, and sign in by each; returns the routes."""
    user, anyone, answers = cast.charlie, Caller(app), dict[str, Any]()
    session = signed_in(user)

    def post(caller: Caller, path: str, body: Any = None) -> Callable[[], Any]:
        def act() -> None:
            answer = caller.post(f"auth/{path}", body)
            assert answer.status_code in (200, 201), answer.json
            answers[path] = answer.json

        return act

    assert check(cast, post(session, "mfa/totp", {})) > 3
    code = {"code": pyotp.TOTP(answers["mfa/totp"]["secret"]).now()}
    assert check(cast, post(session, "mfa/totp/confirm", code)) == 1
    assert check(cast, post(session, "mfa/passkeys/options", {})) == 0
    offered = answers["mfa/passkeys/options"]
    key = Authenticator(f"http://{offered['options']['rp']['id']}")
    credential = key.create(offered["options"])
    new = {"token": offered["token"], "credential": credential}
    assert check(cast, post(session, "mfa/passkeys", new)) > 3
    assert check(cast, post(anyone, "passkeys/options")) == 0
    offered = answers["passkeys/options"]
    alone = {"token": offered["token"], "assertion": key.get(offered["options"])}
    assert check(cast, post(anyone, "passkeys/verify", alone)) == 0
    body = {"account": user.slug, "email": user.email, "password": PASSWORD}
    asked = anyone.post("auth/login", body).json
    second = {"mfa_token": asked["mfa_token"], "method": "passkey"}
    second["assertion"] = key.get(asked["passkey_options"])
    assert check(cast, post(anyone, "mfa/verify", second)) == 0
    return {("POST", f"/auth/{path}") for path in answers}


def signed_in_by_providers(stage: Stage) -> set[Route]:
    """Sign in by each way of the API; returns their routes."""
    cast, domains = stage.cast, {"sso_email_domains": ["acme.example"]}
    back = {"allowed_redirect_uris": [stage.client], **domains}
    assert cast.alice.patch("account", back).status_code == 200
    assert check(cast, lambda: stage.oauth(cast.alice)) > 5
    stage.saml(cast.alice)
    begun: dict[str, Any] = {}

    def post(path: str, body: Any) -> Callable[[], Any]:
        return lambda: begun.update(stage.anyone.post(f"auth/{path}", body).json)

    assert check(cast, post("oauth/google/authorize", {"account": "acme"})) == 0
    _, values = stage.provider.authorize(begun["url"])
    assert check(cast, post("oauth/google/callback", values)) > 10
    code = query_of(stage.sign_in().headers["Location"])["code"]
    assert check(cast, post("exchange", {"code": code})) == 0
    assert begun["isNewUser"] is False
    request = stage.begin_saml(browser := stage.browser())
    response = saml_idp.answer(request, subject="eve@acme.example").encoded()
    form = {"SAMLResponse": response, "relayState": request.relay_state}
    assert check(cast, lambda: browser.post("/api/v1/auth/saml/acs", json=form)) > 10
    ways = ("oauth/<provider_name>/authorize", "oauth/<provider_name>/callback")
    return {("POST", f"/auth/{way}") for way in (*ways, "exchange", "saml/acs")}


def test_audit_log_of_account_removal_is_one_summary_entry(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    for n in range(3):
        make_record(cast.alice, title=f"{n}")
    cast.root.delete(f"accounts/{cast.alice.account_id}")
    (closed,) = entries(cast.root, operation="DELETE")
    assert closed["account_id"] == closed["record_id"] == cast.alice.account_id
    assert closed["extra_metadata"] == {"count": 3, "users": 2}
    before = len(newest(cast.root))
    with app.app_context():
        worker.run_due()
        assert not contents()["col_posts"]
    assert len(newest(cast.root)) == before
    assert verified(cast.root)["valid"]


def test_audit_log_of_user_deletion_includes_keys_and_memberships(cast: Cast) -> None:
    key = cast.bob.post("api-keys", {"name": "nightly"}).json
    group = cast.alice.post("groups", {"name": "finance"}).json["id"]
    cast.alice.post(f"groups/{group}/users", {"user_id": cast.bob.id})
    assert check(cast, lambda: cast.alice.delete(f"account/users/{cast.bob.id}")) > 10
    gone = entries(cast.root, operation="DELETE", account_id=cast.alice.account_id)
    assert {entry["table_name"] for entry in gone} == {"users", "api_keys", "group_members"}
    assert key["id"] in {entry["record_id"] for entry in gone}
    assert api_keys.PREFIX not in str(gone)


def test_audit_log_of_default_backfill_is_one_entry_per_account(cast: Cast) -> None:
    posts = make_collection(cast.root)
    for caller in (cast.alice, cast.alice, cast.charlie):
        make_record(caller, title="x")
    added = {"name": "state", "type": "text", "default": "new"}
    cast.root.put(f"collections/{posts['id']}", {"schema": [*tenancy.TITLE, added]})
    filled = entries(cast.root, table_name="col_posts", operation="UPDATE")
    counts = {entry["account_id"]: entry["extra_metadata"]["count"] for entry in filled}
    assert counts == {cast.alice.account_id: 2, cast.charlie.account_id: 1}
    assert {(one["column_name"], one["new_value"]) for one in filled} == {("state", "new")}


def test_audit_log_of_default_backfill_counts_records_per_account(cast: Cast) -> None:
    posts = make_collection(cast.root, schema=FIELDS)
    for caller, n in ((cast.alice, 1), (cast.alice, None), (cast.charlie, None), (cast.bob, 2)):
        make_record(caller, title="x", n=n)
    required = {"name": "n", "type": "number", "required": True, "default": 7}
    changed = cast.root.put(f"collections/{posts['id']}", {"schema": [FIELDS[0], required]})
    assert changed.status_code == 200, changed.json
    filled = entries(cast.root, table_name="col_posts", operation="UPDATE")
    counts = {entry["account_id"]: entry["extra_metadata"]["count"] for entry in filled}
    assert counts == {cast.alice.account_id: 1, cast.charlie.account_id: 1}
    assert {(e["column_name"], e["old_value"], e["new_value"]) for e in filled} == {
        ("n", None, "7")
    }
    assert verified(cast.root)["valid"]


def test_audit_append_failure_rolls_back_the_change(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root)

    def fail(*args: Any) -> Any:
        raise RuntimeError("the log cannot be written")

    monkeypatch.setattr(append, "stored_values", fail)
    assert cast.alice.post("records/posts", {"title": "x"}).status_code == 500
    assert cast.alice.patch("auth/me", {"name": "Al"}).status_code == 500
    monkeypatch.undo()
    assert cast.alice.get("records/posts").json["total"] == 0
    assert cast.alice.get("auth/me").json["name"] is None


def test_audit_log_has_no_entry_of_refused_or_rolled_back_change(cast: Cast) -> None:
    make_collection(cast.root, create_rule=None)
    make_collection(cast.root, "unique", [{"name": "code", "type": "text", "unique": True}])
    make_record(cast.alice, "unique", code="a")

    def refused() -> None:
        assert cast.alice.post("records/posts", {"title": "x"}).status_code == 403
        assert cast.alice.post("records/unique", {"code": "a"}).status_code == 409
        assert cast.alice.post("records/unique", {"code": 1}).status_code == 400
        assert cast.charlie.patch(f"groups/{cast.alice.id}", {"name": "x"}).status_code == 404

    before = len(newest(cast.root))
    assert check(cast, refused) == 0
    assert len(newest(cast.root)) == before
