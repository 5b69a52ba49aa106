"""Links identities to users: a present one, a new one, or none.

Matches by identity, then by verified address, then by invitation; otherwise creates a user if the
account allows it. Never creates users in the system account, and never crosses accounts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app import clock, db, events
from app.accounts import pii, users
from app.accounts import service as accounts
from app.accounts.domains import service as domains
from app.accounts.domains.models import AccountDomain
from app.accounts.models import SYSTEM_ACCOUNT_ID, Role, User
from app.auth import invitations
from app.auth.models import Invitation
from app.db import errors
from app.errors import BadRequest, Conflict
from app.sso import attributes, roles
from app.sso.connections import Claims, Connection
from app.sso.models import SAML, Flow, Identity
from app.sso.refusals import MemberRefused, NotInvited, SignInRefused

LONGEST_SUBJECT = 500
NO_MEMBER = "The provider proves the address, but not that the user still belongs to the domain."


class MatchKind(StrEnum):
    """The property by which an identity matched a user; NEW if there is none yet."""

    IDENTITY = "identity"
    EMAIL = "email"
    INVITATION = "invitation"
    NEW = "new"


@dataclass(frozen=True)
class Match:
    """The result of matching an identity; without a user, a new one is to be created."""

    how: MatchKind
    user: User | None
    identity: Identity | None
    role: Role | None  # from the account's mapping, or the invitation
    invitation: Invitation | None = None


def find(connection: Connection, claimed: Claims) -> Match:
    """Match an identity without changes. Raises SignInRefused or NotInvited."""
    claimed = distrust_foreign_domain(connection, claimed)
    if not claimed.subject or len(claimed.subject) > LONGEST_SUBJECT or "\0" in claimed.subject:
        raise SignInRefused("subject", "The provider sent no valid user id.")
    role = roles.mapped_role(connection, claimed.groups)
    identity = db.db.session.scalar(_identity_query(connection, claimed))
    if identity is not None:
        known = db.db.session.get_one(User, (identity.account_id, identity.user_id))
        _refuse_member(connection, known.id)
        return Match(MatchKind.IDENTITY, _active(known), identity, role)
    account_id, email = connection.account.id, claimed.email or ""
    user = _find_user(account_id, email) if email and claimed.email_verified else None
    if user is not None:
        _refuse_member(connection, user.id)
        return Match(MatchKind.EMAIL, _active(user), None, role)
    if email and claimed.email_verified and account_id != SYSTEM_ACCOUNT_ID:
        invitation = invitations.find_open(account_id, email)
        if invitation is not None:
            if not connection.admits_pii_members and pii.references_group(
                account_id, invitation.groups
            ):
                raise MemberRefused
            return Match(MatchKind.INVITATION, None, None, invitation.role, invitation)
    if email and accounts.was_deleted(account_id, accounts.email_key(email)):
        raise NotInvited("deleted", "This user was deleted. Invite the address to let it in again.")
    joining = _joined_domain(connection, claimed)
    if joining is not None and _speaks_for_members(connection, claimed):
        role = role or roles.get_or_viewer(joining.role_of_new_users)
        return Match(MatchKind.NEW, None, None, role)
    try:
        _check_may_join(connection, claimed)
    except NotInvited as error:
        error.detail = NO_MEMBER if joining is not None else error.detail
        raise
    return Match(MatchKind.NEW, None, None, role)


def distrust_foreign_domain(connection: Connection, claimed: Claims) -> Claims:
    """Return the claims, whose address counts as unverified if another account owns its domain.

    Providers speak for the addresses of the accounts that they serve. Only the mailbox itself can
    verify such an address here, by a mailed link.
    """
    if not claimed.email or not claimed.email_verified:
        return claimed
    owner = domains.owner_of(claimed.email)
    is_foreign = owner is not None and owner != connection.account.id
    return replace(claimed, email_verified=False) if is_foreign else claimed


def link(session: Session, connection: Connection, claimed: Claims) -> tuple[User, bool]:
    """Find or create the user of an identity in the open transaction; returns it and if it is new.

    Raises Conflict after a concurrent change: a retry then finds the user.
    """
    claimed = distrust_foreign_domain(connection, claimed)
    match = find(connection, claimed)
    user, name = match.user, _clean_name(claimed.name)
    provider = connection.provider.name
    if user is not None and not connection.admits_pii_members:
        # Serializes with joining pii_access.
        users.get_for_update(session, user.account_id, user.id)
        _refuse_member(connection, user.id)
    is_new, role_is_mapped = user is None, match.how == MatchKind.NEW
    if match.invitation is not None:
        try:
            user = invitations.accept_by_sign_in(match.invitation, name, provider)
        except BadRequest:  # accepted or revoked concurrently: the retry sees it
            raise Conflict("This invitation was closed concurrently.") from None
    elif user is None:
        role = match.role or roles.get_or_viewer(connection.config.get("default_role"))
        user = accounts.create_user(
            connection.account.id,
            email=claimed.email or "",
            password_hash=None,
            role=role.name,
            name=name,
            auth_provider=provider,
            email_verified=claimed.email_verified,
            email_verified_at=clock.now() if claimed.email_verified else None,
        )
    elif match.how == MatchKind.EMAIL:
        user = users.get_for_update(session, user.account_id, user.id)
        if user.email_key != accounts.email_key(claimed.email or ""):
            raise Conflict("This user's address was changed concurrently.")
        role_is_mapped = _take_over_unverified(user, connection)
    identity = match.identity
    if identity is None:
        given_role_id = user.role_id if role_is_mapped else None
        identity = _create_identity(session, connection, claimed, user, given_role_id)
    if not is_new:
        roles.apply_mapping(user, identity, connection, claimed.groups)
    identity.groups, identity.last_used_at = claimed.groups, clock.now()
    if not connection.admits_pii_members:
        identity.is_trusted = False
    if name and user.name != name and user.auth_provider == provider:
        user.name = name
        accounts.bump_version(user)
    if claimed.sent and (values := attributes.from_claims(user, claimed.sent)) is not None:
        user.attributes = values
        accounts.bump_version(user)
    session.flush()
    return user, is_new


def _refuse_member(connection: Connection, user_id: str) -> None:
    # Whoever controls the provider's settings could sign in as any of its users.
    account_id = connection.account.id
    if not connection.admits_pii_members and pii.is_member(account_id, user_id):
        raise MemberRefused


@events.subscribe(events.PiiMemberAdmitted)
def _verify_address_if_untrusted(event: events.PiiMemberAdmitted) -> None:
    # Under settings that no member confirmed, someone else may have signed in as this user.
    same_user = (Identity.account_id == event.account_id, Identity.user_id == event.user_id)
    untrusted = (*same_user, Identity.is_trusted.is_(False))
    since = db.db.session.scalar(sa.select(sa.func.min(Identity.created_at)).where(*untrusted))
    if since is not None:
        events.publish(events.AddressVerified(event.account_id, event.user_id, since))


def _identity_query(connection: Connection, claimed: Claims) -> sa.Select[Identity]:
    return sa.select(Identity).where(
        Identity.account_id == connection.account.id,
        Identity.provider_name == connection.provider.name,
        Identity.issuer == claimed.issuer,
        Identity.subject == claimed.subject,
    )


def _find_user(account_id: str, email: str) -> User | None:
    conditions = (User.account_id == account_id, User.email_key == accounts.email_key(email))
    return db.db.session.scalar(sa.select(User).where(*conditions))


def _active(user: User) -> User:
    if not user.may_sign_in:
        raise SignInRefused("user", "The user is not active.")
    return user


def _joined_domain(connection: Connection, claimed: Claims) -> AccountDomain | None:
    """Return the account's domain by which this user joins, whatever else the settings say."""
    account_id = connection.account.id
    may_join = claimed.email_verified and claimed.in_directory and account_id != SYSTEM_ACCOUNT_ID
    if not may_join or not claimed.email or not accounts.is_email(claimed.email):
        return None
    domain = domains.find_verified(account_id, claimed.email)
    return domain if domain is not None and domain.auto_join else None


