"""Managing accounts: by superadmins, and by the admins of each account."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import sqlalchemy as sa

from app import clock, config, db, events, slugs
from app.accounts import attributes, pii, sign_in_settings, sso_settings
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, AccountOrigin
from app.accounts.plans import service as plans
from app.accounts.plans import stored as stored_plans
from app.accounts.sso_settings import Settings
from app.accounts.types import Body, Condition, Problem, Query
from app.config import parsing
from app.db import filters
from app.errors import Conflict, InvalidValues, NotFound, problem

SORTABLE = {
    "name": Account.name,
    "slug": Account.slug,
    "account_code": Account.account_code,
    "created_at": Account.created_at,
}
# Printable, no fragment, and no characters that browsers and parsers read differently.
URI = re.compile(r"https?://[!$-;=?-\[\]_a-z~]+")
EMPTY: Body = {}
TERMS = frozenset({"plan", "overrides"})
UNTRUSTED_REDIRECTS = "redirects_from_outside"
OWN_SETTINGS = (
    "allowed_redirect_uris",
    "default_redirect_uri",
    "cors_origins",
    "mail_from",
    "frame_ancestors",
)


def page(query: Query) -> tuple[list[Account], int]:
    """One page of the accounts that match, and the total."""
    conditions: list[Condition] = [Account.closed_at.is_(None)]
    if "is_active" in query:
        conditions.append(Account.is_active == query["is_active"])
    if query.get("search"):
        columns = (Account.name, Account.slug, Account.account_code)
        matches = [filters.has_text(column, query["search"]) for column in columns]
        conditions.append(sa.or_(*matches))
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(Account).where(*conditions))
    column = SORTABLE[query.get("sort_by", "created_at")]
    ordered = column.asc() if query.get("sort_order") == "asc" else column.desc()
    statement = sa.select(Account).where(*conditions).order_by(ordered, Account.id)
    return list(
        db.db.session.scalars(statement.offset(query["skip"]).limit(query["limit"]))
    ), total or 0


def names_by_slug(limit: int) -> dict[str, str]:
    """The names of at most `limit` open accounts, by slug."""
    shown = sa.select(Account.slug, Account.name).where(Account.closed_at.is_(None))
    rows = db.db.session.execute(shown.order_by(Account.slug).limit(limit))
    return {row.slug: row.name for row in rows}


def get(account_id: str) -> Account:
    """The account with this id, unless it is closed. Raises NotFound."""
    return _open(db.db.session.get(Account, account_id.lower()))


def _open(account: Account | None) -> Account:
    if account is None or account.closed_at is not None:
        raise NotFound("There is no such account.")
    return account


def get_for_update(account_id: str) -> Account:
    """The account as stored now, locked until the transaction ends. Raises NotFound if closed."""
    return _open(accounts.get_for_update(account_id))


def create(
    name: str, slug: str | None, values: Body = EMPTY, template: str | None = None
) -> Account:
    """Create an account without users, by a template. Raises InvalidValues or Conflict.

    The slug is derived from the name, else it is the account's code.
    """
    name = name.strip()
    slug = slug or slugs.slug_from(name)
    problems = [accounts.label_problem(name)]
    if slug and (wrong := slugs.new_slug_problem(slug)):
        problems.append(problem("slug", "slug_invalid", wrong))
    _refuse(problems)
    with db.transaction():
        account = accounts.create_account(name, slug, slug_field="slug", template=template)
        account.attributes = attributes.merged(account.attributes, values)
        return account


def change(account_id: str, body: Body) -> Account:
    """Rename, suspend or resume an account, or give it a plan and overrides.

    It takes effect with the next request of its users and API keys. Raises InvalidValues.
    """
    if "name" in body:
        body = {**body, "name": body["name"].strip()}
        _refuse([accounts.label_problem(body["name"])])
    with db.transaction() as session:
        # Before the account: a change of plans locks them in this order, too.
        _refuse(
            plans.problems_of(body, stored_plans.load(lock=True)) if TERMS & body.keys() else ()
        )
        account = get_for_update(account_id)
        if TERMS & body.keys():
            plans.assign(account, body)
            body = {name: value for name, value in body.items() if name not in TERMS}
        if account.id == SYSTEM_ACCOUNT_ID and body.get("is_active") is False:
            raise Conflict("The system account cannot be suspended.")
        if "attributes" in body:
            merged = attributes.merged(account.attributes, body["attributes"])
            body = {**body, "attributes": merged}
        for name, value in body.items():
            setattr(account, name, value)
        account.version += 1
        session.flush()
        return account


def change_own(account_id: str, body: Settings, *, by: str | None) -> Account:
    """Change the name and settings that an account's own admins may change.

    Raises InvalidValues.
    """
    name = body["name"].strip() if "name" in body else None
    problems = _own_problems(body)
    with db.transaction() as session:
        account = get_for_update(account_id)
        problems += sso_settings.problems(body, account.settings)
        _refuse([*problems, *sign_in_settings.problems(body)])
        account.name = account.name if name is None else name
        account.attributes = attributes.merged(account.attributes, body.get("attributes", EMPTY))
        own = {name: body[name] for name in OWN_SETTINGS if name in body}
        untrusted = _untrusted_redirects(account, own, by)
        sign_in = sign_in_settings.merge(body, account.settings)
        account.settings = sso_settings.merge(body, account.settings) | sign_in | own | untrusted
        account.version += 1
        if "cors_origins" in body:
            _replace_origins(account.id, body["cors_origins"])
        session.flush()
        return account


def _own_problems(body: Settings) -> list[Problem | None]:
    problems: list[Problem | None] = []
    if "name" in body:
        problems.append(accounts.label_problem(body["name"].strip()))
    default = body.get("default_redirect_uri")
    uris = [("default_redirect_uri", default)] if default is not None else []
    uris += [("allowed_redirect_uris", uri) for uri in body.get("allowed_redirect_uris", ())]
    uris += [("cors_origins", origin) for origin in body.get("cors_origins", ())]
    for field, uri in uris:
        if not is_safe_url(uri) or (field == "cors_origins" and not parsing.is_origin(uri)):
            message = f"Not a valid URL for this setting: {uri[:200]}"
            problems.append(problem(field, "invalid_url", message))
    if body.get("mail_from") is not None:
        problems.append(accounts.email_problem(body["mail_from"], "mail_from"))
    for origin in body.get("frame_ancestors", ()):
        if not may_frame(origin):
            message = f"Not an https origin such as https://app.example.com: {origin[:200]}"
            problems.append(problem("frame_ancestors", "invalid_url", message))
    return problems


def check_own(body: Settings) -> None:
    """Check settings for an account that has none. Raises InvalidValues."""
    problems = [*_own_problems(body), *sso_settings.problems(body, {})]
    _refuse([*problems, *sign_in_settings.problems(body)])


def _untrusted_redirects(account: Account, own: Settings, by: str | None) -> dict[str, list[str]]:
    """Redirect URIs that no member of `pii_access` has set: members' codes never go there."""
    before = _redirects(account.settings)
    submitted, current = _redirects(own), _redirects({**account.settings, **own})
    untrusted = set(account.settings.get(UNTRUSTED_REDIRECTS, ()))
    changed = (
        untrusted - submitted if pii.is_trusted(account.id, by) else untrusted | (current - before)
    )
    return {UNTRUSTED_REDIRECTS: sorted(changed & current)} if untrusted or changed else {}


