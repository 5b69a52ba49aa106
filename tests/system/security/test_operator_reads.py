"""Every look of a superadmin at rows of an account is in that account's security log.

All GET routes are walked, with the account named in each way there is. A route has to be recorded,
or listed in SHOWS_NONE with the reason why it shows no account's rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from werkzeug.routing import Rule

from app import db
from app.audit.security_log.entries import EVENTS
from app.audit.security_log.recording import PENDING
from app.context import tenancy
from app.web.access import OPERATOR_SCOPES, AccessLevel, access_of
from tests import builders
from tests.builders import Caller, Cast
from tests.console import furnished
from tests.console.browser import Browser
from tests.security.reading import events
from tests.sql import statements

API = "/api/v1"
STREAM = "a stream, which records each event by itself (test_reads.py)"
NAMES = "accounts by name, as whoever runs the service has to know them"
CALLER, SHARED, CHOICE = "the caller's own", "what all accounts share", "asks for an account first"
OWN = "of the caller's own account; the page of others names the account in its path"
SHOWS_NONE = {
    f"{API}/account/export/<uuid:export_id>/download": "only an admin of the account may fetch it",
    f"{API}/accounts": NAMES,
    f"{API}/accounts/<uuid:account_id>/certificate": "of an account that is gone with its rows",
    f"{API}/accounts/deletions": NAMES,
    f"{API}/admin/configuration/providers": SHARED,
    **dict.fromkeys(
        (
            f"{API}/operator/webhooks/<uuid:webhook_id>/deliveries",
            f"{API}/operator/webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>",
            *("/console/events/webhooks", "/console/events/webhooks/new"),
            "/console/events/webhooks/<uuid:webhook_id>",
            "/console/events/webhooks/<uuid:webhook_id>/secret",
            "/console/events/webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>",
        ),
        "webhooks of the operator; whose events they show: tests/operator/test_webhooks.py",
    ),
    f"{API}/admin/configuration/schema/<category>/<provider>": SHARED,
    f"{API}/admin/configuration/stats": "counts alone",
    f"{API}/auth/me": CALLER,
    f"{API}/auth/mfa": CALLER,
    f"{API}/auth/sessions": CALLER,
    **dict.fromkeys(
        (
            *(f"{API}/collections", f"{API}/collections/<collection_id>"),
            *(f"{API}/collections/<collection_name>/rules", f"{API}/collections/export"),
            *(f"{API}/collections/names", f"{API}/migrations", f"{API}/migrations/current"),
            *(f"{API}/migrations/history", f"{API}/roles", f"{API}/roles/<integer:role_id>"),
            *(f"{API}/directory/settings", f"{API}/product", "/console/product"),
            *(f"{API}/plans", "/console/plans"),
            *(f"{API}/operator/webhooks", f"{API}/operator/webhooks/<uuid:webhook_id>"),
            *(f"{API}/account-templates", "/console/account-templates"),
            f"{API}/account-templates/<template_name>/jobs",
            f"{API}/account-templates/<template_name>/jobs/<uuid:template_job_id>",
            *(f"{API}/attributes/users", f"{API}/attributes/accounts"),
            *(f"{API}/mail-templates", f"{API}/mail-templates/<string:kind>/<string:language>"),
            "/console/product/mails",
            "/console/product/mails/<string:mail_kind>/<string:language>",
            "/console/product/mails/<string:mail_kind>/<string:language>/preview",
            f"{API}/roles/<integer:role_id>/permissions",
            f"{API}/roles/<integer:role_id>/permissions/matrix",
            *("/console/collections", "/console/collections/<uuid:collection_id>"),
            "/console/collections/<uuid:collection_id>/delete",
            "/console/collections/<uuid:collection_id>/rules",
            "/console/collections/<uuid:collection_id>/schema",
            "/console/collections/<uuid:definition_id>/view",
            *("/console/collections/diagram", "/console/collections/manifest"),
            *("/console/collections/new", "/console/extensions", "/console/health"),
            "/console/collections/new-view",
            "/console/migrations",
            *("/console/attributes", "/console/directory", "/console/collections/fragments"),
            *("/console/roles", "/console/roles/<integer:role_id>", "/console/roles/new"),
        ),
        SHARED,
    ),
    f"{API}/realtime/subscribe": STREAM,
    f"{API}/realtime/ws": STREAM,
    "/console/accounts": NAMES,
    "/console/accounts/deletions": NAMES,
    "/console/accounts/deletions/<uuid:account_id>/certificate": "of an account that is gone",
    "/console/accounts/new": "an empty form",
    "/console/accounts/options": NAMES,
    **dict.fromkeys(
        (
            "/console/collections/<uuid:collection_id>/explain",
            "/console/collections/<uuid:collection_id>/explain/records",
            "/console/collections/<uuid:collection_id>/explain/users",
            "/console/collections/<uuid:collection_id>/records",
            *("/console/records", "/console/settings", "/console/sso", "/console/usage"),
            *("/console/users/new", "/console/webhooks", "/console/workflows"),
        ),
        CHOICE,
    ),
    **dict.fromkeys(
        (
            *("/console/groups", "/console/groups/<uuid:group_id>", "/console/groups/new"),
            *("/console/groups/<uuid:group_id>/candidates", "/console/keys", "/console/keys/new"),
            *("/console/keys/<uuid:key_id>", "/console/keys/<uuid:key_id>/made"),
            *(
                "/console/team",
                "/console/team/left/<uuid:user_id>",
                "/console/team/invitations",
                "/console/team/invite",
                "/console/team/service-users/new",
            ),
            *("/console/team/second-factors", "/console/team/users/<uuid:user_id>"),
        ),
        OWN,
    ),
    "/console/operator-keys": "of the system account",
    "/console/operator-keys/new": "an empty form",
    "/console/outbox": "mails, in development only",
    "/console/outbox/<name>": "mails, in development only",
    "/console/profile": CALLER,
    "/console/profile/export": CALLER,
    "/console/profile/second-factors": CALLER,
    "/console/profile/second-factors/codes": CALLER,
    "/welcome/profile": CALLER,
    "/welcome/profile/export": CALLER,
    "/welcome/profile/second-factors": CALLER,
    "/welcome/profile/second-factors/codes": CALLER,
    "/console/settings/<uuid:account_id>/export/<uuid:export_id>/download": "only an admin may",
}
QUERIES = {
    f"{API}/records/<collection>/aggregate": "functions=count()&group_by=title",
    f"{API}/changes": "since=0",
    "/console/search": "search=strange",
}
TELLING = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-|@|://|-thing")
Ways = Iterator[tuple[str, Mapping[str, str], str]]


def known(app: Flask, cast: Cast) -> dict[str, Any]:
    """What acme has of everything, by the names of path parameters."""
    made, alice = furnished.furnish(app, cast), cast.alice

    def first(path: str) -> Any:
        return alice.get(path).json["items"][0]["id"]

    return {
        **made,
        "collection": "books",
        "collection_name": "books",
        "configuration_id": made["setting_id"],
        "hook_id": first("hooks"),
        "invitation": first("invitations"),
        "entry_id": str(first("account/audit-logs")),
        "resource_type": "User",
        "schema_id": "urn:ietf:params:scim:schemas:core:2.0:User",
    }


def texts_of(app: Flask, cast: Cast) -> dict[str, set[str]]:
    """Texts that only rows of acme, and only rows of globex have."""
    names = (cast.alice.account_id, cast.charlie.account_id)
    found: dict[str, set[str]] = {name: set() for name in (*names, "others")}
    with app.app_context(), tenancy.across_accounts():
        everything = sa.MetaData()
        everything.reflect(db.db.engine)
        for table in everything.tables.values():
            for row in db.connection().execute(sa.select(table)).mappings():
                owner = row.get("account_id")
                texts = {value for value in row.values() if isinstance(value, str)}
                found[owner if owner in names else "others"] |= texts
        accounts = set(db.connection().scalars(sa.text("SELECT id FROM accounts")))
    acme, globex = (
        {text for text in found[name] if 8 <= len(text) < 250 and TELLING.search(text)}
        for name in names
    )
    shared = found["others"] | accounts
    return {names[0]: acme - globex - shared, names[1]: globex - acme - shared}


def count_events(app: Flask, account_id: str, by: Caller) -> int:
    """How many events of a user the account's log has, sealed or not."""
    with app.app_context(), tenancy.across_accounts():
        queries = (
            sa.select(sa.func.count())
            .select_from(table)
            .where(table.c.account_id == account_id, table.c.user_id == by.id)
            for table in (PENDING, EVENTS)
        )
        return sum(db.connection().scalar(query) or 0 for query in queries)


