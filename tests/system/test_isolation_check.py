"""`bin/atrium isolation-check` passes on an instance as it is, and finds what is made to leak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.accounts import groups
from app.accounts.models import Account, Group
from app.accounts.usage import request_counter
from app.auth import api_keys
from app.auth import principal as principals
from app.auth.guard import authorize, request_context
from app.collections import columns, definitions
from app.collections.definitions import get_all
from app.console.shell import guard, scopes
from app.context import tenancy
from app.errors import NotFound
from app.isolation import filling, tenants
from app.records import store
from app.records.read import views
from app.records.store import reads
from app.web.access import ViewAccess, signed_in
from app.webhooks import service as webhooks
from app.workflows import instances
from tests.builders import OPEN, Cast, make_collection

EVERY_TYPE = [
    {
        "name": "title",
        "type": "text",
        "required": True,
        "unique": True,
        "options": {"search": True},
    },
    {"name": "number", "type": "sequence", "options": {"prefix": "P-", "digits": 4}},
    {"name": "writer", "type": "text", "default": {"expression": "@request.auth.id"}},
    {"name": "code", "type": "text", "options": {"pattern": "^[a-z]{3}-[0-9]{4}$"}},
    {"name": "kind", "type": "text", "options": {"choices": ["one", "other"]}},
    {"name": "price", "type": "number", "required": True},
    {"name": "open", "type": "boolean"},
    {"name": "at", "type": "datetime"},
    {"name": "day", "type": "date"},
    {"name": "mail", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "link", "type": "url"},
    {"name": "more", "type": "json"},
    {"name": "state", "type": "select", "options": {"choices": ["one", "other"]}},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["one", "other"]}},
    {"name": "amount", "type": "decimal", "options": {"precision": 38}},
    {"name": "labels", "type": "text_list"},
    {"name": "twice", "type": "computed", "expression": "price * 2", "return_type": "number"},
]


@pytest.fixture
def furnished(app: Flask, cast: Cast) -> Flask:
    """An instance with collections of every type of field, that refer to each other."""
    make_collection(cast.root, "posts", EVERY_TYPE, options={"trash": {"days": 30}})
    referring = [
        {"name": "post", "type": "reference", "collection": "posts", "required": True},
        {"name": "owner", "type": "user", "on_delete": "restrict", "required": True},
        {"name": "readers", "type": "user", "multiple": True},
        {"name": "posts", "type": "reference", "collection": "posts", "multiple": True},
        {"name": "body", "type": "text"},
    ]
    make_collection(cast.root, "comments", referring)
    columns = {"fields": ["body", "post.title", "post.amount", "owner.name"], "view_rule": "true"}
    counted = {"group_by": ["post.title"], "aggregates": ["count()"], "where": "body IS NOT NULL"}
    for name, parts in (("remarks", columns), ("counts", counted)):
        view = {"name": name, "type": "view", "from": "comments", "list_rule": "true", **parts}
        made = cast.root.post("collections", view)
        assert made.status_code == 201, made.json
    make_collection(cast.root, "papers", [{"name": "scan", "type": "file"}])
    members = [{"name": name, "type": "text"} for name in ("person", "level", "project")]
    members += [{"name": "user", "type": "user"}]
    make_collection(cast.root, "members", members)
    member = 'level = "editor" && project = @record.project && person = @request.auth.id'
    fragments = {"member": f"@any(members, {member})"}
    assert cast.root.put("rules/fragments", fragments).status_code == 200
    projects = [
        {"name": "project", "type": "text"},
        {"name": "budget", "type": "number", "readable_if": "@has_role(editor)"},
    ]
    make_collection(cast.root, "projects", projects, **dict.fromkeys(OPEN, "@rule(member)"))
    return app


@pytest.mark.both_databases
def test_isolation_check_finds_no_leak_and_leaves_no_data(furnished: Flask) -> None:
    kept = remaining(furnished)
    result = furnished.test_cli_runner().invoke(args=["isolation-check"])
    last = result.output.splitlines()[-1]
    assert result.exit_code == 0, result.output
    assert last.endswith("5 collections: 0 leaks, 0 not covered")
    assert int(last.split()[0]) > 300
    assert remaining(furnished) == kept


def test_isolation_check_works_without_collections(app: Flask, cast: Cast) -> None:
    only = "/(console|api/v1)/(records|groups|collections)"
    result = app.test_cli_runner().invoke(args=["isolation-check", "--only", only])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].endswith("0 collections: 0 leaks, 0 not covered")


def remaining(app: Flask) -> dict[str, int]:
    """How many rows each table has, but for those of the audit log."""
    with app.app_context():
        request_counter.current().collect_all()
        tables = [*filling.tenant_tables(), Account.__table__, *(d.table for d in get_all())]
        counted = {t.name: sa.select(sa.func.count()).select_from(t) for t in tables}
        kept = counted.keys() - filling.kept_tables()
        return {name: db.connection().scalar(counted[name]) for name in kept}


def nothing(*given: Any, **named: Any) -> list[Any]:
    return []


def list_all(patch: pytest.MonkeyPatch, app: Flask) -> None:
    real = reads.read_page

    def page(selection: reads.Selection, *rest: Any, cacheable: bool) -> Any:
        everywhere = replace(selection.access.caller, account=None)
        access = replace(selection.access, condition=None, caller=everywhere)
        return real(replace(selection, access=access, conditions=()), *rest)

    patch.setattr(reads, "read_page", page)


def count_all(patch: pytest.MonkeyPatch, app: Flask) -> None:
    real = reads.read_page

    def page(selection: reads.Selection, *rest: Any, **options: Any) -> Any:
        every = sa.select(sa.func.count()).select_from(selection.definition.table)
        return real(selection, *rest, **options)[0], db.connection().scalar(every)

    patch.setattr(reads, "read_page", page)


def expand_all(patch: pytest.MonkeyPatch, app: Flask) -> None:
    real = views.add_expanded

    def add(tree: Any, shown: Any, *rest: Any) -> None:
        real(tree, shown, *rest)
        for name in tree:
            table = definitions.get("posts").table
            shown[0].view[name] = db.connection().scalars(sa.select(table.c.title)).all()

    patch.setattr(views, "add_expanded", add)


def ask_all(patch: pytest.MonkeyPatch, app: Flask) -> None:
    real = columns.TableColumns.related

    def related(self: columns.TableColumns, collection: str) -> Any:
        found = real(self, collection)
        return found._replace(conditions=found.conditions[1:], apart=(sa.true(), []))

    patch.setattr(columns.TableColumns, "related", related)


def open_the_audit_log(patch: pytest.MonkeyPatch, app: Flask) -> None:
    rule = next(one for one in app.url_map.iter_rules() if one.rule == "/api/v1/audit-logs")
    opened, real = app.view_functions[rule.endpoint], authorize.access_of

    def access_of(view: Any) -> ViewAccess:
        return signed_in if view is opened else real(view)

    patch.setattr(authorize, "access_of", access_of)


def tell_what_is_anothers(patch: pytest.MonkeyPatch, app: Flask) -> None:
    real = groups.get

    def get(account_id: str, group_id: str) -> Any:
        try:
            return real(account_id, group_id)
        except NotFound as error:
            chosen = sa.select(Group.id).where(Group.id == group_id)
            if db.connection().scalar(chosen):
                raise NotFound("This group is another account's.") from error
            raise

    patch.setattr(groups, "get", get)


def any_place(patch: pytest.MonkeyPatch, app: Flask) -> None:
    def found(account_id: str) -> Any:
        account = principals.find_active_account(account_id)
        if account is None:
            raise NotFound
        return scopes.AccountScope(account, replace(guard.require_caller(), account=account))

    patch.setattr(scopes, "account_scope", found)


def without(module: Any, name: str) -> Any:
    """What makes the conditions of a module let everything through."""
    return lambda patch, app: patch.setattr(module, name, nothing)


RECORDS = "/api/v1/records/<collection>"
PLANTED = {
    "a record": (without(store, "scope"), f"{RECORDS}/<record_id>$", "leaks"),
    "a list": (list_all, f"{RECORDS}$", "leaks"),
    "a total": (count_all, f"{RECORDS}$", "changes when"),
    "a sum": (without(store, "scope"), f"{RECORDS}/aggregate", "leaks"),
    "a planted membership": (ask_all, f"{RECORDS}$", "changes when"),
    "an @any of a filter": (ask_all, f"{RECORDS}/aggregate", "changes when"),
    "an export": (without(store, "scope"), f"{RECORDS}/export", "leaks"),
    "an expanded reference": (expand_all, f"{RECORDS}$", "leaks"),
    "the audit log": (open_the_audit_log, "/api/v1/audit-logs$", "leaks"),
    "webhooks": (without(webhooks, "_visible"), "/api/v1/webhooks$", "leaks"),
    "an instance": (without(instances, "_visible"), "/api/v1/workflow-instances/<", "leaks"),
    "a page": (any_place, "/console/webhooks/<uuid:account_id>$", "leaks"),
    "another 404": (tell_what_is_anothers, "/api/v1/groups/<uuid:group_id>$", "differs from"),
    "a write": (without(api_keys, "_visible"), "/api/v1/api-keys/.*/revoke", "api_keys changed"),
}


@pytest.mark.not_on_citus(
    "Citus refuses some statements that lack their account, before anything leaks"
)
@pytest.mark.parametrize("leak", PLANTED)
def test_isolation_check_finds_intentional_leak(
    furnished: Flask, monkeypatch: pytest.MonkeyPatch, leak: str
) -> None:
    plant, only, told = PLANTED[leak]
    # PostgreSQL's own lock would hide what the application lets through.
    monkeypatch.setattr(request_context, "_tenancy", lambda context: tenancy.ALL_ACCOUNTS)
    plant(monkeypatch, furnished)
    result = furnished.test_cli_runner().invoke(args=["isolation-check", "--only", only])
    leaks = [line for line in result.output.splitlines() if line.startswith("leak ")]
    assert result.exit_code == 1, result.output
    assert any(told in line for line in leaks), result.output


def test_isolation_check_with_pattern_of_no_route_fails(furnished: Flask) -> None:
    for only, code, told in [
        ("/nowhere", 1, "Error: No route matches /nowhere."),
        ("[", 2, "[ is not a regular expression: unterminated character set"),
    ]:
        result = furnished.test_cli_runner().invoke(args=["isolation-check", "--only", only])
        assert isinstance(result.exception, SystemExit)
        assert (result.exit_code, told in result.output) == (code, True)


def test_isolation_check_reports_uncovered_route(
    furnished: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = ["isolation-check", "--only", "/api/v1/groups/<uuid:group_id>$"]
    assert furnished.test_cli_runner().invoke(args=only).exit_code == 0
    monkeypatch.delitem(tenants.table_by_parameter(), "group_id")
    result = furnished.test_cli_runner().invoke(args=only)
    assert result.exit_code == 1
    assert "unknown path parameter <group_id>" in result.output
