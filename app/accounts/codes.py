"""Account codes (`AA0001`) and slugs (contract section 2)."""

from __future__ import annotations

import re
import unicodedata

import sqlalchemy as sa

from app.accounts.models import SYSTEM_CODE, AccountCodeCounter
from app.db import connection
from app.errors import Conflict

CODE = re.compile(r"[A-Za-z]{2}[0-9]{4}")
SLUG = re.compile(r"[a-z][a-z0-9-]*")
SHORTEST_SLUG, LONGEST_SLUG = 3, 32
NUMBERS_PER_PAIR = 9999
RESERVED_PAIR = SYSTEM_CODE[:2]


def code(number: int) -> str:
    """The code of the `number`-th account, counted from 1. Raises Conflict past the last one."""
    pair, digits = divmod(number - 1, NUMBERS_PER_PAIR)
    first, second = divmod(pair, 26)
    letters = chr(65 + first) + chr(65 + second)
    if letters >= RESERVED_PAIR:
        first, second = divmod(pair + 1, 26)
        letters = chr(65 + first) + chr(65 + second)
    if first > 25:
        raise Conflict("Every account code is taken.", error="limit_reached")
    return f"{letters}{digits + 1:04}"


def next_code() -> str:
    """Give out the next code. The counter's row stays locked until the transaction ends."""
    counter = sa.update(AccountCodeCounter).values(given_out=AccountCodeCounter.given_out + 1)
    return code(connection().execute(counter.returning(AccountCodeCounter.given_out)).scalar_one())


def slug_problem(slug: str) -> str | None:
    """Why a text is no slug, or None."""
    if not SHORTEST_SLUG <= len(slug) <= LONGEST_SLUG or not SLUG.fullmatch(slug):
        return (
            f"A slug has {SHORTEST_SLUG} to {LONGEST_SLUG} characters: lower-case letters, digits"
            " and hyphens, a letter first."
        )
    if CODE.fullmatch(slug):
        return "A slug may not look like an account code."
    return None


def slug_from(name: str) -> str:
    """The slug that a name suggests; may still be too short to be one."""
    letters = unicodedata.normalize("NFKD", name.casefold())
    folded = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub(r"[^a-z0-9]+", "-", folded).strip("-")[:LONGEST_SLUG].strip("-")
