"""Invitations: joining an account by a mailed link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app import clock, config, crypto, db, events, jobs
from app.accounts import groups as account_groups
from app.accounts import pii, roles
from app.accounts import service as accounts
from app.accounts.models import VIEWER, Account, Group, Role, User
from app.accounts.product import links, mails
from app.accounts.product.settings import LinkKind
from app.accounts.types import Body, Condition, Problem
from app.auth import lockout, passwords, stranger_mails, tokens, verification
from app.auth.mfa import enrolment, gate
from app.auth.mfa.gate import Proof
from app.auth.models import Invitation, InvitationState
from app.auth.principal import Principal
from app.context import actor
from app.db import counts
from app.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    InvalidValues,
    NotFound,
    TooManyRequests,
    problem,
)

LIFETIME = timedelta(hours=48)
PENDING = InvitationState.PENDING
TOKENS = (Invitation.token_hash, Invitation.shown_token_hash)
MAX_AT_ONCE = 50
IS_MEMBER = "This address belongs to a user of the account."


def require_enabled() -> None:
    """Raise Forbidden if registration is off, which includes invitations."""
    if config.current().registration == "off":
        raise Forbidden("Invitations are disabled. Administrators create the users.")


@dataclass(frozen=True)
class InvitationFilter:
    """Which invitations a list has."""

    account_id: str | None
    """None: of all accounts."""
    status: str | None = None
    search: str = ""
    """A part of the address."""
    after: str | None = None
    """An id from `cursor_at_offset`."""


def page(
    matching: InvitationFilter, skip: int, limit: int, max_total: int | None = None
) -> tuple[list[Invitation], int]:
    """One page of invitations, newest first, and the total, counted to `max_total` + 1 at most."""
    conditions: list[Condition] = []
    if matching.account_id:
        conditions.append(Invitation.account_id == matching.account_id)
    if matching.status in (PENDING, InvitationState.EXPIRED):
        expired = Invitation.expires_at <= clock.now()
        conditions += [
            Invitation.state == PENDING,
            expired if matching.status == InvitationState.EXPIRED else ~expired,
        ]
    elif matching.status:
        conditions.append(Invitation.state == matching.status)
    if matching.after:
        conditions.append(Invitation.id > matching.after)
    if matching.search:
        key = accounts.email_key(matching.search)
        conditions.append(Invitation.email_key.contains(key, autoescape=True))
    query = sa.select(Invitation).where(*conditions).order_by(Invitation.id.desc())
    rows = db.db.session.scalars(query.offset(skip).limit(limit))
    return list(rows), counts.count_up_to(Invitation, conditions, max_total)


def cursor_at_offset(account_id: str, offset: int) -> str | None:
    """The id of the invitation at this offset in the account's list, for `after`."""
    owned: Sequence[Condition] = [Invitation.account_id == account_id]
    invitation_id: str | None = counts.value_at_offset(Invitation.id, owned, offset)
    return invitation_id


def count_pending(account_id: str, limit: int) -> int:
    """The number of an account's open invitations; counts to `limit` + 1."""
    return counts.count_up_to(Invitation, [Invitation.account_id == account_id, *_is_open()], limit)


def create(account_id: str, body: Body, *, by: str | None) -> tuple[Invitation, str]:
    """Invite an address; returns the invitation and the token to show to the inviter.

    Cancels an older open invitation of the address.
    Raises InvalidValues, Conflict for a user of the account, TooManyRequests, or Forbidden if
    invitations are disabled or `by` may not add members to one of the groups.
    """
    require_enabled()
    email = body["email"].strip()
    invalid = accounts.email_problem(email)
    with db.transaction() as session:
        granted = _granted(account_id, body, [invalid] if invalid else [], by)
        if _members(session, account_id, [email]):
            raise Conflict(IS_MEMBER, field="email")
        invitation = _new(account_id, email, granted, by)
        (token,) = _send(session, [invitation], body)
        return invitation, token


