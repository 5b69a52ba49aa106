"""Passwords: Argon2id, what makes one strong enough, and a bound on the memory of hashing."""

from __future__ import annotations

import string
import threading
from collections.abc import Iterable
from functools import lru_cache

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from app import config
from app.accounts.models import User
from app.auth import common_passwords
from app.errors import problem

LONGEST = 128
COMMON = "This password is too common: choose one that nobody would try first."
# OWASP's second recommended profile: 19 MiB and two passes, about 25 ms.
_hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
_places = threading.BoundedSemaphore(4)

CLASSES = {
    "upper": (str.isupper, "an upper-case letter"),
    "lower": (str.islower, "a lower-case letter"),
    "digit": (str.isdigit, "a digit"),
    "special": (
        lambda c: c in string.punctuation or not (c.isalnum() or c.isspace()),
        "a special character",
    ),
}


def problems(
    password: str, field: str = "password", own: Iterable[str | None] = ()
) -> list[dict[str, object]]:
    """Every requirement that the password misses, as `password_too_weak`.

    `own`: the address, names and the account of its user, which make no password.
    """
    settings = config.current()
    missed = []
    if len(password) < settings.password_min_length:
        missed.append(f"at least {settings.password_min_length} characters")
    if len(password) > LONGEST:
        missed.append(f"at most {LONGEST} characters")
    for name in settings.password_require:
        matches, wording = CLASSES[name]
        if not any(map(matches, password)):
            missed.append(f"at least one of: {wording}")
    messages = [f"A password needs {requirement}." for requirement in missed]
    if settings.password_min_length <= len(password) <= LONGEST and common_passwords.is_common(
        password, own
    ):
        messages.append(COMMON)
    return [problem(field, "password_too_weak", message) for message in messages]


def problems_of(user: User | None, password: str, field: str) -> list[dict[str, object]]:
    """The same for a new password of a user, if there is one."""
    own = (user.email, user.name, user.account.slug, user.account.name) if user else ()
    return problems(password, field, own)


def hash(password: str) -> str:
    """The Argon2id hash to store."""
    with _places:
        return _hasher.hash(password)


def verify(password: str, password_hash: str | None) -> bool:
    """Whether the password fits; takes the same time where there is no hash to compare with."""
    if len(password) > LONGEST:
        return False
    with _places:
        try:
            _hasher.verify(password_hash or _dummy(), password)
        except (Argon2Error, InvalidHashError):
            return False
    return password_hash is not None


@lru_cache
def _dummy() -> str:
    return _hasher.hash("a password that nobody has")
