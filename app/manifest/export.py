"""What a manifest says of an instance as it is."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from app import db
from app.accounts.models import Account
from app.collections import schema, transfer
from app.errors import InvalidValues, problem
from app.manifest.kinds import OF_ACCOUNT, ROLES
from app.types import JSONMapping, JSONObject

VERSION = 1


def manifest(slugs: Sequence[str] | None = None) -> JSONObject:
    """The roles, the collections, and the definitions of some active accounts, or of all.

    Raises InvalidValues for an unknown account.
    """
    return {
        "version": VERSION,
        "roles": [ROLES.export(row) for row in ROLES.rows()],
        "collections": collections(),
        "accounts": _accounts(slugs),
    }


def _accounts(slugs: Sequence[str] | None) -> JSONObject:
    query = sa.select(Account.id, Account.slug).where(Account.is_active).order_by(Account.slug)
    if slugs is not None:
        query = query.where(Account.slug.in_(slugs))
    slugs_by_id: dict[str, str] = {row.id: row.slug for row in db.db.session.execute(query)}
    unknown = {*(slugs or ())} - {*slugs_by_id.values()}
    if unknown:
        message = f"There is no active account with the slug {', '.join(sorted(unknown))[:200]}."
        raise InvalidValues([problem("accounts", "invalid_reference", message)])
    result: JSONObject = {slug: {} for slug in slugs_by_id.values()}
    for kind in OF_ACCOUNT:
        for row in kind.rows(None if slugs is None else [*slugs_by_id]):
            if row.account_id in slugs_by_id:
                items = result[slugs_by_id[row.account_id]].setdefault(kind.section, [])
                items.append(kind.export(row))
    return {slug: sections for slug, sections in result.items() if sections}


def collections(names: Sequence[str] | None = None) -> list[JSONObject]:
    """Some collections as a manifest lists them, or all, by name."""
    return [
        {
            "name": one["name"],
            "schema": [compact(spec) for spec in one["schema"]],
            "indexes": one["indexes"],
            "rules": one["rules"],
            **({"options": one["options"]} if one["options"] else {}),
        }
        for one in transfer.exported(names)
    ]


def compact(spec: JSONMapping) -> JSONObject:
    """A field definition without the properties that have their defaults."""
    return {
        name: value
        for name, value in spec.items()
        if name in ("name", "type") or _implied(spec, name) != value
    }


def _implied(spec: JSONMapping, name: str) -> object:
    others = {key: value for key, value in spec.items() if key != name}
    return schema.complete(others).get(name)
