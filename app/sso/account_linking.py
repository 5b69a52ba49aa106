"""Whom an identity belongs to: a user of this account, a new one, or nobody (contract 10).

The identity itself first; else a proved address; else, where the account lets in whom it does not
know, a new user. Nobody is ever made in the system account, and nothing crosses accounts.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app import clock, db, events
from app.accounts import pii, users
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, Role, User
from app.auth import invitations
from app.auth.models import Invitation
from app.db import errors
from app.errors import BadRequest, Conflict
from app.sso import roles
from app.sso.connections import Connection
from app.sso.identities import Claims
from app.sso.models import SAML, Flow, Identity
from app.sso.refusals import MemberRefused, NotInvited, SignInRefused

LONGEST_SUBJECT = 500


@dataclass(frozen=True)
class Match:
    """What an identity comes to: a present user, or none and a new one is due."""

    how: str  # "identity", "email", "invitation" or "new"
    user: User | None
    identity: Identity | None
    role: Role | None  # that the account's mapping gives, or the invitation
    invitation: Invitation | None = None


def find(connection: Connection, claimed: Claims) -> Match:
    """Whom this identity belongs to. Raises SignInRefused or NotInvited; changes nothing."""
    if not claimed.subject or len(claimed.subject) > LONGEST_SUBJECT or "\0" in claimed.subject:
        raise SignInRefused("subject", "The provider names nobody.")
    role = roles.mapped_role(connection, claimed.groups)
    identity = db.db.session.scalar(_known(connection, claimed))
    if identity is not None:
        known = db.db.session.get_one(User, (identity.account_id, identity.user_id))
        _refuse_member(connection, known.id)
        return Match("identity", _active(known), identity, role)
    user = _with_address(connection, claimed)
    if user is not None:
        _refuse_member(connection, user.id)
        return Match("email", _active(user), None, role)
    invitation = _invitation(connection, claimed)
    if invitation is not None:
        if not connection.admits_pii_members:
            _refuse_invited(connection, invitation)
        return Match("invitation", None, None, invitation.role, invitation)
    _check_may_join(connection, claimed)
    return Match("new", None, None, role)


def link(session: Session, connection: Connection, claimed: Claims) -> tuple[User, bool]:
    """The user of an identity, found or made, as part of the transaction; whether it is new.

    Raises Conflict where somebody else was faster: then it is found at the next try.
    """
    match = find(connection, claimed)
    user = match.user
    if user is not None and not connection.admits_pii_members:
        users.get_for_update(
            session, user.account_id, user.id
        )  # who lets the user in waits, or was first
        _refuse_member(connection, user.id)
    new = user is None
    given = match.how == "new"
    if match.invitation is not None:
        user = _invited(connection, claimed, match.invitation)
    elif user is None:
        user = _provision(connection, claimed, match.role)
    elif match.how == "email":
        user = _locked(session, user, claimed)
        given = _trust(user, connection)
    identity = match.identity or _link(session, connection, claimed, user, given=given)
    if not new:
        roles.apply_mapping(user, identity, connection, claimed.groups)
    identity.groups, identity.last_used_at = claimed.groups, clock.now()
    if not connection.admits_pii_members:
        identity.is_trusted = False
    _rename(user, connection, claimed)
    session.flush()
    return user, new


def _refuse_member(connection: Connection, user_id: str) -> None:
    # Whoever says where the provider points to could sign in as anybody whom it vouches for.
    account_id = connection.account.id
    if not connection.admits_pii_members and pii.is_member(account_id, user_id):
        raise MemberRefused


def _refuse_invited(connection: Connection, invitation: Invitation) -> None:
    if pii.references_group(connection.account.id, invitation.groups):
        raise MemberRefused


@events.subscribe(events.PiiMemberAdmitted)
def _end_of_untrusted(event: events.PiiMemberAdmitted) -> None:
    # By settings that no member stood for somebody else may have come in as this user.
    mine = (Identity.account_id == event.account_id, Identity.user_id == event.user_id)
    untrusted = sa.select(Identity.id).where(*mine, Identity.is_trusted.is_(False)).limit(1)
    if db.db.session.scalar(untrusted) is not None:
        events.publish(events.AddressVerified(event.account_id, event.user_id))


def _known(connection: Connection, claimed: Claims) -> sa.Select[Identity]:
    return sa.select(Identity).where(
        Identity.account_id == connection.account.id,
        Identity.provider_name == connection.provider.name,
        Identity.issuer == claimed.issuer,
        Identity.subject == claimed.subject,
    )


def _with_address(connection: Connection, claimed: Claims) -> User | None:
    if not claimed.email or not claimed.email_verified:
        return None
    return _owner(connection.account.id, claimed.email)


def _owner(account_id: str, email: str) -> User | None:
    mine = (User.account_id == account_id, User.email_key == accounts.email_key(email))
    return db.db.session.scalar(sa.select(User).where(*mine))


def _active(user: User) -> User:
    if not user.may_sign_in:
        raise SignInRefused("user", "The user is not active.")
    return user


def _invitation(connection: Connection, claimed: Claims) -> Invitation | None:
    account_id = connection.account.id
    if account_id == SYSTEM_ACCOUNT_ID or not claimed.email or not claimed.email_verified:
        return None
    return invitations.find_open(account_id, claimed.email)


def _invited(connection: Connection, claimed: Claims, invitation: Invitation) -> User:
    try:
        name = _clean_name(claimed.name)
        return invitations.accept_by_sign_in(invitation, name, connection.provider.name)
    except BadRequest:  # accepted or taken back meanwhile: seen at the next try
        raise Conflict("This invitation has just been closed.") from None


def _check_may_join(connection: Connection, claimed: Claims) -> None:
    account = connection.account
    if account.id == SYSTEM_ACCOUNT_ID:
        raise NotInvited("provisioning", "Nobody becomes a superadmin by signing in.")
    if not claimed.in_directory:
        raise NotInvited("tenant", "The directory is not the tenant that the settings name.")
    _check_lets_in(connection)
    if not claimed.email or not accounts.is_email(claimed.email):
        raise NotInvited("email", "The provider tells no address.")
    domains = account.settings.get("sso_email_domains") or []
    domain = accounts.domain_key(claimed.email.rpartition("@")[2])
    if domains and not (claimed.email_verified and domain in domains):
        raise NotInvited("email", "The address is of no domain of the account, or not proved.")
    if _owner(account.id, claimed.email):
        # Made since it was looked for, perhaps by this very sign-in in another window: found at
        # the next try.
        if claimed.email_verified or db.db.session.scalar(_known(connection, claimed)):
            raise Conflict("Somebody of this address has just joined.")
        raise NotInvited("email", "The address is a user's, and the provider does not prove it.")


def _check_lets_in(connection: Connection) -> None:
    settings = connection.account.settings
    wanted = settings.get("sso_provisioning")
    if not (connection.is_own if wanted is None else wanted):
        raise NotInvited("provisioning", "The account lets in nobody whom it does not know.")
    if connection.provider.category == SAML or settings.get("sso_email_domains"):
        return
    # A directory that the row names is as good as domains; a server of the admins' own counts
    # only where they say so themselves.
    named = connection.provider.has_tenants and not connection.is_open_to_all
    if not named and (wanted is None or connection.is_open_to_all):
        raise NotInvited("provisioning", "Set sso_email_domains: anybody could join otherwise.")


def _provision(connection: Connection, claimed: Claims, role: Role | None) -> User:
    return accounts.create_user(
        connection.account.id,
        email=claimed.email or "",
        password_hash=None,
        role=(role or roles.get_or_viewer(connection.config.get("default_role"))).name,
        name=_clean_name(claimed.name),
        auth_provider=connection.provider.name,
        email_verified=claimed.email_verified,
        email_verified_at=clock.now() if claimed.email_verified else None,
    )


def _locked(session: Session, user: User, claimed: Claims) -> User:
    user = users.get_for_update(session, user.account_id, user.id)
    if user.email_key != accounts.email_key(claimed.email or ""):
        raise Conflict("This user has just been given another address.")
    return user


def _trust(user: User, connection: Connection) -> bool:
    """Whether the role of the user came from an identity that is the user's no more."""
    if user.email_verified:
        return False
    # Whoever came first never proved that the address is theirs: nothing of them stays.
    user.password_hash, user.auth_provider = None, connection.provider.name
    given = roles.is_from_sign_in(user)
    accounts.verify_email(user)
    return given