def create_many(
    account_id: str, emails: Sequence[str], body: Body, *, by: str | None
) -> list[Invitation]:
    """Invite several addresses with the same role and groups, all or none.

    Repeated ones count once. Raises InvalidValues, with the `address` of each problem of one;
    TooManyRequests, or Forbidden as `create` does.
    """
    require_enabled()
    unique = list({accounts.email_key(email): email for email in reversed(emails)}.values())[::-1]
    problems = [
        {**invalid, "address": email}
        for email in unique
        if (invalid := accounts.email_problem(email))
    ]
    with db.transaction() as session:
        members = _members(session, account_id, unique)
        limited = lockout.beyond_mail_limit(account_id, unique)
        problems += [
            problem("email", "already_member", IS_MEMBER, address=email)
            for email in unique
            if accounts.email_key(email) in members
        ]
        problems += [
            problem("email", "rate_limited", TooManyRequests.message, address=email)
            for email in limited
        ]
        granted = _granted(account_id, body, problems, by)
        invitations = [_new(account_id, email, granted, by) for email in unique]
        _send(session, invitations, body)
        return invitations


def _granted(
    account_id: str, body: Body, problems: list[Problem], by: str | None
) -> tuple[Role, Sequence[Group]]:
    """The role and groups that an invitation gives. Raises InvalidValues or Forbidden."""
    role = roles.resolve(body, problems, VIEWER)
    groups = account_groups.resolve(account_id, body.get("groups") or [], problems)
    if problems or role is None:
        raise InvalidValues(problems)
    for group in groups:
        account_groups.check_may_add_member(group, by)
    return role, groups


def _new(
    account_id: str, email: str, granted: tuple[Role, Sequence[Group]], by: str | None
) -> Invitation:
    role, groups = granted
    return Invitation(
        account_id=account_id,
        email=email,
        email_key=accounts.email_key(email),
        role_id=role.id,
        groups=[group.id for group in groups],
        invited_by=by,
    )


def resend(
    account_id: str, invitation_id: str, body: Body, *, by: Principal
) -> tuple[Invitation, str]:
    """Mail a new link, which invalidates the old one. Raises Conflict for a closed invitation.

    Raises TooManyRequests, or Forbidden if invitations are disabled, or `by` may not invite with
    this role or into these groups.
    """
    require_enabled()
    with db.transaction() as session:
        invitation = _get(session, account_id, invitation_id)
        if invitation.state != PENDING:
            raise Conflict(f"This invitation is {invitation.state}.")
        if invitation.role_id is None:
            raise Conflict("The role of this invitation was deleted. Create a new invitation.")
        enrolment.check_role({"role_id": invitation.role_id}, by=by, joins=account_id)
        # Whoever resends it gets a token and could accept it.
        enrolment.check_group_assignment(account_id, invitation.groups, by=by)
        (token,) = _send(session, [invitation], body)
        return invitation, token


def link(invitation: Invitation, token: str, redirect_uri: str | None) -> str:
    """The address of the page where this token is used."""
    account = db.db.session.get_one(Account, invitation.account_id)
    page = links.page(LinkKind.INVITATION, account, _recipient(invitation), redirect_uri)
    if page.redirect_uri != invitation.redirect_uri:  # the list has changed meanwhile
        with db.transaction():
            invitation.redirect_uri = page.redirect_uri
    return page.address(token)


def _recipient(invitation: Invitation) -> str | None:
    """The recipient of its token, as `links.page` tells people apart."""
    is_member = pii.references_group(invitation.account_id, invitation.groups)
    return links.NEW_MEMBER if is_member else None


def _leads_to_listed_page(invitation: Invitation) -> bool:
    """Whether its tokens may still go where its link leads: whoever owns that page has them."""
    account = db.db.session.get_one(Account, invitation.account_id)
    return invitation.redirect_uri is None or links.may_receive(
        account, invitation.redirect_uri, _recipient(invitation)
    )


def public_view(token: str) -> dict[str, object]:
    """The part of an invitation that the holder of its token may see. Raises NotFound."""
    invitation = by_token(token)
    session = db.db.session
    inviter = session.get(User, (invitation.account_id, invitation.invited_by or ""))
    return {
        "email": invitation.email,
        "account_name": session.get_one(Account, invitation.account_id).name,
        "invited_by_name": (inviter.name or inviter.email) if inviter else None,
        "expires_at": invitation.expires_at,
        "status": invitation.status,
        "is_valid": invitation.status == PENDING
        and config.current().registration != "off"
        and _leads_to_listed_page(invitation),
    }


def cancel(account_id: str, invitation_id: str) -> None:
    """Cancel an invitation. Raises Conflict for an accepted one."""
    with db.transaction() as session:
        invitation = _get(session, account_id, invitation_id)
        if invitation.state == InvitationState.ACCEPTED:
            raise Conflict("This invitation has already been accepted.")
        invitation.state = InvitationState.CANCELLED


