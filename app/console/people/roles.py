"""The roles of all accounts, for superadmins, and the rules that name them.

A role gives no access by itself, apart from the console: what it may do with records is in the
rules of collections. So the built-in descriptions say whom a role is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import roles, users
from app.accounts.models import ADMIN, SYSTEM_ACCOUNT_ID, Role
from app.collections import definitions
from app.collections.definitions import Definition
from app.console.shell import forms, lists
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.names import OPERATION_NAMES
from app.console.shell.navigation import INSTANCE, MenuItem
from app.rules import OPERATIONS
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext

ABOUT_ROLES = re.compile(r"@(?:has_role|has_any_role|request\.auth\.role)\b")

SEEDED: Mapping[str, object] = {
    "Runs the account.": lazy_gettext(
        "For those who manage the account: its people, settings and integrations."
    ),
    "Works with the account's records.": lazy_gettext(
        "For those who change records, where rules let them."
    ),
    "Reads the account's records.": lazy_gettext(
        "For those who only read records, where rules say so."
    ),
}

MAX_NAMING = 50  # collections that the page of a role lists
ROLE = "/console/roles/<integer:role_id>"


@page(
    "/console/roles", role=SUPERADMIN, menu=MenuItem(INSTANCE, 3, lazy_gettext("Roles"), "shield")
)
def show_roles() -> str:
    listing = lists.from_request("console.show_roles")
    listing.with_page(roles.page(listing.skip, lists.PAGE_SIZE))
    return render_template(
        "console/roles/list.html",
        listing=listing,
        counts=user_counts(listing.items),
        rule_counts=rule_counts(listing.items),
        built_in=roles.BUILT_IN,
        description_of=description,
    )


@page("/console/roles/new", role=SUPERADMIN)
def show_new_role(form: Form | None = None) -> Page:
    return (form or Form()).render("console/roles/form.html", role=None)


@page("/console/roles/new", "POST", role=SUPERADMIN, form_page=show_new_role)
def create_role() -> BaseResponse:
    form = forms.submitted("name", "description", "console")
    body = form.validated(("name",), name=100, description=1000)
    console = bool(form["console"])
    role = roles.create(body["name"], body["description"] or None, console=console)
    notice = gettext("The role %(name)s is created.", name=role.name)
    return redirect_with_notice(notice, "console.show_roles")


@page(ROLE, role=SUPERADMIN)
def show_role(role_id: str, form: Form | None = None) -> Page:
    role, form = roles.get(int(role_id)), form or Form()
    shown = {"name": role.name, "description": description(role)}
    form.values = form.values or {**shown, "console": "true" if role.console else ""}
    naming = collections_naming(role)
    return form.render(
        "console/roles/form.html",
        role=role,
        seeded=role.name in roles.BUILT_IN,
        naming=naming[:MAX_NAMING],
        more=len(naming) - MAX_NAMING,
        users=user_counts([role])[role.id],
    )


@page(ROLE, "POST", role=SUPERADMIN, form_page=show_role)
def change_role(role_id: str) -> BaseResponse:
    form = forms.submitted("name", "description", "console")
    body = form.validated(("name",), name=100, description=1000)
    changes: JSONObject = {"name": body["name"], "description": body["description"] or None}
    if body["name"] != ADMIN:  # whose form does not ask
        changes["console"] = bool(form["console"])
    if body["description"] == description(roles.get(int(role_id))):
        del changes["description"]  # or a built-in text would stay in this page's language
    role = roles.change(int(role_id), changes)
    notice = gettext("The role %(name)s is saved.", name=role.name)
    return redirect_with_notice(notice, "console.show_roles")


@page(f"{ROLE}/delete", "POST", role=SUPERADMIN, form_page=show_role)
def delete_role(role_id: str) -> BaseResponse:
    """Delete a role without users."""
    with forms.ignore_already_deleted(SYSTEM_ACCOUNT_ID, "roles", str(int(role_id))):
        roles.delete(int(role_id))
    return redirect_with_notice(gettext("The role is deleted."), "console.show_roles")


def description(role: Role) -> str:
    text = role.description or ""
    return str(SEEDED.get(text, text))


@dataclass(frozen=True)
class NamingCollection:
    collection: Definition
    rules: dict[str, str]


def collections_naming(role: Role) -> list[NamingCollection]:
    found = (
        (one, dict(_rules_naming(one, role.name))) for one in definitions.get_all(with_views=True)
    )
    return [NamingCollection(collection, rules) for collection, rules in found if rules]


def user_counts(roles: Sequence[Role]) -> dict[int, str]:
    """The number of users of each role, such as `5+` if not all users were counted."""
    numbers, is_cut = users.count_by_role(lists.MAX_SCANNED)
    more = "+" if is_cut else ""
    return {role.id: lists.format_number(numbers.get(role.id, 0)) + more for role in roles}


def rule_counts(roles: Sequence[Role]) -> dict[int, int]:
    """The number of rules that name each role."""
    about_roles = [
        rule
        for collection in definitions.get_all(with_views=True)
        for operation in OPERATIONS
        if ABOUT_ROLES.search(rule := collection.rule(operation) or "")
    ]
    patterns = {role.id: _name_pattern(role.name) for role in roles}
    return {id: sum(map(bool, map(name.search, about_roles))) for id, name in patterns.items()}


def _rules_naming(collection: Definition, role: str) -> Iterator[tuple[str, str]]:
    name = _name_pattern(role)
    for operation in OPERATIONS:
        rule = collection.rule(operation) or ""
        if ABOUT_ROLES.search(rule) and name.search(rule):
            yield str(OPERATION_NAMES[operation]), rule


def _name_pattern(role: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(role)}(?![\w-])")
