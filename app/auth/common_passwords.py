"""Common passwords: dictionary words, keyboard runs, and the user's own names.

Compares the core of a password, without digits and substitutions: `P@ssw0rd1234!` is `password`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

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