def by_token(token: str) -> Invitation:
    """The invitation of a token, mailed or shown. Raises NotFound."""
    code, _, _ = token.partition("-")
    account = sa.select(Account.id).where(Account.account_code == code, Account.is_active)
    is_of_account = Invitation.account_id == account.scalar_subquery()
    # By an index each: SQLite would look at all of the account for either.
    ids = sa.union_all(
        *(
            sa.select(Invitation.id).where(is_of_account, column == tokens.digest(token))
            for column in TOKENS
        )
    )
    statement = sa.select(Invitation).where(is_of_account, Invitation.id.in_(ids))
    invitation = db.db.session.scalar(statement)
    if invitation is None:
        raise NotFound("There is no such invitation.")
    return invitation


def accept(token: str, password: str, name: str | None) -> User:
    """Accept an invitation. Raises BadRequest `invalid_token` for a used or expired token.

    Raises InvalidValues, TooManyRequests, or Forbidden where only a provider may accept it.
    Only the mailed token verifies the address: the inviter has seen the other one.
    """
    require_enabled()
    invitation = by_token(token)
    weak = passwords.problems(password, own=(invitation.email, name))
    if problems := [problem for problem in (*weak, accounts.name_problem(name or "")) if problem]:
        raise InvalidValues(problems)
    # Before hashing, which is slow.
    if invitation.status != PENDING or not _leads_to_listed_page(invitation):
        raise _closed_error()
    gate.require_password(db.db.session.get_one(Account, invitation.account_id), invitation.email)
    password_hash = passwords.hash(password)
    with db.transaction():
        invitation = by_token(token)
        if not _leads_to_listed_page(invitation):
            raise _closed_error()
        mailed = invitation.token_hash == tokens.digest(token)
        if not mailed:  # the address gets a mail, which nobody has counted
            lockout.count_mail(invitation.account_id, invitation.email)
        return _join(invitation, name, verified=mailed, password_hash=password_hash)


def may_choose_password(token: str) -> bool:
    """Whether an invitation may be accepted with a password. Raises NotFound."""
    invitation = by_token(token)
    account = db.db.session.get_one(Account, invitation.account_id)
    return gate.allows_address(account, invitation.email, Proof.PASSWORD)


def find_open(account_id: str, email: str) -> Invitation | None:
    """The newest open invitation of an address; None if invitations are disabled."""
    if config.current().registration == "off":
        return None
    conditions = (
        Invitation.account_id == account_id,
        Invitation.email_key == accounts.email_key(email),
    )
    query = sa.select(Invitation).where(*conditions, *_is_open(), Invitation.role_id.is_not(None))
    newest = (Invitation.created_at.desc(), Invitation.id.desc())
    return db.db.session.scalar(query.order_by(*newest).limit(1))


def accept_by_sign_in(invitation: Invitation, name: str | None, provider: str) -> User:
    """Accept an invitation by a provider sign-in with a verified address. Raises BadRequest."""
    with db.transaction():
        return _join(invitation, name, verified=True, password_hash=None, auth_provider=provider)


def _is_open() -> tuple[Condition, ...]:
    return (Invitation.state == PENDING, Invitation.expires_at > clock.now())


def _closed_error() -> BadRequest:
    return BadRequest("This invitation is no longer open.", error="invalid_token")


def _join(
    invitation: Invitation,
    name: str | None,
    *,
    verified: bool,
    password_hash: str | None,
    auth_provider: str = "password",
) -> User:
    session = db.db.session
    # One conditional update: of two concurrent acceptances, one wins.
    conditions = (Invitation.account_id == invitation.account_id, Invitation.id == invitation.id)
    result: Any = session.execute(
        sa.update(Invitation)
        .where(*conditions, *_is_open())
        .values(state=InvitationState.ACCEPTED, accepted_at=clock.now())
    )
    if result.rowcount != 1:
        raise _closed_error()
    role = session.get_one(Role, invitation.role_id)
    user = accounts.create_user(
        invitation.account_id,
        email=invitation.email,
        role=role.name,
        name=name,
        password_hash=password_hash,
        auth_provider=auth_provider,
    )
    actor.act_as(user.id, user.email, user.name)
    if verified:
        accounts.mark_verified(user)
    else:
        verification.enqueue_mail(user)
    named = (Group.account_id == invitation.account_id, Group.id.in_(invitation.groups))
    for group in session.scalars(sa.select(Group).where(*named)).all():
        accounts.join_group(user, group.name)
    return user


