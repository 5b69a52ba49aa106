"""Passwords: Argon2id, what makes one strong enough, and a bound on the memory of hashing."""

from __future__ import annotations

import string
import threading
from functools import lru_cache

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from app import config
from app.errors import problem

LONGEST = 128
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


def problems(password: str, field: str = "password") -> list[dict[str, object]]:
    """Every requirement that the password misses, as `password_too_weak`."""
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
    return [
        problem(field, "password_too_weak", f"A password needs {requirement}.")
        for requirement in missed
    ]


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
