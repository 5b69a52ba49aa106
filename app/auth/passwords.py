"""Passwords: hashing with Argon2id, strength rules, and a limit on concurrent hashing.

Keyboards and systems write the same letters as different characters. So passwords are normalized
before hashing (NIST SP 800-63B, section 5.1.1.2), and hashes of earlier releases replaced in time.

Common ones are refused: dictionary words, keyboard runs, and the user's own names. Compared is the
core of a password, without digits and substitutions: `P@ssw0rd1234!` is `password`.
"""

from __future__ import annotations

import re
import string
import threading
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from app import config
from app.accounts.models import User
from app.errors import problem

LONGEST = 128
COMMON = "This password is too common. Choose one that is harder to guess."
# OWASP's second recommended profile: 19 MiB and two passes, about 25 ms.
_hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
# Bounds the memory: each hash in progress takes 19 MiB.
_hash_slots = threading.BoundedSemaphore(4)

CLASSES = {
    "upper": (str.isupper, "an upper-case letter"),
    "lower": (str.islower, "a lower-case letter"),
    "digit": (str.isdigit, "a digit"),
    "special": (
        lambda c: c in string.punctuation or not (c.isalnum() or c.isspace()),
        "a special character",
    ),
}
WORDS_FILE = Path(__file__).with_name("common_passwords.txt")
SHORTEST_WORD = 4
SHORTEST_RUN = 4
SUBSTITUTIONS = tuple(str.maketrans("@430!|$57+1", f"aaeoiisstt{letter}") for letter in "il")
ROWS = (
    *("qwertyuiop", "asdfghjkl", "zxcvbnm", "qwertzuiop", "yxcvbnm"),
    *("azertyuiop", "qsdfghjklm", "wxcvbn", "qazwsxedcrfvtgbyhnujmikolp", "qawsedrftgyhujikolp"),
    *("abcdefghijklmnopqrstuvwxyzabc", "12345678901234567890"),
)
RUNS = (*ROWS, *(row[::-1] for row in ROWS))


def problems(
    password: str, field: str = "password", own: Iterable[str | None] = ()
) -> list[dict[str, object]]:
    """One `password_too_weak` problem for each requirement that the password fails.

    `own` lists the user's address, names and account, which a password must not consist of.
    """
    settings = config.current()
    password = normalize(password)
    missed = []
    if len(password) < settings.password_min_length:
        missed.append(f"at least {settings.password_min_length} characters")
    if len(password) > LONGEST:
        missed.append(f"at most {LONGEST} characters")
    for name in settings.password_require:
        matches, description = CLASSES[name]
        if not any(map(matches, password)):
            missed.append(description)
    messages = [f"A password needs {requirement}." for requirement in missed]
    if settings.password_min_length <= len(password) <= LONGEST and is_common(password, own):
        messages.append(COMMON)
    return [problem(field, "password_too_weak", message) for message in messages]


def problems_for_user(user: User | None, password: str, field: str) -> list[dict[str, object]]:
    """The problems of a new password for this user."""
    own = (user.email, user.name, user.account.slug, user.account.name) if user else ()
    return problems(password, field, own)


def hash(password: str) -> str:
    """The Argon2id hash of a password."""
    with _hash_slots:
        return _hasher.hash(normalize(password))


def normalize(password: str) -> str:
    """The password in the form that is hashed: NFKC, with plain spaces."""
    if len(password) > 4 * LONGEST:  # too long in any form, and slow to normalize
        return password
    composed = unicodedata.normalize("NFKC", password)
    return "".join(" " if unicodedata.category(c) == "Zs" else c for c in composed)


def verify(password: str, password_hash: str | None) -> bool:
    """Whether the password matches; takes the same time if there is no hash."""
    normalized = normalize(password)
    if len(normalized) > LONGEST:
        return False
    if _matches(normalized, password_hash):
        return True
    # Earlier releases hashed passwords as typed.
    return normalized != password and _matches(password, password_hash)


def new_hash(password: str, password_hash: str) -> str | None:
    """The hash to store in place of one that this password matches only as typed, or None."""
    normalized = normalize(password)
    if normalized == password or _matches(normalized, password_hash):
        return None
    return hash(password)


def _matches(password: str, password_hash: str | None) -> bool:
    with _hash_slots:
        try:
            _hasher.verify(password_hash or _dummy(), password)
        except (Argon2Error, InvalidHashError):
            return False
    return password_hash is not None


@lru_cache
def _dummy() -> str:
    return _hasher.hash("a password that nobody has")


def is_common(password: str, own: Iterable[str | None] = ()) -> bool:
    """Whether a password is common; `own` lists the user's address, names and account."""
    text = unicodedata.normalize("NFKC", password).casefold()
    words = _words_in(own)
    return any(_is_weak(core, words) for core in _cores(text))


def _cores(text: str) -> set[str]:
    """Variants of a password without surrounding digits and punctuation, and unsubstituted."""
    trailing = re.sub(r"[\W\d_]+$", "", text)
    ends = {trailing, re.sub(r"^[\W\d_]+", "", trailing)}
    cores = {_letters(end.translate(table)) for end in ends for table in SUBSTITUTIONS}
    cores |= {_letters(text), re.sub(r"\D", "", text) if not _letters(text) else ""}
    return cores - {""}


def _letters(text: str) -> str:
    return re.sub(r"[\W\d_]", "", text)


def _is_weak(core: str, own: set[str]) -> bool:
    unit = core[: (core + core).find(core, 1)]  # the repeated part, or the whole
    if len(set(unit)) <= 2 or (unit != core and len(unit) < SHORTEST_WORD):
        return True
    if unit in _words() or _is_run(core):
        return True
    rest = core
    for word in sorted(own, key=len, reverse=True):
        rest = rest.replace(word, "")
    return rest != core and (len(rest) < SHORTEST_WORD or rest in _words())


def _is_run(core: str) -> bool:
    """Whether it consists only of keyboard or alphabet runs."""
    while core:
        length = max(_run_at_start(core, row) for row in RUNS)
        if length < min(SHORTEST_RUN, len(core)):
            return False
        core = core[length:]
    return True


def _run_at_start(core: str, row: str) -> int:
    start, length = row.find(core[0]), 0
    if start < 0:
        return 0
    while core[length : length + 1] and row[start + length : start + length + 1] == core[length]:
        length += 1
    return length


def _words_in(texts: Iterable[str | None]) -> set[str]:
    words = set[str]()
    for text in texts:
        folded = unicodedata.normalize("NFKC", text or "").casefold()
        local = folded.partition("@")[0]
        words |= {*re.split(r"[\W\d_]+", folded), _letters(local)}
    return {word for word in words if len(word) >= SHORTEST_WORD}


@lru_cache
def _words() -> frozenset[str]:
    lines = WORDS_FILE.read_text().splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))