def _speaks_for_members(connection: Connection, claimed: Claims) -> bool:
    """Whether a provider knows who belongs to the account's domains now.

    Public providers remember addresses of former employers, unless they name the directory that the
    user is in: Google a Workspace (`hd`), Microsoft the tenant of the settings (`tid`).
    """
    if connection.is_google and claimed.hosted_domain:
        address = f"x@{claimed.hosted_domain}"
        is_address = accounts.is_email(address)
        return is_address and domains.find_verified(connection.account.id, address) is not None
    names_directory = connection.is_own or connection.is_microsoft
    return names_directory and not connection.is_open_to_all


def _check_may_join(connection: Connection, claimed: Claims) -> None:
    account = connection.account
    if account.id == SYSTEM_ACCOUNT_ID:
        raise NotInvited("provisioning", "Single sign-on does not create superadmins.")
    if not claimed.in_directory:
        raise NotInvited("tenant", "The directory is not the tenant of the settings.")
    provisioning = account.settings.get("sso_provisioning")
    if not (connection.is_own if provisioning is None else provisioning):
        raise NotInvited("provisioning", "The account does not admit new users by single sign-on.")
    if lacks_domains(connection):
        raise NotInvited(
            "provisioning",
            "Anyone could join by this provider, so an admin of the account must name the email"
            " domains of new users first.",
        )
    if not claimed.email or not accounts.is_email(claimed.email):
        raise NotInvited("email", "The provider sent no e-mail address.")
    domains = account.settings.get("sso_email_domains") or []
    domain = accounts.domain_key(claimed.email.rpartition("@")[2])
    if domains and not (claimed.email_verified and domain in domains):
        raise NotInvited(
            "email", "The address is not verified, or its domain is not in sso_email_domains."
        )
    if _find_user(account.id, claimed.email):
        # Created concurrently, perhaps by the same sign-in in another window: a retry finds it.
        if claimed.email_verified or db.db.session.scalar(_identity_query(connection, claimed)):
            raise Conflict("A user with this address has just joined.")
        raise NotInvited("email", "A user has this address, and the provider does not verify it.")


