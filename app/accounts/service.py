"""Creating accounts and users, without regard to the caller; account codes, deleted addresses.

The addresses of deleted users do not come back by a provider or a domain by themselves: an admin
lets them in by an invitation or by creating the user, the directory by SCIM.
"""

from __future__ import annotations

import hashlib
import unicodedata
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from email_validator import EmailNotValidError, validate_email
from idna import valid_contextj
from sqlalchemy.exc import InvalidRequestError

from app import clock, db, events, rules
from app.accounts.models import (
    ADMIN,
    PII_GROUP,
    SYSTEM_ACCOUNT_ID,
    SYSTEM_CODE,
    Account,
    AccountCodeCounter,
    DeletedAddress,
    Group,
    GroupMember,
    Role,
    User,
    name_key,
)
from app.accounts.types import Problem
from app.db import connection, errors
from app.errors import Conflict, InvalidValues, NotFound, problem

LONGEST_EMAIL = 254
LONGEST_LOCAL_PART = 64
"""Bytes before the @, as mail servers take them (RFC 5321, section 4.5.3.1.1)."""
LONGEST_NAME = 200
CONTROL = ("Cc", "Cf", "Zl", "Zp")
JOINERS = "\u200c\u200d"
VARIATION_SELECTOR = "\ufe0f"
NUMBERS_PER_PAIR = 9999
RESERVED_PAIR = SYSTEM_CODE[:2]
TABLE: Any = DeletedAddress.__table__


def create_account(
    name: str, slug: str | None, *, slug_field: str = "account_slug", template: str | None = None
) -> Account:
    """Create an account with its `pii_access` group, filled by a template.

    Without a slug, its code stands in. Raises Conflict if the slug is taken, or the template has a
    fault.
    """
    with db.transaction() as session:
        code = next_code()
        account = Account(account_code=code, slug=slug or code.lower(), name=name)
        with errors.conflict_on_unique("accounts", "slug", slug_field, "This slug is taken."):
            session.add(account)
            session.flush()
        session.add(
            Group(
                account_id=account.id,
                name=PII_GROUP,
                description="Sees personal data unmasked.",
            )
        )
        session.flush()
        events.publish(events.AccountCreated(account.id, template))
        return account


def get_for_update(account_id: str) -> Account | None:
    """The account as stored now, locked until the transaction ends."""
    # FOR NO KEY UPDATE: inserts that reference the account are not blocked.
    query = sa.select(Account).where(Account.id == account_id.lower())
    locking = query.with_for_update(key_share=True)
    return db.db.session.scalar(locking.execution_options(populate_existing=True))


def bump_version(user: User) -> None:
    """Increment a user's version, which invalidates cached principals.

    Raises NotFound if the user was deleted concurrently.
    """
    # Locks the row first: two increments from the same version would lose one.
    session = db.db.session
    session.flush()
    try:
        session.refresh(user, ["version"], with_for_update={"of": User, "key_share": True})
    except InvalidRequestError as error:  # the row is gone
        raise NotFound("This user no longer exists.") from error
    user.version += 1


def create_user(
    account_id: str,
    *,
    email: str,
    password_hash: str | None,
    role: str,
    name: str | None = None,
    **columns: object,
) -> User:
    """Create a user, unverified by default. Raises Conflict if the address is taken.

    `columns` sets further columns, such as the id if the caller must know it beforehand.
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
            **columns,
        )
        with errors.conflict_on_unique(
            "users", "email_key", "email", "This email address is taken."
        ):
            session.add(user)
            session.flush()
        forget_deleted(account_id, user.email_key)
        session.refresh(user, ["account", "role", "groups"])
        return user


def join_group(user: User, name: str) -> None:
    """Add a user to the group with this name in the user's account."""
    with db.transaction() as session:
        conditions = (Group.account_id == user.account_id, Group.name == name)
        group_id = session.scalars(sa.select(Group.id).where(*conditions)).one()
        member = GroupMember(account_id=user.account_id, group_id=group_id, user_id=user.id)
        session.add(member)
        bump_version(user)
        session.flush()
        session.refresh(user, ["groups"])


def verify_email(user: User) -> None:
    """Mark the address verified by its owner.

    For an unverified user it first ends all sessions, tokens and keys: somebody else may have
    created them under this address.
    """
    with db.transaction():
        if not user.email_verified:
            bump_version(user)  # first: locks the user, so nothing new appears meanwhile
            events.publish(events.AddressVerified(user.account_id, user.id))
        mark_verified(user)


def mark_verified(user: User) -> None:
    """Mark the address verified; existing sessions, tokens and keys stay."""
    with db.transaction():
        user.email_verified, user.email_verified_at = True, clock.now()


def has_superadmin() -> bool:
    """Whether the system account has a user."""
    members = sa.select(User.id).where(User.account_id == SYSTEM_ACCOUNT_ID).limit(1)
    return db.db.session.scalar(members) is not None


def first_superadmin() -> User | None:
    """The oldest superadmin who may sign in."""
    members = sa.select(User).where(User.account_id == SYSTEM_ACCOUNT_ID).order_by(User.id)
    return next(
        (user for user in db.db.session.scalars(members.limit(100)) if user.may_sign_in), None
    )


def create_superadmin(email: str, password_hash: str, *, pii_access: bool = False) -> User:
    """Create a verified superadmin."""
    with db.transaction():
        user = create_user(SYSTEM_ACCOUNT_ID, email=email, password_hash=password_hash, role=ADMIN)
        mark_verified(user)
        if pii_access:
            join_group(user, PII_GROUP)
        return user