def _redirects(settings: Settings) -> set[str]:
    default = settings.get("default_redirect_uri")
    return {*settings.get("allowed_redirect_uris", ()), *([default] if default else [])}


def _replace_origins(account_id: str, origins: Sequence[str]) -> None:
    connection = db.connection()
    connection.execute(sa.delete(AccountOrigin).where(AccountOrigin.account_id == account_id))
    rows = [{"account_id": account_id, "origin": origin} for origin in dict.fromkeys(origins)]
    if rows:
        connection.execute(sa.insert(AccountOrigin), rows)


def close(account_id: str) -> None:
    """Close an account at once; a job deletes its data in batches."""
    with db.transaction() as session:
        account = get_for_update(account_id)
        if account.id == SYSTEM_ACCOUNT_ID:
            raise Conflict("The system account cannot be deleted.")
        events.publish(events.AccountClosing(account.id))
        account.is_active, account.closed_at = False, clock.now()
        account.attributes, account.plan, account.flags = {}, None, {}
        # The slug becomes available again; the code is never reused.
        account.slug = f"closed-{account.id}"
        account.version += 1
        _replace_origins(account.id, ())
        session.flush()
        events.publish(events.AccountClosed(account.id))


def _refuse(problems: Sequence[Mapping[str, object] | None]) -> None:
    details = [problem for problem in problems if problem]
    if details:
        raise InvalidValues(details)


def may_frame(origin: str) -> bool:
    """Whether pages of an origin may frame portals: by https, in development also from here."""
    if not parsing.is_origin(origin):
        return False
    parts = urlsplit(origin)
    is_local = parts.hostname in ("localhost", "127.0.0.1") and not config.current().production
    return parts.scheme == "https" or is_local


def is_safe_url(uri: str) -> bool:
    """Whether a text is an absolute HTTP URL that all browsers and parsers read alike."""
    if not URI.fullmatch(uri):
        return False
    try:
        parts = urlsplit(uri)
        return bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        return False