def _get(session: Session, account_id: str, invitation_id: str) -> Invitation:
    key = (account_id, invitation_id.lower())
    invitation = session.get(Invitation, key, with_for_update={"of": Invitation})
    if invitation is None:
        raise NotFound("There is no such invitation.")
    return invitation


def _members(session: Session, account_id: str, emails: Sequence[str]) -> set[str]:
    """The keys of those addresses that belong to users of the account."""
    keys = list(map(accounts.email_key, emails))
    query = sa.select(User.email_key).where(User.account_id == account_id, User.email_key.in_(keys))
    return set(session.scalars(query))


def _send(session: Session, invitations: Sequence[Invitation], body: Body) -> list[str]:
    """Give invitations new tokens and mail one of each; returns those to show to the inviter.

    With `send_mail` false, nothing is mailed. Raises InvalidValues or TooManyRequests.
    """
    account = session.get_one(Account, invitations[0].account_id)
    links.check_redirect(account, body.get("redirect_uri"))
    recipient = _recipient(invitations[0])  # all join the same groups
    page = links.page(LinkKind.INVITATION, account, recipient, body.get("redirect_uri"))
    is_mailed = body.get("send_mail", True)
    accounts.get_for_update(account.id)  # two at once would leave an address two invitations
    mailed, shown = (
        [tokens.random_token(account.account_code) for _ in invitations] for _ in range(2)
    )
    for invitation, *pair in zip(invitations, mailed, shown, strict=True):
        if is_mailed:
            lockout.count_mail(account.id, invitation.email)
        # Two tokens: the inviter sees one, so only the other one proves that the mail arrived.
        invitation.token_hash, invitation.shown_token_hash = map(tokens.digest, pair)
        invitation.redirect_uri = page.redirect_uri
        invitation.expires_at = clock.now() + LIFETIME
    session.add_all(invitations)
    session.flush()
    # An address has one open invitation at a time.
    others = sa.select(Invitation).where(
        Invitation.account_id == account.id,
        Invitation.email_key.in_([invitation.email_key for invitation in invitations]),
        Invitation.id.not_in([invitation.id for invitation in invitations]),
        *_is_open(),
    )
    for other in session.scalars(others):
        other.state = InvitationState.CANCELLED
    session.flush()
    for invitation, token in zip(invitations if is_mailed else (), mailed, strict=is_mailed):
        payload = {
            "invitation_id": invitation.id,
            "token": crypto.encrypt(token),
            "redirect_uri": body.get("redirect_uri"),
        }
        jobs.enqueue("auth.send_invitation", payload, account_id=account.id)
    return shown


@events.subscribe(events.RoleDeleted)
def _on_role_deleted(event: events.RoleDeleted) -> None:
    closed = sa.or_(Invitation.state != PENDING, Invitation.expires_at <= clock.now())
    session, of_role = db.db.session, Invitation.role_id == event.role_id
    # Account by account, as the audit log locks what it is about, and no lock spans shards.
    accounts_of_role = sa.select(Invitation.account_id).where(of_role, closed).distinct()
    for account_id in session.scalars(accounts_of_role).all():
        mine = Invitation.account_id == account_id
        # `updated_at` stays, as the invitation itself does not change.
        update = sa.update(Invitation).where(mine, of_role, closed)
        update = update.values(role_id=None, updated_at=Invitation.updated_at)
        session.execute(update, execution_options={"synchronize_session": False})
    is_open = sa.select(Invitation.id).where(Invitation.role_id == event.role_id).limit(1)
    if db.db.session.scalar(is_open):
        raise Conflict(roles.IN_USE)


@jobs.job("auth.send_invitation", mails=True)
def _mail_invitation(payload: Mapping[str, str]) -> None:
    session = db.db.session
    invitation = session.get(Invitation, (payload["account_id"], payload["invitation_id"]))
    token = crypto.decrypt(payload["token"])
    # If it was resent or cancelled meanwhile, this token is void.
    if invitation and invitation.state == PENDING and invitation.token_hash == tokens.digest(token):
        account = session.get_one(Account, invitation.account_id)
        if not account.is_active:
            return
        inviter = session.get(User, (account.id, invitation.invited_by))
        language = inviter.language if inviter else None
        mails.send(
            "invitation",
            invitation.email,
            account.id,
            language=language,
            link=link(invitation, token, payload.get("redirect_uri")),
            expires=invitation.expires_at,
            account=account.name,
            caused_by=stranger_mails.named(account.id, invitation.invited_by),
        )
