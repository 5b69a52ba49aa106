"""Making accounts and users; nothing here knows who asks."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from email_validator import EmailNotValidError, validate_email
from sqlalchemy.exc import InvalidRequestError

from app import clock, db, events
from app.accounts import codes
from app.accounts.models import (
    ADMIN,
    PII_GROUP,
    SYSTEM_ACCOUNT_ID,
    Account,
    Group,
    GroupMember,
    Role,
    User,
    name_key,
)
from app.db import errors
from app.errors import InvalidValues, NotFound, problem

LONGEST_EMAIL = 254
LONGEST_NAME = 200
CONTROL = ("Cc", "Zl", "Zp")


def create_account(name: str, slug: str, *, slug_field: str = "account_slug") -> Account:
    """A new account with its `pii_access` group. Raises Conflict when the slug is taken."""
    with db.transaction() as session:
        account = Account(account_code=codes.next_code(), slug=slug, name=name)
        with errors.conflict_on_unique("accounts", "slug", slug_field, "This slug is taken."):
            session.add(account)
            session.flush()
        session.add(_pii_group(account.id))
        session.flush()
        return account


def locked(account_id: str) -> Account | None:
    """An account as it is, kept from other changes until the transaction ends."""
    # References to the account may still be made: only its key is not to change.
    chosen = sa.select(Account).where(Account.id == account_id.lower())
    alone = chosen.with_for_update(key_share=True)
    return db.db.session.scalar(alone.execution_options(populate_existing=True))


def outdate(user: User) -> None:
    """Let everybody read a user anew, however many change it at the same moment.

    Raises NotFound for one who was deleted meanwhile.
    """
    # Of two that count up from the same version one would be lost, and a cache never told.
    session = db.db.session
    session.flush()
    try:
        session.refresh(user, ["version"], with_for_update={"of": User, "key_share": True})
    except InvalidRequestError as error:  # it finds no row
        raise NotFound("There is no such user any more.") from error
    user.version += 1


def create_user(
    account_id: str,
    *,
    email: str,
    password_hash: str | None,
    role: str,
    name: str | None = None,
    **born: Any,
) -> User:
    """A new user, unverified unless `born` says so. Raises Conflict when the address is taken.

    `born` may also give the new row's id and moment, for who must know them beforehand.
    """
    with db.transaction() as session:
        role_id = session.scalars(sa.select(Role.id).where(Role.name == role)).one()
        user = User(
            account_id=account_id,
            email=email,
            email_key=email_key(email),
            name=name,
            password_hash=password_hash,
            role_id=role_id,
            **born,
        )
        with errors.conflict_on_unique("users", "email_key", "email", "This address is taken."):
            session.add(user)
            session.flush()
        session.refresh(user, ["account", "role", "groups"])
        return user


def join_group(user: User, name: str) -> None:
    """Put a user into a group of the own account."""
    with db.transaction() as session:
        mine = (Group.account_id == user.account_id, Group.name == name)
        group_id = session.scalars(sa.select(Group.id).where(*mine)).one()
        member = GroupMember(account_id=user.account_id, group_id=group_id, user_id=user.id)
        session.add(member)
        outdate(user)
        session.flush()
        session.refresh(user, ["groups"])


def prove(user: User) -> None:
    """Note that a mailbox's owner proved the user's address; what was begun under it ends."""
    with db.transaction():
        if not user.email_verified:
            outdate(user)  # first: what others begin in the user's name was waited for, or waits
            events.publish(events.AddressVerified(user.account_id, user.id))
        mark_verified(user)


def mark_verified(user: User) -> None:
    """Note that the user's address is proved, or taken for it; whoever came first stays."""
    with db.transaction():
        user.email_verified, user.email_verified_at = True, clock.now()


def has_superadmin() -> bool:
    """Whether anybody belongs to the system account."""
    members = sa.select(User.id).where(User.account_id == SYSTEM_ACCOUNT_ID).limit(1)
    return db.db.session.scalar(members) is not None


def create_superadmin(email: str, password_hash: str, *, pii_access: bool = False) -> User:
    """A verified superadmin."""
    with db.transaction():
        user = create_user(SYSTEM_ACCOUNT_ID, email=email, password_hash=password_hash, role=ADMIN)
        mark_verified(user)
        if pii_access:
            join_group(user, PII_GROUP)
        return user


@lru_cache(1024)
def email_key(email: str) -> str:
    """The form in which addresses are compared: one for all spellings of a mailbox."""
    # PostgreSQL takes no NUL, and no address has what stands for it.
    email = email.strip().replace("\0", "\ufffd")
    try:
        if len(email) > LONGEST_EMAIL:
            raise EmailNotValidError
        email = validate_email(email, check_deliverability=False).normalized
    except ValueError:  # no address, and no more than text
        email = unicodedata.normalize("NFC", email)
    return email.lower()


def domain_key(domain: str) -> str:
    """The form in which domains are compared: one for all spellings, in ASCII."""
    domain = domain.strip().lower()
    try:
        if len(domain) > LONGEST_EMAIL:
            raise EmailNotValidError
        return str(validate_email(f"x@{domain}", check_deliverability=False).ascii_domain)
    except ValueError:  # no domain of addresses, and no more than text
        return domain


def email_problem(email: str, field: str = "email") -> dict[str, object] | None:
    """Why a text is no e-mail address, or None."""
    if not is_email(email):
        return problem(field, "invalid_email", "This is not an e-mail address.")
    return None


def name_problem(name: str, field: str = "name") -> dict[str, object] | None:
    """Why a text is no display name, or None."""
    if len(name) > LONGEST_NAME:
        return problem(field, "too_long", "This name is too long.")
    # It stands in mails and on pages, where a line break could pass for something of ours.
    if any(unicodedata.category(character) in CONTROL for character in name):
        return problem(field, "name_invalid", "A name is one line without control characters.")
    return None


def label(name: str) -> str:
    """A role's or group's name without the blanks around it. Raises InvalidValues."""
    name = name.strip()
    if wrong := label_problem(name):
        raise InvalidValues([wrong])
    return name


def label_problem(name: str, field: str = "name") -> dict[str, object] | None:
    """Why a text is no name of what must have one, or None."""
    if not name_key(name).strip():
        return problem(field, "name_invalid", "A name needs something that can be read.")
    return name_problem(name, field)


def is_email(text: str) -> bool:
    """Whether a text is an e-mail address in a domain with a dot; nothing is looked up."""
    if len(text) > LONGEST_EMAIL:  # first: the validator's time grows faster than the text
        return False
    try:
        validate_email(text, check_deliverability=False)
    except EmailNotValidError:
        return False
    # Readers of mail's headers take what begins so for another text, which may name anybody.
    return "=?" not in text


def _pii_group(account_id: str) -> Group:
    return Group(account_id=account_id, name=PII_GROUP, description="Sees personal data unmasked.")