def lacks_domains(connection: Connection) -> bool:
    """Whether a provider creates no users, as without domains anyone could join by it."""
    settings = connection.account.settings
    if connection.provider.category == SAML or settings.get("sso_email_domains"):
        return False
    # A directory named in the settings is as good as domains; the admins' own server counts only
    # if they set sso_provisioning.
    names_directory = connection.provider.has_tenants and not connection.is_open_to_all
    is_usual = settings.get("sso_provisioning") is None
    return not names_directory and (is_usual or connection.is_open_to_all)


def _take_over_unverified(user: User, connection: Connection) -> bool:
    """Take over an unverified user; returns whether its role came from a removed identity."""
    if user.email_verified:
        return False
    # The previous owner never verified the address: remove their credentials.
    user.password_hash, user.auth_provider = None, connection.provider.name
    role_is_mapped = roles.is_from_sign_in(user)
    accounts.verify_email(user)
    return role_is_mapped


@events.subscribe(events.AddressVerified)
def _remove_identities(event: events.AddressVerified) -> None:
    user = db.db.session.get_one(User, (event.account_id, event.user_id))
    roles.revoke_mapped_role(user)
    for identity in roles.identities(user):
        db.db.session.delete(identity)
    flows = (Flow.account_id == event.account_id, Flow.user_id == event.user_id)
    db.db.session.execute(sa.update(Flow).where(*flows).values(code_hash=None))


def _create_identity(
    session: Session,
    connection: Connection,
    claimed: Claims,
    user: User,
    given_role_id: int | None,
) -> Identity:
    identity = Identity(
        account_id=user.account_id,
        user_id=user.id,
        provider_name=connection.provider.name,
        issuer=claimed.issuer,
        subject=claimed.subject,
        groups=claimed.groups,
        given_role_id=given_role_id,
    )
    column, message = "subject", "This identity is already linked to a user."
    with errors.conflict_on_unique("identities", column, column, message):
        session.add(identity)
        session.flush()
    return identity


def _clean_name(name: object) -> str | None:
    text = name.strip().replace("\0", "") if isinstance(name, str) else ""
    return text if text and accounts.name_problem(text) is None else None
