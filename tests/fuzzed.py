"""Whom requests that are made up come from, and what there is that they can meet."""

from __future__ import annotations

from typing import Any

from flask import Flask

from app.accounts.models import EDITOR
from tests import builders
from tests.builders import PASSWORD, Caller, Cast
from tests.console import furnished
from tests.sso import saml_idp
from tests.workflows import running

# Lists of ids, by the names that parameters and properties have for these.
OF_ACME = {
    "user_id": "account/users",
    "group_id": "groups",
    "key_id": "api-keys",
    "webhook_id": "webhooks",
    "workflow_id": "workflows",
    "instance_id": "workflow-instances",
    "hook_id": "hooks",
    "configuration_id": "admin/configuration",
    "session_id": "auth/sessions",
}
OF_ALL = {
    "collection_id": "collections",
    "account_id": "accounts",
    "role_id": "roles",
    "entry_id": "audit-logs",
    "audit_id": "audit-logs?table_name=col_books&operation=UPDATE",
}
# Names of what `furnish` makes one of.
FURNISHED = (
    *("domain_id", "explain_id", "export_id", "file_id"),
    *("language", "scim_token_id", "setup_link_id"),
)
CLIENT = "https://client.example/signed-in"
# Words that mean something; whatever else a request needs is made up.
WORDS: dict[str, list[Any]] = {
    "account": ["acme"],
    "account_slug": ["fresh"],
    "slug": ["fresh"],
    "name": ["fresh"],
    "collection": ["books", "posts", "signed", "shelf", "sums"],
    "collection_name": ["books", "posts", "signed", "shelf", "sums"],
    "category": ["auth_providers", "saml_providers"],
    "provider": ["google", "okta"],
    "provider_name": ["google", "okta"],
    "redirect_uri": [CLIENT],
    "email": ["alice@acme.example", "new@acme.example", "another@new.example"],
    "password": [PASSWORD],
    "current_password": [PASSWORD],
    "new_password": [f"{PASSWORD}2"],
    "filter": ['title ~ "a%"', "pages > 1"],
    "functions": ["count()", "count(),sum(pages)"],
    "group_by": ["kind", "before.title"],
    "sort": ["title", "-pages", "before.title", "-price"],
    "search": ["poems", 'hous* -"white whale"'],
    "fields": ["title"],
    "expand": ["before", "books_via_before"],
    "template_name": ["small"],
    "X-Account-ID": ["acme", "globex", "none", "*"],
    "X-ES-Username": ["alice@acme.example"],
    "X-ES-Password": [PASSWORD],
    "X-ES-Reason": ["Why not"],
    "Idempotency-Key": ["once"],
}


def callers(app: Flask, cast: Cast) -> dict[str, dict[str, str]]:
    """Every kind of caller, by what it sends along."""
    alice, root = cast.alice, cast.root
    editor = builders.make_user(app, alice.account_id, "ed@acme.example", EDITOR)
    scopes = {"collections": ["books", "posts"], "operations": ["list", "create"]}
    return {
        "nobody": {},
        "nobody in acme": {"X-Account-ID": "acme"},
        "a bad credential": {"Authorization": "Bearer x.y.z"},
        "a viewer": cast.bob.headers,
        "an editor": Caller(app, editor).headers,
        "an admin": alice.headers,
        "an admin of another account": cast.charlie.headers,
        "an API key": {"Authorization": f"Bearer {_key(alice)}"},
        "a scoped API key": {"X-API-Key": _key(alice, scopes=scopes)},
        "a superadmin": root.headers,
        "a superadmin in acme": root.acting_in("acme").headers,
        "a superadmin everywhere": root.acting_in("*").headers,
    }


def known(app: Flask, cast: Cast) -> dict[str, list[Any]]:
    """Furnish acme; what it has of everything, by the names that requests have for it."""
    made, alice = furnished.furnish(app, cast), cast.alice
    secrets = _more(app, cast, made)
    found = {name: _ids(alice, path) for name, path in OF_ACME.items()}
    found |= {name: _ids(cast.root, path) for name, path in OF_ALL.items()}
    records = [id for name in ("books", "posts") for id in _ids(alice, f"records/{name}")]
    for name in ("webhook_id", "delivery_id"):
        found[name] = [*found.get(name, [made[name]]), made[f"operator_{name}"]]
    return {
        **WORDS,
        **found,
        **secrets,
        "record_id": records,
        "ids": [records[:1], records],
        "records": [[{"title": "one"}], [{"id": records[0], "data": {"title": "two"}}]],
        "kind": [made["mail_kind"]],
        **{name: [made[name]] for name in FURNISHED},
        "invitation": [*_ids(alice, "invitations"), made["token"]],
    }


def _more(app: Flask, cast: Cast, made: dict[str, str]) -> dict[str, list[Any]]:
    alice, root = cast.alice, cast.root
    builders.make_collection(root, "signed", options={"require_signature": True})
    root.post("roles", {"name": "extra"})
    alice.post(f"groups/{made['group_id']}/users", {"user_id": cast.bob.id})
    google = {**furnished.PROVIDER["config"], "allowed_redirect_uris": [CLIENT]}
    alice.patch(f"admin/configuration/{made['setting_id']}", {"config": google})
    okta = {"provider_name": "okta", "config": saml_idp.config(allowed_redirect_uris=[CLIENT])}
    alice.post("admin/configuration", {"category": "saml_providers", **okta})
    hooked = running.make_workflow(alice, [running.create("one")], {"type": "webhook"})
    Caller(app).post(f"workflow-webhooks/{hooked['trigger']['token']}", {})
    link = alice.post(f"files/{made['file_id']}/link", {}).json["url"]
    signing_in = {"account": "acme", "email": alice.email, "password": PASSWORD}
    session = Caller(app).post("auth/login", signing_in).json
    return {
        "token": [
            *(made[f"{name}_token"] for name in ("reset", "undo", "keep", "magic")),
            hooked["trigger"]["token"],
            link.rpartition("/")[2],
        ],
        "refresh_token": [session["refresh_token"]],
    }


def _key(owner: Caller, **scopes: Any) -> str:
    return str(owner.post("api-keys", {"name": "key", **scopes}).json["key"])


def _ids(caller: Caller, path: str) -> list[Any]:
    answer = caller.get(path)
    assert answer.status_code == 200, (path, answer.json)
    found = [item["id"] for item in answer.json["items"]]
    assert found, path
    return found
