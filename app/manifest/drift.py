"""What an instance has and a manifest does not name: applying the manifest leaves it as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import sqlalchemy as sa

from app import db
from app.accounts import roles
from app.accounts.models import PII_GROUP, Account
from app.collections import service as collections
from app.manifest import export
from app.manifest.account_kinds import OF_ACCOUNT
from app.manifest.instance_kinds import ROLES
from app.manifest.kind import Kind
from app.types import JSONMapping, JSONObject

BUILT_IN = {ROLES.name: roles.BUILT_IN, "group": {PII_GROUP}}
"""Items that are there always, so that a file need not name them."""
DEFAULTS = dict.fromkeys(collections.RULES) | dict.fromkeys(collections.LISTS, "*")


def find(content: JSONMapping, *, of_definitions: bool = False) -> list[JSONObject]:
    """Return what exists and the manifest does not name, of the instance and of its accounts.

    Accounts that the manifest does not name are left out: what is in them is their admins'. With
    `of_definitions` it is of collections, fragments and attributes alone.
    """
    named = content.get("accounts", {})
    active = sa.select(Account.slug).where(Account.slug.in_(named), Account.is_active)
    there = export.manifest(db.db.session.scalars(active).all())
    defined = [
        *_named("fragment", there["fragments"], content.get("fragments", {})),
        *_of_collections(there["collections"], content),
        *_of_attributes(there["attributes"], content.get("attributes", {})),
    ]
    if of_definitions:
        return defined
    found = [*_of_list(ROLES, there, content, None), *defined, *_of_instance(there, content)]
    renamed = {
        str(one["rename_from"]).lower(): one["name"]
        for one in content.get("collections", ())
        if one.get("rename_from")
    }
    for slug, sections in there["accounts"].items():
        for kind in OF_ACCOUNT:
            if kind.is_single:
                given = named[slug].get(kind.section, {})
                found += _values(kind.section, sections.get(kind.section, {}), given, slug)
            else:
                found += _of_list(kind, sections, named[slug], slug, renamed)
    return found


def _of_list(
    kind: Kind,
    there: JSONMapping,
    given: JSONMapping,
    account: str | None,
    renamed: Mapping[str, str] = {},
) -> Iterator[JSONObject]:
    """The items of a kind that are not listed, also as what another one is renamed from."""
    listed = Counter[tuple[str, ...]]()
    for _, item in kind.entries(given[kind.section]) if kind.section in given else ():
        listed[kind.key(item)] += 1
        if item.get("rename_from"):
            listed[(item["rename_from"],)] += 1
    for _, item in kind.entries(there[kind.section]) if kind.section in there else ():
        if new := renamed.get(str(item.get("collection")).lower()):
            item = {**item, "collection": new}
        key = kind.key(item)
        if listed[key]:
            listed[key] -= 1
        elif key[0] not in BUILT_IN.get(kind.name, ()):
            yield _entry(kind.name, " ".join(key), account)


def _named(kind: str, there: JSONMapping, given: JSONMapping) -> Iterator[JSONObject]:
    """The entries of a mapping by name that are not in another one."""
    former = {one.get("rename_from") for one in given.values() if isinstance(one, Mapping)}
    yield from (_entry(kind, name) for name in there if name not in {*given, *former})


def _of_collections(there: list[JSONObject], content: JSONMapping) -> Iterator[JSONObject]:
    listed = {one["name"].lower(): one for one in content.get("collections", ())}
    listed |= {
        str(one["rename_from"]).lower(): one
        for one in content.get("collections", ())
        if one.get("rename_from")
    }
    for collection in there:
        name, item = collection["name"], listed.get(collection["name"].lower())
        if item is None:
            yield _entry("collection", name)
        elif not item.get("removed"):
            schema, indexes = collection.get("schema", ()), collection.get("indexes", ())
            yield from _of_fields("field", f"{name}.", schema, item, "schema")
            for spec in indexes if "indexes" not in item else ():
                yield _entry("index", f"{name} {' '.join(spec['fields'])}")
            rules = {n: one for n, one in collection["rules"].items() if one != DEFAULTS[n]}
            yield from _values("rule", rules, item.get("rules", {}), None, f"{name}.")
            options = {n: one for n, one in collection.get("options", {}).items() if one}
            yield from _values("option", options, item.get("options", {}), None, f"{name}.")
            if "tests" in collection and "tests" not in item:
                yield _entry("tests", name)


def _of_fields(
    kind: str, start: str, there: Sequence[JSONObject], item: JSONMapping, part: str
) -> Iterator[JSONObject]:
    """The fields, or attributes, that are neither listed, nor renamed, nor removed."""
    listed = {
        one[key] for one in item.get(part, ()) for key in ("name", "rename_from") if key in one
    }
    listed |= {*item.get("remove_fields", ())}
    yield from (_entry(kind, start + one["name"]) for one in there if one["name"] not in listed)


def _of_attributes(there: JSONMapping, given: JSONMapping) -> Iterator[JSONObject]:
    for of, attributes in there.items():
        fields = attributes["fields"]
        yield from _of_fields("attribute", f"{of}.", fields, given.get(of, {}), "fields")


def _of_instance(there: JSONMapping, content: JSONMapping) -> Iterator[JSONObject]:
    """What the instance has once: directory, product, plans, templates, texts."""
    for section in ("directory", "product"):
        yield from _values(section, there[section], content.get(section, {}), None)
    plans, given = there["plans"], content.get("plans", {})
    yield from _named("plan", plans, given)
    for name in plans.keys() & given.keys():
        if not given[name].get("removed"):
            yield from _values("plan", plans[name], given[name], None, f"{name}.")
    templates = content.get("account_templates", {})
    yield from _named("account_template", there["account_templates"], templates)
    for kind, texts in there["mail_templates"].items():
        yield from _values(
            "mail_template",
            texts,
            content.get("mail_templates", {}).get(kind, {}),
            None,
            f"{kind} ",
        )


def _values(
    kind: str, there: JSONMapping, given: JSONMapping, account: str | None, start: str = ""
) -> Iterator[JSONObject]:
    """The values that are set and not given; of mappings such as links, each one."""
    for name, value in there.items():
        if name == "links" and isinstance(value, Mapping):
            yield from _values(kind, value, given.get(name) or {}, account, f"{start}{name}.")
        elif name not in given and value:
            yield _entry(kind, start + name, account)


def _entry(kind: str, name: str, account: str | None = None) -> JSONObject:
    return {"kind": kind, "account": account, "name": name}