def ways(rule: Rule, account_id: str) -> Ways:
    """The headers and queries by which a superadmin names the account."""
    yield "path", {}, ""
    if rule.rule.startswith(("/console", "/welcome")):
        yield "query", {}, f"account={account_id}"
    else:
        yield "header", {"X-Account-ID": "acme"}, ""
        yield "header by id", {"X-Account-ID": account_id}, ""
        yield "header for all", {"X-Account-ID": "*"}, ""
        yield "query for all", {}, "account_id=*"
    yield "query", {}, f"account_id={account_id}"


def is_for_callers(app: Flask, rule: Rule) -> bool:
    """Whether a route knows its caller: public ones answer the same to everybody."""
    level = access_of(app.view_functions[rule.endpoint]).level
    return level not in (AccessLevel.PUBLIC, AccessLevel.DIRECTORY)


@pytest.mark.one_database
def test_operator_reads_on_every_route_are_recorded(app: Flask, cast: Cast) -> None:
    values, root = known(app, cast), cast.root
    client, texts = Browser(app, root).client, texts_of(app, cast)
    unrecorded, unlisted = set[str](), []
    rules = [rule for rule in app.url_map.iter_rules() if "GET" in (rule.methods or ())]
    for rule in sorted(rules, key=lambda rule: rule.rule):
        if SHOWS_NONE.get(rule.rule) == STREAM or not is_for_callers(app, rule):
            continue
        if "portal_id" in rule.arguments:  # of the portal's admin, whoever opened it
            continue
        names = dict.fromkeys(rule.arguments)
        if "/mail-templates/" in rule.rule:
            names["kind"] = "mail_kind"
        parts = {name: values.get(other or name, "x") for name, other in names.items()}
        _, path = rule.build(parts) or ("", "")
        is_recorded = False
        for way, headers, query in ways(rule, cast.alice.account_id):
            query = "&".join(filter(None, (QUERIES.get(rule.rule, ""), query)))
            before = {id: count_events(app, id, root) for id in texts}
            if rule.rule.startswith(("/console", "/welcome")):
                answer = client.get(f"{path}?{query}")
            else:
                answer = root.get(path, headers=headers, query_string=query)
            body = answer.get_data().decode(errors="replace")
            for id, own in texts.items():
                has_event = count_events(app, id, root) > before[id]
                is_recorded |= has_event and way != "query"
                if answer.status_code < 300 and not has_event and any(t in body for t in own):
                    unrecorded.add((rule.rule, way, id))
        if not is_recorded and rule.rule not in SHOWS_NONE:
            unlisted.append(rule.rule)
    assert {one for one in unrecorded if "/outbox" not in one[0]} == set()
    assert unlisted == []


