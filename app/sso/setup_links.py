"""Setup links: a customer's IT sets up single sign-on without a user of its own.

A link is used up by opening it: its token is exchanged for the secret of a cookie, which lasts
until the set-up is completed, the link expires or an admin revokes it. It also ends with the rights
of the admin who created it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from app import clock, config, crypto, db, jobs
from app.accounts import service as accounts
from app.accounts.models import ADMIN, SYSTEM_ACCOUNT_ID, User
from app.accounts.product import mails
from app.accounts.types import Body, Condition
from app.auth import lockout, owners, sessions, stranger_mails, tokens
from app.auth import principal as principals
from app.auth.models import SetupLink
from app.auth.principal import AccountRef, Principal
from app.context import actor, tenancy
from app.db import errors, versioned_cache
from app.errors import BadRequest, Conflict, Forbidden, InvalidValues, NotFound
from app.outbound import mail

FEATURES = SSO, DOMAINS, SCIM = "sso", "domains", "scim"
STATES = ("pending", "opened", "completed", "revoked", "expired")
LONGEST_NAME = 100
DEFAULT_HOURS, MAX_HOURS = 72, 14 * 24
MAX_OPEN = 10
"""Open links of one account."""
NOT_FOR_SYSTEM = "The system account has no setup links."
NOT_PENDING = "This link was opened, is revoked or has expired. Create another."
NOT_TESTED = "Test a sign-in first: it shows that users will be able to sign in."


def page(account_id: str, skip: int, limit: int) -> tuple[Sequence[SetupLink], int]:
    """Return a page of an account's links, newest first, and their number."""
    own = SetupLink.account_id == account_id
    query = sa.select(SetupLink).where(own).order_by(SetupLink.id.desc())
    count = sa.select(sa.func.count()).select_from(SetupLink).where(own)
    rows = db.db.session.scalars(query.offset(skip).limit(limit)).all()
    return rows, db.db.session.scalar(count) or 0


def get(account_id: str, link_id: str) -> SetupLink:
    """Return a link of the account. Raises NotFound."""
    link = db.db.session.get(SetupLink, (account_id, link_id.lower()))
    if link is None:
        raise NotFound("There is no such setup link.")
    return link


def names(account_id: str, ids: Collection[str]) -> dict[str, str]:
    """Return the names of links by id."""
    own = (SetupLink.account_id == account_id, SetupLink.id.in_(ids))
    rows = db.db.session.scalars(sa.select(SetupLink).where(*own))
    return {link.id: link.name for link in rows}


def create(body: Body, *, by: Principal, id: str | None = None) -> tuple[SetupLink, str]:
    """Create a link in the account acted in, and mail it to `email`; returns it with its address.

    Raises InvalidValues, Conflict beyond ten open links, TooManyRequests, or Forbidden without a
    recent sign-in and in the system account.
    """
    by.require_recent_sign_in()
    account = _account(by)
    email, name = (body.get("email") or "").strip() or None, accounts.label(body["name"])
    if email and (invalid := accounts.email_problem(email)):
        raise InvalidValues([invalid])
    owner_id = owners.choose_admin(account.id, body.get("owner_id"), by=by)
    token = tokens.random_token(account.account_code)
    unique_id = errors.conflict_on_unique("setup_links", "id", "id", "This link exists.")
    with unique_id, db.transaction() as session:
        accounts.get_for_update(account.id)  # two at once would pass the limit
        link = SetupLink(
            account_id=account.id,
            name=name,
            email=email,
            features=[name for name in FEATURES if name in body.get("features", FEATURES)],
            token_hash=tokens.digest(token),
            created_by=owner_id,
            expires_at=clock.now() + timedelta(hours=body.get("expires_in_hours", DEFAULT_HOURS)),
            **({"id": id} if id else {}),
        )
        session.add(link)
        session.flush()
        count = sa.select(sa.func.count()).select_from(SetupLink).where(*open_in(account.id))
        if (session.scalar(count) or 0) > MAX_OPEN:
            raise Conflict(f"An account has at most {MAX_OPEN} open setup links. Revoke one first.")
        _enqueue_mail(link, token)
    return link, _address(token)


def renew(link_id: str, *, by: Principal) -> tuple[SetupLink, str]:
    """Replace the address of a link that nobody has opened, and mail it again; returns both.

    It is valid as long as before, and the old address no longer works. Raises Conflict for another
    link, NotFound, TooManyRequests, or Forbidden without a recent sign-in.
    """
    by.require_recent_sign_in()
    account = _account(by)
    token = tokens.random_token(account.account_code)
    with db.transaction() as session:
        link = _for_update(account.id, link_id)
        if link.state != "pending":
            raise Conflict(NOT_PENDING)
        link.token_hash = tokens.digest(token)
        session.flush()
        _enqueue_mail(link, token)
    return link, _address(token)


def revoke(link_id: str, *, by: Principal) -> None:
    """Revoke a link, whose holder is refused at once. Raises NotFound or Conflict."""
    with db.transaction():
        link = _for_update(by.require_account_id(), link_id)
        if link.completed_at:
            raise Conflict("This set-up is completed.")
        link.revoked_at = link.revoked_at or clock.now()


def by_token(token: str) -> tuple[SetupLink, AccountRef]:
    """Return a link that can be opened with this token, and its account. Raises BadRequest."""
    found = _find(token, SetupLink.opened_at.is_(None))
    if found is None:
        raise _invalid()
    return found


