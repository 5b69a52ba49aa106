"""Accounts as superadmins keep them, and as their own admins see them (contract section 2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from app import clock, db, events, slugs
from app.accounts import pii, sso_settings
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, AccountOrigin
from app.config import parsing
from app.errors import Conflict, InvalidValues, NotFound, problem

SORTABLE = {
    "name": Account.name,
    "slug": Account.slug,
    "account_code": Account.account_code,
    "created_at": Account.created_at,
}
# Printable, without what browsers and parsers read differently, and without a fragment.
URI = re.compile(r"https?://[!$-;=?-\[\]_a-z~]+")
FROM_OUTSIDE = "redirects_from_outside"
OWN_SETTINGS = (
    "allowed_redirect_uris",
    "default_redirect_uri",
    "cors_origins",
)


def page(asked: Mapping[str, Any]) -> tuple[list[Account], int]:
    """The accounts that match, and how many there are in all."""
    conditions: list[Any] = [Account.closed_at.is_(None)]
    if "is_active" in asked:
        conditions.append(Account.is_active == asked["is_active"])
    if asked.get("search"):
        found = (Account.name, Account.slug, Account.account_code)
        texts = [column.icontains(asked["search"], autoescape=True) for column in found]
        conditions.append(sa.or_(*texts))
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(Account).where(*conditions))
    column = SORTABLE[asked.get("sort_by", "created_at")]
    ordered = column.asc() if asked.get("sort_order") == "asc" else column.desc()
    chosen = sa.select(Account).where(*conditions).order_by(ordered, Account.id)
    return list(
        db.db.session.scalars(chosen.offset(asked["skip"]).limit(asked["limit"]))
    ), total or 0


def get(account_id: str) -> Account:
    """One account. Raises NotFound."""
    return _open(db.db.session.get(Account, account_id.lower()))


def _open(account: Account | None) -> Account:
    if account is None or account.closed_at is not None:
        raise NotFound("There is no such account.")
    return account


def _locked(account_id: str) -> Account:
    return _open(accounts.locked(account_id))


def create(name: str, slug: str | None) -> Account:
    """A new account without users. Raises InvalidValues or Conflict."""
    name = name.strip()
    slug = slug or slugs.slug_from(name)
    found = [accounts.label_problem(name)]
    if wrong := slugs.new_slug_problem(slug):
        found.append(problem("slug", "slug_invalid", wrong))
    _refuse(found)
    return accounts.create_account(name, slug, slug_field="slug")


def change(account_id: str, body: Mapping[str, Any]) -> Account:
    """Rename, suspend or resume an account; suspended, its users and keys are refused at once."""
    body = _trimmed(body)
    _refuse([_name_problem(body)])
    with db.transaction() as session:
        account = _locked(account_id)
        if account.id == SYSTEM_ACCOUNT_ID and body.get("is_active") is False:
            raise Conflict("The system account cannot be suspended.")
        for name, value in body.items():
            setattr(account, name, value)
        account.version += 1
        session.flush()
        return account


def change_own(account_id: str, body: Mapping[str, Any], *, by: str | None) -> Account:
    """Change an account's name and settings, as its own admins may. Raises InvalidValues."""
    body = _trimmed(body)
    wrong = [_name_problem(body)]
    wrong += [_uri_problem(*uri) for uri in _uris(body)]
    with db.transaction() as session:
        account = _locked(account_id)
        _refuse([*wrong, *sso_settings.problems(body, account.settings)])
        account.name = body.get("name", account.name)
        own = {name: body[name] for name in OWN_SETTINGS if name in body}
        outside = _redirects_from_outside(account, own, by)
        account.settings = sso_settings.saved(body, account.settings) | own | outside
        account.version += 1
        if "cors_origins" in body:
            _list_origins(account.id, body["cors_origins"])
        session.flush()
        return account


def _redirects_from_outside(
    account: Account, own: Mapping[str, Any], by: str | None
) -> dict[str, Any]:
    """Which addresses nobody of `pii_access` stands for: a member's code is not sent there."""
    before = _redirects(account.settings)
    sent, present = _redirects(own), _redirects({**account.settings, **own})
    outside = set(account.settings.get(FROM_OUTSIDE, ()))
    changed = outside - sent if pii.is_trusted(account.id, by) else outside | (present - before)
    return {FROM_OUTSIDE: sorted(changed & present)} if outside or changed else {}


def _redirects(settings: Mapping[str, Any]) -> set[str]:
    usual = settings.get("default_redirect_uri")
    return {*settings.get("allowed_redirect_uris", ()), *([usual] if usual else [])}


def _trimmed(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**body, "name": body["name"].strip()} if "name" in body else body


def _name_problem(body: Mapping[str, Any]) -> dict[str, object] | None:
    return accounts.label_problem(body["name"]) if "name" in body else None


def _list_origins(account_id: str, origins: Sequence[str]) -> None:
    connection = db.connection()
    connection.execute(sa.delete(AccountOrigin).where(AccountOrigin.account_id == account_id))
    rows = [{"account_id": account_id, "origin": origin} for origin in dict.fromkeys(origins)]
    if rows:
        connection.execute(sa.insert(AccountOrigin), rows)


def close(account_id: str) -> None:
    """Close an account at once; a job removes its data piece by piece."""
    with db.transaction() as session:
        account = _locked(account_id)
        if account.id == SYSTEM_ACCOUNT_ID:
            raise Conflict("The system account cannot be deleted.")
        account.is_active, account.closed_at = False, clock.now()
        # The slug is free again; the code stays the account's for ever.
        account.slug = f"closed-{account.id}"
        account.version += 1
        _list_origins(account.id, ())
        session.flush()
        events.publish(events.AccountClosed(account.id))


def _refuse(found: Sequence[Mapping[str, Any] | None]) -> None:
    wrong = [one for one in found if one]
    if wrong:
        raise InvalidValues(wrong)


def _uris(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    default = body.get("default_redirect_uri")
    named = [("default_redirect_uri", default)] if default is not None else []
    named += [("allowed_redirect_uris", uri) for uri in body.get("allowed_redirect_uris", ())]
    return named + [("cors_origins", origin) for origin in body.get("cors_origins", ())]


def _uri_problem(field: str, uri: str) -> dict[str, Any] | None:
    if is_address(uri) and (field != "cors_origins" or parsing.is_origin(uri)):
        return None
    return problem(field, "invalid_url", f"This is no address of that kind: {uri[:200]}")


def is_address(uri: str) -> bool:
    """Whether a text is an address that a browser may be sent to, which all read alike."""
    if not URI.fullmatch(uri):
        return False
    try:
        parts = urlsplit(uri)
        return bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        return False