@pytest.mark.one_database
def test_operator_key_reads_on_every_route_are_recorded(app: Flask, cast: Cast) -> None:
    values, texts = known(app, cast), texts_of(app, cast)
    made = cast.root.post("api-keys", {"name": "all", "scopes": list(OPERATOR_SCOPES)})
    unrecorded, opened = set[str](), set[str]()
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: rule.rule):
        access = access_of(app.view_functions[rule.endpoint])
        if "GET" not in (rule.methods or ()) or access.operator_scope("GET") is None:
            continue
        _, path = rule.build({name: values.get(name, "x") for name in rule.arguments}) or ("", "")
        for reference in ("acme", cast.alice.account_id):
            headers = {"X-API-Key": made.json["key"], "X-Account-ID": reference}
            before = {id: count_events(app, id, cast.root) for id in texts}
            query = QUERIES.get(rule.rule, "")
            answer = Caller(app).get(path, headers=headers, query_string=query)
            body = answer.get_data().decode(errors="replace")
            assert "scope_denied" not in body, rule.rule
            for id, own in texts.items():
                has_event = count_events(app, id, cast.root) > before[id]
                if answer.status_code < 300 and any(text in body for text in own):
                    opened.add(rule.rule)
                    unrecorded |= set() if has_event else {rule.rule}
    assert unrecorded == set()
    assert len(opened) > 20