@events.subscribe(events.AddressVerified)
def _forget(event: events.AddressVerified) -> None:
    user = db.db.session.get_one(User, (event.account_id, event.user_id))
    roles.revoke_mapped_role(user)
    for identity in roles.identities(user):
        db.db.session.delete(identity)
    begun = (Flow.account_id == event.account_id, Flow.user_id == event.user_id)
    db.db.session.execute(sa.update(Flow).where(*begun).values(code_hash=None))


def _link(
    session: Session, connection: Connection, claimed: Claims, user: User, *, given: bool
) -> Identity:
    identity = Identity(
        account_id=user.account_id,
        user_id=user.id,
        provider_name=connection.provider.name,
        issuer=claimed.issuer,
        subject=claimed.subject,
        groups=claimed.groups,
        given_role_id=user.role_id if given else None,
    )
    column, message = "subject", "This identity is a user's already."
    with errors.conflict_on_unique("identities", column, column, message):
        session.add(identity)
        session.flush()
    return identity


def _rename(user: User, connection: Connection, claimed: Claims) -> None:
    name = _clean_name(claimed.name)
    if name and user.name != name and user.auth_provider == connection.provider.name:
        user.name = name
        accounts.bump_version(user)


def _clean_name(name: object) -> str | None:
    text = name.strip().replace("\0", "") if isinstance(name, str) else ""
    return text if text and accounts.name_problem(text) is None else None