def redeem(token: str) -> tuple[SetupLink, str]:
    """Use up a link: returns it with the secret of its holder's cookie. Raises BadRequest."""
    found, account = by_token(token)
    secret = tokens.random_token(account.account_code)
    with tenancy.in_account(account.id), db.transaction():
        link = _for_update(account.id, found.id)
        if link.opened_at or link.token_hash != tokens.digest(token) or not _is_open(link):
            raise _invalid()
        actor.act_as(link.id, None, _actor_name(link))
        link.opened_at, link.token_hash = clock.now(), tokens.digest(secret)
    return link, secret


def authenticate(secret: str) -> Principal | None:
    """Return the holder of an opened link by the secret of the cookie: an admin of its features.

    Holders are no users: only the console's pages of these features may accept them.
    """
    opened = _find(secret, SetupLink.opened_at.is_not(None))
    if opened is None:
        return None
    link, account = opened
    return Principal(
        account=account,
        home=account,
        user_id=link.id,
        name=_actor_name(link),
        role=ADMIN,
        auth_time=clock.now().timestamp(),
        setup=frozenset(link.features),
    )


def record_test(holder: Principal) -> None:
    """Note that a test sign-in worked: the provider identified its user. Raises Unauthorized."""
    with db.transaction():
        sessions.lock_setup_link(holder).tested_at = clock.now()


def complete(holder: Principal) -> None:
    """End the set-up, and mail the admin who created the link.

    Raises Conflict without a test, Unauthorized if it has ended already.
    """
    with db.transaction():
        link = sessions.lock_setup_link(holder)
        if SSO in link.features and link.tested_at is None:
            raise Conflict(NOT_TESTED)
        link.completed_at = clock.now()
        payload = {"setup_link_id": link.id}
        jobs.enqueue("auth.notify_setup_completed", payload, account_id=link.account_id)


def _enqueue_mail(link: SetupLink, token: str) -> None:
    if link.email:
        lockout.count_mail(link.account_id, link.email)
        payload = {"setup_link_id": link.id, "token": crypto.encrypt(token)}
        jobs.enqueue("auth.send_setup_link", payload, account_id=link.account_id)


def _account(by: Principal) -> AccountRef:
    if by.require_account_id() == SYSTEM_ACCOUNT_ID or by.account is None:
        raise Forbidden(NOT_FOR_SYSTEM)
    return by.account


def _for_update(account_id: str, link_id: str) -> SetupLink:
    own = (SetupLink.account_id == account_id, SetupLink.id == link_id.lower())
    query = sa.select(SetupLink).where(*own).with_for_update()
    link = db.db.session.scalar(query.execution_options(populate_existing=True))
    if link is None:
        raise NotFound("There is no such setup link.")
    return link


def _find(secret: str, condition: Condition) -> tuple[SetupLink, AccountRef] | None:
    with versioned_cache.reloading():
        account = principals.find_active_account(secret.partition("-")[0])
    if account is None or account.id == SYSTEM_ACCOUNT_ID:
        return None
    query = sa.select(SetupLink).where(
        SetupLink.account_id == account.id,
        SetupLink.token_hash == tokens.digest(secret),
        condition,
    )
    with tenancy.in_account(account.id):
        link = db.db.session.scalar(query.execution_options(populate_existing=True))
    if link is None or not _is_open(link):
        return None
    return (link, account) if owners.is_admin(account.id, link.created_by) else None


def _is_open(link: SetupLink) -> bool:
    return link.state in ("pending", "opened")


def open_in(account_id: str) -> tuple[Condition, ...]:
    """Return the conditions of an account's links that work."""
    return (
        SetupLink.account_id == account_id,
        SetupLink.completed_at.is_(None),
        SetupLink.revoked_at.is_(None),
        SetupLink.expires_at > clock.now(),
    )


def _actor_name(link: SetupLink) -> str:
    return f"Setup link: {link.name}"


def _address(token: str) -> str:
    return f"{config.current().base_url}/console/setup/{quote(token)}"


def _invalid() -> BadRequest:
    message = "This link was already opened, or is no longer valid. Ask for a new one."
    return BadRequest(message, error="invalid_token")


@jobs.job("auth.send_setup_link", mails=True)
def _mail_link(payload: Mapping[str, str]) -> None:
    link = get(payload["account_id"], payload["setup_link_id"])
    token = crypto.decrypt(payload["token"])
    account = principals.find_active_account(link.account_id)
    # It may have been opened, revoked or renewed meanwhile.
    is_current = link.state == "pending" and link.token_hash == tokens.digest(token)
    if link.email and account and is_current:
        by = stranger_mails.named(link.account_id, link.created_by)
        _send(link, account, link.email, "setup_link", link=_address(token), caused_by=by)


@jobs.job("auth.notify_setup_completed", mails=True)
def _mail_completed(payload: Mapping[str, str]) -> None:
    link = get(payload["account_id"], payload["setup_link_id"])
    account, creator = principals.find_active_account(link.account_id), _creator(link)
    if account and creator and creator.may_sign_in:
        name = mail.plain_name(link.name)
        _send(link, account, creator.email, "setup_completed", user=creator, name=name)


def _send(row: SetupLink, account: AccountRef, to: str, kind: str, **details: Any) -> None:
    creator = _creator(row)
    language = creator.language if creator else None
    details |= {"account": account.name, "expires": row.expires_at}
    mails.send(kind, to, account.id, language=language, **details)


def _creator(link: SetupLink) -> User | None:
    for account_id in (link.account_id, SYSTEM_ACCOUNT_ID):
        with tenancy.across_accounts():
            user = db.db.session.get(User, (account_id, link.created_by))
        if user:
            return user
    return None
