"""Exports the definitions of an instance as a manifest."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from app import db
from app.accounts.models import Account
from app.collections import fragments, schema, transfer
from app.errors import InvalidValues, problem
from app.manifest import rule_tests
from app.manifest.account_kinds import OF_ACCOUNT
from app.manifest.instance_kinds import ROLES, SINGLES
from app.types import JSONMapping, JSONObject

VERSION = 1


def manifest(slugs: Sequence[str] | None = None) -> JSONObject:
    """Return the manifest of this instance: what accounts share, and definitions of active ones.

    `slugs` chooses accounts; None stands for all. Raises InvalidValues for an unknown one.
    """
    query = sa.select(Account.id, Account.slug).where(Account.is_active).order_by(Account.slug)
    if slugs is not None:
        query = query.where(Account.slug.in_(slugs))
    slugs_by_id: dict[str, str] = {row.id: row.slug for row in db.db.session.execute(query)}
    unknown = set(slugs or ()) - set(slugs_by_id.values())
    if unknown:
        message = f"There is no active account with the slug {', '.join(sorted(unknown))[:200]}."
        raise InvalidValues([problem("accounts", "invalid_reference", message)])
    # For all accounts, list no ids: a statement has a limited number of parameters.
    account_ids = None if slugs is None else list(slugs_by_id)
    accounts: JSONObject = {slug: {} for slug in slugs_by_id.values()}
    for kind in OF_ACCOUNT:
        for row in kind.rows(account_ids):
            if row.account_id in slugs_by_id and (item := kind.export(row)):
                sections = accounts[slugs_by_id[row.account_id]]
                sections.setdefault(kind.section, []).append(item)
        for sections in accounts.values():
            if kind.section in sections:
                sections[kind.section] = kind.section_of(sections[kind.section])
    return {
        "version": VERSION,
        "roles": [ROLES.export(row) for row in ROLES.rows()],
        **_singles(),
        "fragments": dict(fragments.load()),
        "collections": collections(),
        "accounts": {slug: sections for slug, sections in accounts.items() if sections},
    }


def _singles() -> JSONObject:
    """Return what the instance has once: attributes and the directory."""
    result: JSONObject = {}
    for kind in SINGLES:
        *outer, last = kind.path
        section = result
        for name in outer:
            section = section.setdefault(name, {})
        section[last] = kind.export(kind.rows()[0])
    return result


def collections(names: Sequence[str] | None = None, *, with_tests: bool = True) -> list[JSONObject]:
    """Return collections as a manifest lists them, by name; None stands for all."""
    tests = rule_tests.stored() if with_tests else {}
    return [
        {
            **one,
            **({"schema": [compact(spec) for spec in one["schema"]]} if "schema" in one else {}),
            **({"tests": tests[one["name"]]} if one["name"] in tests else {}),
        }
        for one in map(_without_defaults, transfer.exported(names))
    ]


def _without_defaults(item: JSONMapping) -> JSONObject:
    """A collection without options that it has not, and parts of a view that are empty."""
    kept = ("name", "schema", "indexes", "rules")
    return {key: value for key, value in item.items() if value or key in kept}


def compact(spec: JSONMapping) -> JSONObject:
    """Return a field definition without the properties that have their defaults."""
    result = {}
    for name, value in spec.items():
        # A default may depend on the other properties.
        others = {key: other for key, other in spec.items() if key != name}
        if name in ("name", "type") or schema.complete(others).get(name) != value:
            result[name] = value
    return result
