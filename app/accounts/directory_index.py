"""The words that the directory finds users by: each word of a field, case and accents folded.

They follow every user that is stored, in the same flush, whoever stores it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper

from app import db
from app.accounts.models import User, UserWord
from app.types import JSONMapping

WORDS: Any = UserWord.__table__
FIELDS = ("name", "email")
ATTRIBUTE = "attributes."
"""Begins the field of an attribute's words."""
INDEXED = (*FIELDS, "attributes")
LONGEST_TEXT, LONGEST_WORD, MAX_WORDS = 1000, 64, 50
# Letters that Unicode does not take for another one with an accent.
SIMPLE = str.maketrans({"\u0131": "i", "ł": "l", "ø": "o", "đ": "d", "æ": "ae", "œ": "oe"})


def words(text: str) -> list[str]:
    """The words of a text without case and accents, each once; of a long text the first ones."""
    folded = unicodedata.normalize("NFKD", text[:LONGEST_TEXT].casefold())
    folded = folded.translate(SIMPLE).casefold()
    bare = "".join(c for c in folded if unicodedata.category(c) != "Mn")
    composed = unicodedata.normalize("NFC", bare)
    spaced = "".join(c if unicodedata.category(c)[0] in "LNM" else " " for c in composed)
    return list(dict.fromkeys(word[:LONGEST_WORD] for word in spaced.split()[:MAX_WORDS]))


def begins_with(term: str) -> sa.ColumnElement[bool]:
    """The condition that an indexed word begins with a term, as a range of the index."""
    return sa.and_(WORDS.c.word >= term, WORDS.c.word < term + "\U0010ffff")


def replace_attributes(account_id: str, user_id: str, values: JSONMapping) -> None:
    """Index the attributes of a user anew, as their names have changed."""
    own = (WORDS.c.account_id == account_id, WORDS.c.user_id == user_id)
    is_one = WORDS.c.field.startswith(ATTRIBUTE, autoescape=True)
    db.connection().execute(sa.delete(WORDS).where(*own, is_one))
    rows = _rows(account_id, user_id, _texts(values))
    if rows:
        db.connection().execute(sa.insert(WORDS), rows)


def _texts(values: JSONMapping) -> dict[str, str]:
    """The texts of attributes by their fields; the choices of a list as one."""
    return {
        ATTRIBUTE + name: " ".join(value) if isinstance(value, list) else value
        for name, value in values.items()
        if isinstance(value, str | list)
    }


def _rows(account_id: str, user_id: str, texts: Mapping[str, str]) -> list[dict[str, str]]:
    own = {"account_id": account_id, "user_id": user_id}
    return [
        {**own, "field": field, "word": word}
        for field, text in texts.items()
        for word in words(text)
    ]


@sa.event.listens_for(User, "after_insert")
def _add(mapper: Mapper[User], connection: sa.Connection, user: User) -> None:
    texts = {field: getattr(user, field) or "" for field in FIELDS}
    rows = _rows(user.account_id, user.id, texts | _texts(user.attributes))
    if rows:
        connection.execute(sa.insert(WORDS), rows)


@sa.event.listens_for(User, "after_update")
def _replace(mapper: Mapper[User], connection: sa.Connection, user: User) -> None:
    state = sa.inspect(user)
    if any(state.attrs[name].history.has_changes() for name in INDEXED):
        _remove(mapper, connection, user)
        _add(mapper, connection, user)


@sa.event.listens_for(User, "after_delete")
def _remove(mapper: Mapper[User], connection: sa.Connection, user: User) -> None:
    own = (WORDS.c.account_id == user.account_id, WORDS.c.user_id == user.id)
    connection.execute(sa.delete(WORDS).where(*own))
