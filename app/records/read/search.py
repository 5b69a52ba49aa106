"""Searches of lists: the words that are looked for, the records that have them, and their order.

A search looks at the fields that its caller may filter by. What others have changes nothing: the
order comes from the record alone, and how many were found is counted under the caller's rule.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any
from unicodedata import normalize

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import TSQUERY

from app import db
from app.collections import search_index
from app.collections.access import Access
from app.collections.fields import NumberField
from app.db import filters, words
from app.db.types import Text
from app.errors import Conflict, problem
from app.records.read import cursor
from app.records.read.cursor import CursorPosition, Key, OffsetParts
from app.records.store.reads import MOST, Part
from app.types import JSONObject, cached_property

NAME, HIGHLIGHT, HIGHLIGHTS = "search", "highlight", "_highlights"
TERM = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')
LONGEST, MAX_WORDS = 1000, 50
MAX_RANKED = 10_000
"""With more records found, the newest come first, and their number is not known."""
SHORT = 2000  # bytes of words; longer ones may be kept apart from the record
FIRST_WEIGHT, MOST_COUNTED = 4, 5
RANK, FOUND, HITS = "_rank", "_found", "_hits"
NOT_SEARCHABLE = (
    "No field of this collection is searched. Set options.search on its text fields, or filter."
)
VIEW_NOT_SEARCHABLE = "This is a view: filter it, or search the collection that it reads."
INDEXING = "The words of these records are being stored. Search them in a while."
NO_WORD = "Search for at least one word, beside those that are not to occur."
WINDOW, STEP, CONTEXT, SHOWN = 3000, 2000, 60, 240  # characters
MAX_LOOKED_AT = 500_000
"""The characters in which an answer looks for what it highlights; what comes later has nothing."""


@dataclass(frozen=True)
class Term:
    """Words that follow each other."""

    words: tuple[str, ...]
    is_open: bool = False
    """Whether the last word may be the beginning of another."""

    @property
    def text(self) -> str:
        """It, as stored words have it."""
        text = words.joined(list(self.words))
        return text[:-1] if self.is_open else text


def parse(access: Access, text: str, problems: list[JSONObject]) -> Search | None:
    """What a search asks for; None if it is blank. Adds to `problems`."""
    fields = [name for name in access.definition.searched if name in access.comparable]
    if not fields:
        message = NOT_SEARCHABLE if access.definition.view is None else VIEW_NOT_SEARCHABLE
        problems.append(problem(NAME, "invalid_option", message))
        return None
    if not text.strip():
        return None
    if any(name in fields for name in (access.definition.indexing or {}).get("fields", ())):
        raise Conflict(INDEXING, error="search_indexing")
    if len(text) > LONGEST:
        problems.append(problem(NAME, "too_long", f"At most {LONGEST} characters."))
        return None
    wanted, unwanted = terms(text)
    if not wanted:
        problems.append(problem(NAME, "invalid_option", NO_WORD))
        return None
    if sum(len(term.words) for term in (*wanted, *unwanted)) > MAX_WORDS:
        problems.append(problem(NAME, "too_long", f"At most {MAX_WORDS} words."))
        return None
    wanted, unwanted = (list(dict.fromkeys(terms)) for terms in (wanted, unwanted))
    return Search(access, fields, wanted, unwanted)


def terms(text: str) -> tuple[list[Term], list[Term]]:
    """The terms that a search wants, and those that are not to occur."""
    wanted, unwanted = list[Term](), list[Term]()
    end = len(text.rstrip())
    for match in TERM.finditer(text):
        sign, phrase, word = match.groups()
        parts, is_open = words.sought(word if phrase is None else phrase)
        is_last = match.end() == end and not sign
        is_open = is_open or (phrase is None and (is_last or word.endswith("*")))
        if parts:
            (unwanted if sign else wanted).append(Term(tuple(parts), is_open))
    return wanted, unwanted


@dataclass(frozen=True, eq=False)
class Search:
    """What is looked for, in these fields of the records that an access lets through."""

    access: Access
    fields: Sequence[str]
    wanted: Sequence[Term]
    unwanted: Sequence[Term]
    keys: Sequence[Key] = ()
    """The order behind the rank; without it, records are not ranked."""

    @cached_property
    def _columns(self) -> Sequence[sa.Column[Any]]:
        columns, searched = self.access.definition.table.c, self.access.definition.searched
        return [columns[searched[name]] for name in self.fields]

    @cached_property
    def condition(self) -> sa.ColumnElement[bool]:
        """That a record has every term, each within a field, and none that is not to occur."""
        return sa.and_(*self._are_in_text(self.wanted))

    def _are_in_text(self, wanted: Sequence[Term]) -> Iterator[sa.ColumnElement[bool]]:
        for term in wanted:
            yield sa.or_(*(_has(one, term) for one in self._columns))
        for term in self.unwanted:
            for one in self._columns:
                yield sa.not_(_has(sa.func.coalesce(one, ""), term))

    @cached_property
    def indexed(self) -> Sequence[sa.ColumnElement[bool]]:
        """`condition`, as the index answers it, with what the index does not know."""
        account_id = self.access.caller.account_id
        if account_id is None:  # the account begins indexed words
            return [self.condition]
        # The index knows neither the order of words nor what is not to occur.
        further = self._are_in_text([term for term in self.wanted if term.words[1:]])
        return [*self._in_index(search_index.key_of(account_id)), *further]

    def _in_index(self, key: str) -> Sequence[sa.ColumnElement[bool]]:
        if db.has_one_writer():
            return self._matched(key)
        if len(self._columns) == 1:
            term = " & ".join(_term_on_postgres(key, one) for one in self.wanted)
            return [_at_least(self._columns[0], term)]
        return [
            sa.or_(*(_at_least(one, _term_on_postgres(key, term)) for one in self._columns))
            for term in self.wanted
        ]

    def _matched(self, key: str) -> Sequence[sa.ColumnElement[bool]]:
        table = self.access.definition.table
        full_text = search_index.full_text(table)
        text = " AND ".join(f"({_term_on_sqlite(key, one)})" for one in self.wanted)
        if len(self._columns) < len(self.access.definition.searched):
            names = " ".join(f'"{column.name}"' for column in self._columns)
            text = f"{{{names}}} : ({text})"
        # Not by its number, for which FTS5 would search anew for each record.
        number = filters.without_index(full_text.c.rowid)
        matches: Any = full_text.c[full_text.name].op("MATCH")(sa.literal(text, Text))
        return [matches, table.c[search_index.NUMBER] == number]

    @cached_property
    def rank(self) -> sa.ColumnElement[int]:
        """How well a record fits: how often it has the terms, most of all in the first field."""
        return self._rank_of(self._columns)

    def _rank_of(self, columns: Sequence[Any]) -> sa.ColumnElement[int]:
        least = sa.func.min if db.has_one_writer() else sa.func.least
        parts = [
            least(number, MOST_COUNTED) * (1 if place else FIRST_WEIGHT)
            for place, column in enumerate(columns)
            for term in self.wanted
            for number in _numbers(sa.func.coalesce(column, ""), term)
        ]
        rank: sa.ColumnElement[int] = reduce(add, parts)
        return rank

    @property
    def _reads_once(self) -> bool:
        """Whether what is found is read once, to be counted and to be ranked."""
        # PostgreSQL keeps where long words are; SQLite would copy them.
        return bool(self.keys and self.access.caller.account_id) and not db.has_one_writer()

    def found(self, where: Sequence[Any]) -> sa.CTE:
        """How many records meet the conditions and this search, up to one more than are ranked."""
        table = self.access.definition.table
        values: dict[str, Any] = {"one": sa.literal(1)}
        if self._reads_once:
            # Long texts are ranked only if the records are not too many.
            size = reduce(add, (_length(sa.func.coalesce(one, "")) for one in self._columns))
            values = {RANK: sa.case((size <= SHORT, self.rank))}
            for name, column in zip(self._kept, self._columns, strict=True):
                values[name] = sa.case((size > SHORT, column))
            values |= {key.name: key.expression for key in self.keys}
        hits = sa.select(*(value.label(name) for name, value in values.items()))
        hits = hits.select_from(table).where(*where, *self.indexed).limit(MAX_RANKED + 1)
        return sa.select(sa.func.count().label("number")).select_from(hits.cte(HITS)).cte(FOUND)

    @property
    def _kept(self) -> Sequence[str]:
        """The words that are yet to be ranked; no field begins like this."""
        return [f"_words{n}" for n in range(len(self._columns))]

    def best(self, *, backward: bool = False) -> Sequence[sa.ColumnElement[bool]]:
        """The condition of the records that rank first, or last; as many as a page may have.

        It may be that of all that are found.
        """
        if not self._reads_once:
            return self.indexed
        rank = self._rank_of([sa.column(name, Text) for name in self._kept])
        rank = sa.func.coalesce(sa.column(RANK, sa.Integer), rank)
        keys = [replace(key, expression=sa.column(key.name)) for key in self.keys]
        order: list[Any] = [rank.asc() if backward else rank.desc()]
        order += [key.ordered(backward=backward) for key in keys]
        ids: Any = sa.select(sa.column("id")).select_from(sa.table(HITS)).order_by(*order)
        return [self.access.definition.table.c.id.in_(ids.limit(MOST))]

    def highlights(
        self, rows: Sequence[Mapping[str, Any]], names: Sequence[str]
    ) -> Iterator[JSONObject]:
        """The part of each field's text that has what is searched, as HTML; of some fields.

        Of the texts of all rows, as much is looked at as an answer may take.
        """
        looking, known = _Looking(self.wanted), self.access.definition.fields
        for row in rows:
            db.check_time()
            fields = (name for name in self.fields if name in names and row[name])
            texts = {name: ", ".join(known[name].texts(row[name])) for name in fields}
            found = {name: looking.highlighted(text) for name, text in texts.items()}
            yield {name: text for name, text in found.items() if text is not None}

    @property
    def total(self) -> sa.ColumnElement[int | None]:
        """The number of records that were found; null if they are too many to rank."""
        return sa.case((_few(), NUMBER))


NUMBER: Any = (
    sa.select(sa.column("number", sa.Integer)).select_from(sa.table(FOUND)).scalar_subquery()
)


def _few() -> sa.ColumnElement[bool]:
    few: sa.ColumnElement[bool] = NUMBER <= MAX_RANKED
    return few


def _many() -> sa.ColumnElement[bool]:
    return sa.not_(_few())


def _has(column: Any, term: Term) -> sa.ColumnElement[bool]:
    place = sa.func.instr if db.has_one_writer() else sa.func.strpos
    has: sa.ColumnElement[bool] = place(column, sa.literal(term.text, Text)) > 0
    return has


def _numbers(column: Any, term: Term) -> Iterator[Any]:
    """How often a term occurs; of a beginning also how often as a whole word."""
    length = _length(column)
    for one in [term, replace(term, is_open=False)] if term.is_open else [term]:
        shorter = sa.func.replace(column, sa.literal(one.text, Text), "")
        yield (length - _length(shorter)) // _length_of(one.text)


def _length(text: Any) -> sa.ColumnElement[int]:
    """The characters of a text; on PostgreSQL its bytes, which need not be counted."""
    length = sa.func.length if db.has_one_writer() else sa.func.octet_length
    return length(text, type_=sa.Integer())


def _length_of(text: str) -> int:
    """The same of a constant."""
    return len(text) if db.has_one_writer() else len(text.encode())


def _at_least(column: sa.Column[Any], term: str) -> sa.ColumnElement[bool]:
    query = sa.cast(sa.literal(term, Text), TSQUERY)
    return search_index.terms(column).bool_op("@@")(query)


def _term_on_postgres(key: str, term: Term) -> str:
    # Words have letters, digits and symbols, no quotes.
    parts = [f"'{key}{word}'" for word in term.words]
    return " & ".join(parts) + (":*" if term.is_open else "")


def _term_on_sqlite(key: str, term: Term) -> str:
    parts = [f'"{key}{word}"' for word in term.words]
    return " AND ".join(parts) + (" *" if term.is_open else "")


@dataclass(frozen=True)
class SearchParts:
    """The ranges of a searched list that is read from its start."""

    search: Search
    keys: tuple[Key, ...]
    """The rank first, unless the records are sorted in another way."""

    def __call__(self) -> list[Part]:
        keys = self.keys
        if keys[0].name != RANK:
            return _narrowed(OffsetParts(keys)(), self.search.indexed)
        ranked = Part(self.search.best(), [key.ordered() for key in keys], _few())
        newest = _narrowed(OffsetParts(keys[1:])(), [self.search.condition], _many())
        return [ranked, *newest]


def parts(search: Search, keys: Sequence[Key], walk: CursorPosition) -> list[Part]:
    """The ranges that follow each other from a cursor's position on."""
    if keys[0].name != RANK:
        return _narrowed(cursor.parts(keys, walk), search.indexed)
    newest, position = keys[1:], walk.position
    if position is None:
        best = search.best(backward=walk.backward)
        few = _narrowed(cursor.parts(keys, walk), best, _few())
        many = _narrowed(cursor.parts(newest, walk), [search.condition], _many())
        return [*few, *many]
    if position[0] is None:  # where too many were found to rank them
        after = cursor.parts(newest, replace(walk, position=position[1:]))
        return _narrowed(after, [search.condition])
    return _narrowed(cursor.parts(keys, walk), search.indexed)


