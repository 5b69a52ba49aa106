"""Invitations: a mailed link by which somebody joins an account (contract section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app import clock, config, crypto, db, events, jobs
from app.accounts import groups as account_groups
from app.accounts import roles
from app.accounts import service as accounts
from app.accounts.models import VIEWER, Account, Group, Role, User
from app.auth import enrolment, lockout, passwords, tokens, verification
from app.auth.models import Invitation
from app.auth.principal import Principal
from app.context import actor
from app.db import counts
from app.errors import BadRequest, Conflict, Forbidden, InvalidValues, NotFound, problem
from app.outbound import mail

LIFETIME = timedelta(hours=48)
PENDING, ACCEPTED, EXPIRED, CANCELLED = "pending", "accepted", "expired", "cancelled"
TOKENS = (Invitation.token_hash, Invitation.shown_token_hash)
STATES = (PENDING, ACCEPTED, EXPIRED, CANCELLED)


def check_open() -> None:
    """Refuse where nobody registers, invited or not. Raises Forbidden."""
    if config.current().registration == "off":
        raise Forbidden("Nobody joins here by invitation; the admins make the users.")


def page(
    account_id: str | None, skip: int, limit: int, status: str | None, most: int | None = None
) -> tuple[list[Invitation], int]:
    """The invitations of an account (None: of all), newest first, and how many there are.

    Where there are more than `most`, the number is one beyond it.
    """
    conditions: list[Any] = [Invitation.account_id == account_id] if account_id else []
    if status in (PENDING, EXPIRED):
        late = Invitation.expires_at <= clock.now()
        conditions += [Invitation.state == PENDING, late if status == EXPIRED else ~late]
    elif status:
        conditions.append(Invitation.state == status)
    chosen = sa.select(Invitation).where(*conditions)
    chosen = chosen.order_by(Invitation.id.desc())
    found = db.db.session.scalars(chosen.offset(skip).limit(limit))
    return list(found), counts.count_up_to(Invitation, conditions, most)


def create(account_id: str, body: Mapping[str, Any], *, by: str | None) -> tuple[Invitation, str]:
    """Invite an address; returns the token to show, too.

    Raises InvalidValues, Conflict for a member of the account, TooManyRequests, or Forbidden where
    nobody is invited, or `by` lets nobody into a group that is named.
    """
    check_open()
    email = body["email"].strip()
    found = [accounts.email_problem(email)]
    with db.transaction() as session:
        role = roles.resolve(body, found, VIEWER)  # type: ignore[arg-type]
        groups = _groups(session, account_id, body.get("groups") or [], found)
        if any(found) or role is None:
            raise InvalidValues([one for one in found if one])
        for group in groups:
            account_groups.check_may_add_member(group, by)
        _check_not_member(session, account_id, email)
        invitation = Invitation(
            account_id=account_id,
            email=email,
            email_key=accounts.email_key(email),
            role_id=role.id,
            groups=[group.id for group in groups],
            invited_by=by,
        )
        return invitation, _send(session, invitation)


def resend(account_id: str, invitation_id: str, *, by: Principal) -> tuple[Invitation, str]:
    """Mail a new link; the old one is void. Raises Conflict for one that is closed.

    Also raises TooManyRequests, or Forbidden where nobody is invited, or an admin by an API key, or
    where `by` lets nobody into a group of it.
    """
    check_open()
    with db.transaction() as session:
        invitation = _get(session, account_id, invitation_id)
        if invitation.state != PENDING:
            raise Conflict(f"This invitation is {invitation.state}.")
        if invitation.role_id is None:
            raise Conflict("The role of this invitation is deleted. Invite anew.")
        enrolment.check_role({"role_id": invitation.role_id}, by=by, joins=account_id)
        # Whoever sends it again is shown the token, and could join by it.
        enrolment.check_admission(account_id, invitation.groups, by=by)
        return invitation, _send(session, invitation)


def public_view(token: str) -> dict[str, Any]:
    """What somebody who has the token may know of the invitation. Raises NotFound."""
    invitation = by_token(token)
    session = db.db.session
    inviter = session.get(User, (invitation.account_id, invitation.invited_by or ""))
    return {
        "email": invitation.email,
        "account_name": session.get_one(Account, invitation.account_id).name,
        "invited_by_name": (inviter.name or inviter.email) if inviter else None,
        "expires_at": invitation.expires_at,
        "status": invitation.status,
        "is_valid": invitation.status == PENDING and config.current().registration != "off",
    }


def cancel(account_id: str, invitation_id: str) -> None:
    """Take an invitation back. Raises Conflict for one that was accepted."""
    with db.transaction() as session:
        invitation = _get(session, account_id, invitation_id)
        if invitation.state == ACCEPTED:
            raise Conflict("This invitation was accepted already.")
        invitation.state = CANCELLED


def by_token(token: str) -> Invitation:
    """The invitation that a token belongs to, mailed or shown. Raises NotFound."""
    code, _, _ = token.partition("-")
    mine = sa.select(Account.id).where(Account.account_code == code, Account.is_active)
    statement = sa.select(Invitation).where(
        Invitation.account_id == mine.scalar_subquery(),
        sa.or_(*(column == tokens.digest(token) for column in TOKENS)),
    )
    invitation = db.db.session.scalar(statement)
    if invitation is None:
        raise NotFound("There is no such invitation.")
    return invitation


def accept(token: str, password: str, name: str | None) -> User:
    """Join the account. Raises BadRequest `invalid_token` for a token that is used or too old.

    Only the mailed token proves the address: whoever invited has seen the other one.
    """
    check_open()
    invitation = by_token(token)
    weak = passwords.problems(password, own=(invitation.email, name))
    found = [*weak, accounts.name_problem(name or "")]
    if any(found):
        raise InvalidValues([one for one in found if one])
    if invitation.status != PENDING:  # before the hash, which takes its time
        raise _not_open()
    password_hash = passwords.hash(password)
    with db.transaction() as session:
        invitation = by_token(token)
        mailed = invitation.token_hash == tokens.digest(token)
        return _join(session, invitation, name, proved=mailed, password_hash=password_hash)


def open_for(account_id: str, email: str) -> Invitation | None:
    """The newest open invitation of an address; none where nobody joins by one."""
    if config.current().registration == "off":
        return None
    mine = (Invitation.account_id == account_id, Invitation.email_key == accounts.email_key(email))
    chosen = sa.select(Invitation).where(*mine, *_is_open(), Invitation.role_id.is_not(None))
    newest = (Invitation.created_at.desc(), Invitation.id.desc())
    return db.db.session.scalar(chosen.order_by(*newest).limit(1))


def accept_by_sign_in(invitation: Invitation, name: str | None, provider: str) -> User:
    """Join the account by a provider that proves the invited address. Raises BadRequest."""
    with db.transaction() as session:
        born = {"password_hash": None, "auth_provider": provider}
        return _join(session, invitation, name, proved=True, **born)


def _is_open() -> tuple[Any, ...]:
    return (Invitation.state == PENDING, Invitation.expires_at > clock.now())


def _not_open() -> BadRequest:
    return BadRequest("This invitation is not open any more.", error="invalid_token")


def _join(
    session: Session, invitation: Invitation, name: str | None, *, proved: bool, **born: Any
) -> User:
    # One conditional update: of two who accept at once, one wins.
    mine = (Invitation.account_id == invitation.account_id, Invitation.id == invitation.id)
    taken: Any = session.execute(
        sa.update(Invitation)
        .where(*mine, *_is_open())
        .values(state=ACCEPTED, accepted_at=clock.now())
    )
    if taken.rowcount != 1:
        raise _not_open()
    role = session.get_one(Role, invitation.role_id)
    user = accounts.create_user(
        invitation.account_id, email=invitation.email, role=role.name, name=name, **born
    )
    actor.act_as(user.id, user.email, user.name)
    if proved:  # the link came by mail to this address, or a provider vouches
        accounts.mark_verified(user)
    else:
        verification.ask(user)
    for group in _groups_of(session, invitation):
        accounts.join_group(user, group.name)
    return user


def _groups_of(session: Session, invitation: Invitation) -> Sequence[Group]:
    wanted = (Group.account_id == invitation.account_id, Group.id.in_(invitation.groups))
    return session.scalars(sa.select(Group).where(*wanted)).all()


def _get(session: Session, account_id: str, invitation_id: str) -> Invitation:
    key = (account_id, invitation_id.lower())
    invitation = session.get(Invitation, key, with_for_update={"of": Invitation})
    if invitation is None:
        raise NotFound("There is no such invitation.")
    return invitation


def _groups(
    session: Session, account_id: str, wanted: Sequence[str], found: list[Any]
) -> list[Group]:
    chosen = sa.select(Group).where(
        Group.account_id == account_id, sa.or_(Group.id.in_(wanted), Group.name.in_(wanted))
    )
    groups = list(session.scalars(chosen))
    known = {group.id for group in groups} | {group.name for group in groups}
    found += [
        problem("groups", "invalid_reference", f"There is no group {one[:80]}.")
        for one in wanted
        if one not in known
    ]
    return groups


def _check_not_member(session: Session, account_id: str, email: str) -> None:
    mine = (User.account_id == account_id, User.email_key == accounts.email_key(email))
    if session.scalar(sa.select(User.id).where(*mine)):
        raise Conflict("This address belongs to a user of the account.", field="email")


def _send(session: Session, invitation: Invitation) -> str:
    lockout.mailbox(invitation.account_id, invitation.email)
    account = session.get_one(Account, invitation.account_id)
    # Whoever invites sees a token as well, so only another one can prove that the mail arrived.
    mailed, shown = (tokens.random_token(account.account_code) for _ in range(2))
    invitation.token_hash, invitation.shown_token_hash = map(tokens.digest, (mailed, shown))
    invitation.expires_at = clock.now() + LIFETIME
    session.add(invitation)
    session.flush()
    payload = {"invitation_id": invitation.id, "token": crypto.encrypt(mailed)}
    jobs.enqueue("auth.send_invitation", payload, account_id=account.id)
    return shown


@events.subscribe(events.RoleDeleted)
def _let_go_of_role(event: events.RoleDeleted) -> None:
    closed = sa.or_(Invitation.state != PENDING, Invitation.expires_at <= clock.now())
    mine = sa.update(Invitation).where(Invitation.role_id == event.role_id, closed)
    # It only forgets: nothing of the account changes.
    forgetting = mine.values(role_id=None, updated_at=Invitation.updated_at)
    db.db.session.execute(forgetting, execution_options={"synchronize_session": False})


@jobs.job("auth.send_invitation", mails=True)
def _mail_invitation(payload: Mapping[str, Any]) -> None:
    session = db.db.session
    invitation = session.get(Invitation, (payload["account_id"], payload["invitation_id"]))
    token = crypto.decrypt(payload["token"])
    # Sent again or taken back in the meantime: the newer job, or nobody, is to write.
    if invitation and invitation.state == PENDING and invitation.token_hash == tokens.digest(token):
        account = session.get_one(Account, invitation.account_id)
        if not account.is_active:
            return
        link = f"{config.current().base_url}/console/invitations/{quote(token)}"
        mail.send(invitation.email, "invitation", link=link, account=account.name)