@lru_cache(1024)
def email_key(email: str) -> str:
    """The normalized form of an email address, equal for all spellings of a mailbox."""
    # PostgreSQL rejects NUL, and no address contains the replacement character.
    email = email.strip().replace("\0", "\ufffd")
    try:
        if len(email) > LONGEST_EMAIL:
            raise EmailNotValidError
        email = validate_email(email, check_deliverability=False).normalized
    except ValueError:  # not an address: compare it as text
        email = rules.composed(email)
    return email.lower()


def domain_key(domain: str) -> str:
    """The normalized form of a domain name, in ASCII."""
    domain = domain.strip().lower()
    try:
        if len(domain) > LONGEST_EMAIL:
            raise EmailNotValidError
        return str(validate_email(f"x@{domain}", check_deliverability=False).ascii_domain)
    except ValueError:  # not a mail domain: compare it as text
        return domain


def email_problem(email: str, field: str = "email") -> Problem | None:
    """The validation problem of an email address, or None."""
    if not is_email(email):
        return problem(field, "invalid_email", "Not a valid email address.")
    return None


def name_problem(name: str, field: str = "name") -> Problem | None:
    """The validation problem of a display name, or None."""
    if len(name) > LONGEST_NAME:
        return problem(field, "too_long", "This name is too long.")
    # Names appear in mails and on pages, where a line break could pass as our own text, and an
    # invisible character could turn the line around or make two names look the same.
    if any(
        unicodedata.category(character) in CONTROL and not _joins(name, position)
        for position, character in enumerate(name)
    ):
        message = "A name must be one line without control characters and invisible characters."
        return problem(field, "name_invalid", message)
    if "=?" in name:
        message = 'A name cannot contain "=?", which mail programs decode.'
        return problem(field, "name_invalid", message)
    return None


def _joins(name: str, position: int) -> bool:
    """Whether a character is a joiner where its script or an emoji needs one.

    As in domain names (RFC 5892, A.1 and A.2), and between any two Arabic letters: in Persian,
    people also type a non-joiner where it changes nothing.
    """
    if name[position] not in JOINERS or not 0 < position < len(name) - 1:
        return False
    before, after = name[position - 1], name[position + 1]
    if all(unicodedata.name(neighbour, "").startswith("ARABIC") for neighbour in (before, after)):
        return True
    if unicodedata.category(after) == "So":
        return before == VARIATION_SELECTOR or unicodedata.category(before) in ("So", "Sk")
    return valid_contextj(name, position)


def label(name: str) -> str:
    """The stripped name of a role or group. Raises InvalidValues."""
    name = rules.composed(name.strip())
    if wrong := label_problem(name):
        raise InvalidValues([wrong])
    return name


def label_problem(name: str, field: str = "name") -> Problem | None:
    """The validation problem of a required name, or None."""
    if not name_key(name).strip():
        return problem(field, "name_invalid", "A name needs at least one visible character.")
    return name_problem(name, field)


def is_email(text: str) -> bool:
    """Whether a text is an email address in a domain with a dot; makes no DNS query."""
    if len(text) > LONGEST_EMAIL:  # first: validation is slower than linear
        return False
    if len(text.rpartition("@")[0].strip().encode()) > LONGEST_LOCAL_PART:
        return False
    try:
        validate_email(text, check_deliverability=False)
    except EmailNotValidError:
        return False
    # Mail clients decode "=?" as an encoded word, which could display any name.
    return "=?" not in text


def account_code(number: int) -> str:
    """The code of the account with this number, from 1. Raises Conflict past the last code."""
    pair, digits = divmod(number - 1, NUMBERS_PER_PAIR)
    first, second = divmod(pair, 26)
    letters = chr(65 + first) + chr(65 + second)
    if letters >= RESERVED_PAIR:
        first, second = divmod(pair + 1, 26)
        letters = chr(65 + first) + chr(65 + second)
    if first > 25:
        raise Conflict("All account codes are in use.", error="limit_reached")
    return f"{letters}{digits + 1:04}"


def next_code() -> str:
    """Allocate the next code. The counter row stays locked until the transaction ends."""
    counter = sa.update(AccountCodeCounter).values(given_out=AccountCodeCounter.given_out + 1)
    return account_code(
        connection().execute(counter.returning(AccountCodeCounter.given_out)).scalar_one()
    )


def remember_deleted(account_id: str, email_key: str) -> None:
    """Remember the address of a user that is deleted, in the open transaction."""
    db.db.session.merge(DeletedAddress(**_deleted_key(account_id, email_key)))


def forget_deleted(account_id: str, email_key: str) -> None:
    """Forget an address, as it has a user again, in the open transaction."""
    own = (TABLE.c[name] == value for name, value in _deleted_key(account_id, email_key).items())
    db.db.session.execute(sa.delete(TABLE).where(*own))


def was_deleted(account_id: str, email_key: str) -> bool:
    """Whether a user with this address was deleted."""
    row = db.db.session.get(DeletedAddress, tuple(_deleted_key(account_id, email_key).values()))
    return row is not None


def _deleted_key(account_id: str, email_key: str) -> dict[str, str]:
    # With the account's id, or the hashes of two accounts could be compared.
    digest = hashlib.sha256(f"{account_id}\n{email_key}".encode()).hexdigest()
    return {"account_id": account_id, "email_hash": digest}


@events.subscribe(events.AccountClosed)
def _forget_account(event: events.AccountClosed) -> None:
    db.db.session.execute(sa.delete(TABLE).where(TABLE.c.account_id == event.account_id))