def _narrowed(parts: Sequence[Part], where: Sequence[Any], gate: Any = None) -> list[Part]:
    return [Part([*where, *part.where], part.order_by, gate) for part in parts]


def rank_key(search: Search, walk: CursorPosition | None = None) -> Key:
    """The key of the order by rank; a cursor has null of it if too many records were found."""
    position, value = walk.position if walk else None, search.rank
    if position is None:
        value = sa.case((_few(), search.rank))
    elif position[0] is None:
        value = sa.cast(sa.null(), sa.Integer)
    rank = Key.of(NumberField(RANK), search.rank, True, nullable=False)
    return replace(rank, value=value)


class _Looking:
    """Looks for terms in the texts of an answer, up to a number of characters."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.texts = [term.text for term in terms]
        self.left = MAX_LOOKED_AT
        self.open = {term.words[0]: term for term in terms if term.is_open and not term.words[1:]}
        self.open_lengths = sorted({len(word) for word in self.open})
        self.others: dict[str, list[Term]] = {}
        for term in terms:
            if not term.is_open or term.words[1:]:
                self.others.setdefault(term.words[0], []).append(term)

    def highlighted(self, text: str) -> str | None:
        """The first part of a text that has any of the terms, as HTML with these in `<mark>`."""
        if self.left <= 0:
            return None
        text = normalize("NFC", text)
        for start in range(0, min(len(text), words.LONGEST_TEXT), STEP):
            # From a whole word on.
            begin = max(start, text.find(" ", start, start + CONTEXT)) if start else 0
            window = text[begin : start + WINDOW]
            self.left -= len(window)
            if self.left <= 0:
                return None
            marked = words.marked(window)
            if any(text in marked for text in self.texts):
                spans = self._spans(window)
                if spans:
                    return _snippet(text, [(begin + first, begin + last) for first, last in spans])
        return None

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Where a text has the terms, without overlaps, in order; as far as they are shown."""
        found, spans = words.placed(text), list[tuple[int, int]]()
        names = [one.word for one in found]
        for place, one in enumerate(found):
            if spans and one.start >= max(spans[0][0] + SHOWN, spans[0][1]):
                break
            end = max(self._ends(found, names, place), default=0)
            if end and spans and one.start <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(spans[-1][1], end))
            elif end:
                spans.append((one.start, end))
        return spans

    def _ends(
        self, found: Sequence[words.Placed], names: Sequence[str], place: int
    ) -> Iterator[int]:
        """Where the terms end that begin with a word."""
        word = names[place]
        for length in self.open_lengths:
            if length <= len(word) and (beginning := word[:length]) in self.open:
                # Of a pair of letters that one begins, only this one.
                yield found[place].end_of(beginning)
        for term in self.others.get(word, ()):
            last, final = place + len(term.words) - 1, term.words[-1]
            if last >= len(names) or (*names[place:last],) != term.words[:-1]:
                continue
            if names[last] == final or (term.is_open and names[last].startswith(final)):
                yield found[last].end_of(final)


def _snippet(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """A text around the first of the spans, escaped, each span in `<mark>`."""
    start = max(0, spans[0][0] - CONTEXT)
    if start and (space := text.find(" ", start, spans[0][0])) >= 0:
        start = space + 1
    end = min(len(text), max(start + SHOWN, spans[0][1]))
    if end < len(text) and (space := text.rfind(" ", spans[0][1], end)) >= 0:
        end = space
    parts, place = list[str](), start
    for first, last in spans:
        if first < end:
            parts += [html.escape(text[place:first]), "<mark>"]
            parts += [html.escape(text[first : min(last, end)]), "</mark>"]
            place = min(last, end)
    before, after = "... " if start else "", " ..." if end < len(text) else ""
    return f"{before}{''.join(parts)}{html.escape(text[place:end])}{after}"