OWNS = "created_by = @request.auth.id"


def looks(caller: Caller) -> list[str]:
    """The routes of superadmins' requests in the log of a caller's account."""
    return [event["details"]["route"] for event in events(caller, kind="operator.request")]


@pytest.mark.parametrize("way", ["a record", "a user", "a difference"])
def test_operator_rules_explain_is_recorded_as_read(cast: Cast, way: str) -> None:
    builders.make_collection(cast.root, **{**builders.OPEN, "view_rule": OWNS})
    record = builders.make_record(cast.alice, title="hers")
    about, asked = "collections/posts/rules/explain", {"operation": "view"}
    if way == "a record":
        asked |= {"record_id": record["id"]}
    elif way == "a user":
        asked |= {"user_id": cast.bob.id}
    else:
        about, asked = "collections/posts/rules/diff", {"rules": {"view_rule": "title = 'x'"}}
    assert cast.root.post(about, asked).status_code == 200
    route = f"{API}/{about}".replace("posts", "<collection_name>")
    assert looks(cast.alice) == [route]
    assert looks(cast.charlie) == []


def test_operator_user_list_across_accounts_is_recorded_in_one_statement(
    app: Flask, cast: Cast
) -> None:
    for number in range(30):
        id = builders.make_account(app, f"tenant-{number}")
        builders.make_user(app, id, f"one@tenant-{number}.example")
    with statements(app) as sent:
        shown = cast.root.get("users?limit=100").json["items"]
    assert len({user["account_id"] for user in shown}) == 33
    assert len([text for text in sent if "INTO security_pending" in text]) == 1
    assert looks(cast.alice) == looks(cast.charlie) == [f"{API}/users"]


def test_operator_request_has_one_event_per_account(cast: Cast) -> None:
    builders.make_collection(cast.root)
    builders.make_record(cast.alice, title="hers")
    cast.root.get(f"records/posts?account_id={cast.alice.account_id}&fields=title")
    cast.root.acting_in("*").get("records/posts?filter=title='hers'")
    path = f"audit-logs/export?account_id={cast.alice.account_id}"
    cast.root.acting_in("acme").get(path).get_data()
    by_root = events(cast.alice, user_id=cast.root.id)
    assert [event["kind"] for event in by_root].count("operator.records_read") == 1
    assert looks(cast.alice) == [f"{API}/records/<collection>", f"{API}/audit-logs/export"]
    assert looks(cast.charlie) == []


def test_operator_query_naming_account_without_rows_is_recorded(cast: Cast) -> None:
    for reference in ("acme", cast.alice.account_id, "nobody", "*"):
        path = f"users?account_id={reference}&search=nobody-at-all"
        assert cast.root.get(path).status_code in (200, 400, 404)
    assert set(looks(cast.alice)) == {f"{API}/users"}
    assert looks(cast.charlie) == []


def test_operator_read_that_cannot_be_recorded_is_500(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError("no room")

    app.config["PROPAGATE_EXCEPTIONS"] = False
    monkeypatch.setattr("app.audit.security_log.reads.record", fail)
    for headers in ({}, {"X-Account-ID": "*"}, {"X-Account-ID": "acme"}):
        answer = cast.root.get("users", headers=headers)
        assert answer.status_code == 500
        assert "acme.example" not in answer.text


def test_operator_export_of_all_chains_is_recorded_while_streaming(app: Flask, cast: Cast) -> None:
    answer = cast.root.get("audit-logs/export?format=jsonl", buffered=False)
    pieces = answer.iter_encoded()
    assert next(pieces)
    answer.close()
    assert looks(cast.alice) == looks(cast.charlie) == [f"{API}/audit-logs/export"]
