"""Passwords that everybody tries first: common words, keyboard runs, and names of the user's own.

What is compared is what is left of a password without its disguise: `P@ssw0rd1234!` is `password`.
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
DISGUISES = tuple(str.maketrans("@430!|$57+1", f"aaeoiisstt{one}") for one in "il")
ROWS = (
    *("qwertyuiop", "asdfghjkl", "zxcvbnm", "qwertzuiop", "yxcvbnm"),
    *("azertyuiop", "qsdfghjklm", "wxcvbn", "qazwsxedcrfvtgbyhnujmikolp", "qawsedrftgyhujikolp"),
    *("abcdefghijklmnopqrstuvwxyzabc", "12345678901234567890"),
)
RUNS = (*ROWS, *(row[::-1] for row in ROWS))


def is_common(password: str, own: Iterable[str | None] = ()) -> bool:
    """Whether a password is one of those that are tried first.

    `own`: what belongs to its user, such as the address and the account's name.
    """
    text = unicodedata.normalize("NFKC", password).casefold()
    words = _words_in(own)
    return any(_is_weak(core, words) for core in _cores(text))


def _cores(text: str) -> set[str]:
    """What a password may be without digits and punctuation around it, and instead of letters."""
    trailing = re.sub(r"[\W\d_]+$", "", text)
    ends = {trailing, re.sub(r"^[\W\d_]+", "", trailing)}
    cores = {_letters(end.translate(disguise)) for end in ends for disguise in DISGUISES}
    cores |= {_letters(text), re.sub(r"\D", "", text) if not _letters(text) else ""}
    return cores - {""}


def _letters(text: str) -> str:
    return re.sub(r"[\W\d_]", "", text)


def _is_weak(core: str, own: set[str]) -> bool:
    unit = core[: (core + core).find(core, 1)]  # what it repeats; itself where it repeats nothing
    if len(set(unit)) <= 2 or (unit != core and len(unit) < SHORTEST_WORD):
        return True
    if unit in _words() or _is_run(core):
        return True
    rest = core
    for word in sorted(own, key=len, reverse=True):
        rest = rest.replace(word, "")
    return rest != core and (len(rest) < SHORTEST_WORD or rest in _words())


def _is_run(core: str) -> bool:
    """Whether it is made of neighbours on the keyboard or in the alphabet, and nothing else."""
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
    found = set[str]()
    for text in texts:
        folded = unicodedata.normalize("NFKC", text or "").casefold()
        local = folded.partition("@")[0]
        found |= {*re.split(r"[\W\d_]+", folded), _letters(local)}
    return {word for word in found if len(word) >= SHORTEST_WORD}


@lru_cache
def _words() -> frozenset[str]:
    lines = WORDS_FILE.read_text().splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))
