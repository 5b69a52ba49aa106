"""The directory: what the users of an account see of each other, as the operator decides.

It is a setting of the instance: a rule over the caller, and the fields that it opens. Who does not
pass the rule sees themself alone. What is not shown is not searched, sorted by or told otherwise.

Users are found by words: each word of a field, case and accents folded. The words follow every user
that is stored, in the same flush, whoever stores it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from itsdangerous import BadSignature
from sqlalchemy.orm import Mapper

from app import clock, crypto, db, rules
from app.accounts import attributes, names
from app.accounts.attributes import Kind, Level
from app.accounts.models import InstanceSetting, Role, User, UserKind, UserWord
from app.accounts.names import Name, Use
from app.context import shown_accounts
from app.db import versioned_cache, words
from app.db.versioned_cache import VersionCheck
from app.errors import InvalidValues, problem
from app.rules import named
from app.types import JSONMapping, JSONObject, cached_property

NAME = "directory"
COLUMNS: Mapping[str, Any] = {
    "name": User.name,
    "email": User.email,
    "role": Role.name,
    "is_active": User.is_active,
}
"""What may be shown beside the id, besides attributes."""
UNINDEXED = ("role", "is_active")
SCOPE = rules.Scope({})
ID = re.compile(r"[0-9A-Fa-f-]{36}")
PURPOSE = "directory"
DEFAULT_LIMIT, MAX_LIMIT, MAX_IDS, MAX_TERMS = 30, 100, 100, 10
WORDS: Any = UserWord.__table__
FIELDS = ("name", "email")
ATTRIBUTE = "attributes."
"""Begins the field of an attribute's words."""
INDEXED = (*FIELDS, "attributes")
LONGEST_TEXT, LONGEST_WORD, MAX_WORDS = 1000, 64, 50


@dataclass(frozen=True)
class Settings:
    """The rule over callers who see others, and the fields that they see beside the id."""

    rule: str
    fields: tuple[str, ...]
    attributes: tuple[str, ...]
    """The names of the shown attributes, which all members see."""
    version_checks: tuple[VersionCheck, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        """The fields that are shown, but attributes that no longer are for members."""
        attributes = {ATTRIBUTE + name for name in self.attributes}
        return tuple(name for name in self.fields if name in COLUMNS or name in attributes)

    @cached_property
    def _condition(self) -> rules.Node:
        return rules.condition(self.rule, rules.Scope({}, is_stored=True))

    def lets_in(self, caller: rules.Subject) -> bool:
        """Whether a caller sees others."""
        if caller.is_superadmin:
            return True
        return rules.holds(self._condition, rules.Context(subject=caller, now=clock.now()))

    @property
    def warnings(self) -> list[JSONObject]:
        """The groups of the rule that no account has, and attributes that users set themselves."""
        return [one | {"field": "rule"} for one in names.warnings(self.rule)]


def settings() -> Settings:
    """The settings, from a cache: what relies on them checks their versions."""
    return versioned_cache.cache("directory").get(NAME, current) or current()


def current() -> Settings:
    """The settings as they are stored."""
    query = sa.select(InstanceSetting).where(InstanceSetting.id == NAME)
    return _settings(db.db.session.scalars(query.execution_options(populate_existing=True)).one())


def _settings(row: InstanceSetting) -> Settings:
    fields, schema = tuple(row.value["fields"]), attributes.load(Kind.USERS)
    shown = [
        name
        for name, one in schema.by_name.items()
        if ATTRIBUTE + name in fields and one.may_see(Level.MEMBERS)
    ]
    versions = {NAME: row.version, Kind.USERS.setting: schema.version}
    table = InstanceSetting.__tablename__
    checks = tuple(VersionCheck(table, (name,), version) for name, version in versions.items())
    return Settings(row.value["rule"], fields, tuple(shown), checks)


def shown_fields(caller: rules.Subject) -> Sequence[str] | None:
    """The fields of others that a caller sees beside their ids; None if no others at all.

    From a cache: what relies on them checks the versions of `settings()`.
    """
    known = settings()
    return known.shown if known.lets_in(caller) else None


def check(body: JSONMapping, former: str | None = None, former_fields: Sequence[str] = ()) -> None:
    """Check new settings. Raises InvalidValues with all problems.

    `former`, the stored rule, passes: a role that it names may have gone since. So do the stored
    fields.
    """
    problems: list[JSONObject] = []
    rule = body.get("rule")
    if rule is not None and rule != former:
        try:
            rules.condition(rule, SCOPE)
        except rules.RuleError as error:
            problems.append(problem("rule", "rule_invalid", str(error), position=error.position))
        else:
            unknown = names.unknown_problem(rule)
            problems += [unknown | {"field": "rule"}] if unknown else []
    schema = attributes.expected(Kind.USERS)
    visible = [
        ATTRIBUTE + name for name, one in schema.by_name.items() if one.may_see(Level.MEMBERS)
    ]
    for index, field in enumerate(body.get("fields", ())):
        if field not in (*COLUMNS, *visible) and field not in former_fields:
            message = f"Choose one of {', '.join((*COLUMNS, *visible))}."
            problems.append(problem(f"fields[{index}]", "invalid_option", message))
    if problems:
        raise InvalidValues(problems)


def change(body: JSONMapping) -> Settings:
    """Change the settings; what is absent stays. Raises InvalidValues."""
    with db.transaction() as session:
        query = sa.select(InstanceSetting).where(InstanceSetting.id == NAME).with_for_update()
        row = session.scalars(query.execution_options(populate_existing=True)).one()
        check(body, row.value["rule"], row.value["fields"])
        value = {**row.value, **body}
        value["fields"] = list(dict.fromkeys(value["fields"]))
        if value != row.value:
            row.value, row.version = value, row.version + 1
        session.flush()
        return _settings(row)


@names.place
def in_directory(name: Name) -> Iterator[Use]:
    """The rule of the directory."""
    stored = current()
    if named.names(stored.rule, name.kind, name.value):
        yield Use("directory", {"rule": stored.rule}, change)
    shown = ATTRIBUTE + name.value
    if name.kind == named.ATTRIBUTE and shown in stored.fields:

        def follow(texts: Mapping[str, str]) -> None:
            new = ATTRIBUTE + texts["fields"]
            change({"fields": [new if one == shown else one for one in current().fields]})

        yield Use("directory", {"fields": name.value}, follow, are_names=True)


@dataclass(frozen=True)
class Query:
    """What is looked for, and the part of it that is answered."""

    search: str = ""
    ids: Sequence[str] | None = None
    limit: int | None = None
    cursor: str | None = None


def page(
    account_id: str, caller: rules.Subject, checks: Iterable[VersionCheck], query: Query
) -> tuple[list[JSONObject], str | None]:
    """The people of an account whom a caller sees, each with the shown fields, and a cursor.

    By name, if that is shown. Who is deactivated is found by `ids` alone. `checks` are the versions
    of what says who the caller is. Raises Stale, and InvalidValues.
    """
    known = settings()
    is_person = User.kind == UserKind.PERSON
    mine = (User.account_id == account_id, User.leaving_at.is_(None), is_person)
    conditions = [*mine, *_found(account_id, known, query)]
    if query.ids is None:
        conditions.append(User.is_active)
    if not known.lets_in(caller):
        conditions.append(User.id == caller.id)
    key: Sequence[Any] = (User.id,)
    if "name" in known.shown:
        # Those without a name come last.
        key = (sa.func.coalesce(sa.func.lower(User.name), "\U0010ffff"), User.id)
    conditions += _after(account_id, key, query.cursor)
    limit = query.limit or (DEFAULT_LIMIT if query.ids is None else MAX_LIMIT)
    plain = [name for name in known.shown if name in COLUMNS]
    columns = [COLUMNS[name].label(name) for name in plain]
    columns += [User.attributes] if known.attributes else []
    versions = versioned_cache.combine(*checks, *known.version_checks).within(account_id)
    statement = (
        sa.select(*versions.columns, User.id, *columns, *key)
        .join(Role, Role.id == User.role_id)
        .where(*conditions)
        .order_by(*key)
        .limit(limit + 1)
    )
    rows = db.connection().execute(statement, versions.parameters).all()
    width = len(versions.tables)
    if rows:
        versions.check(rows[0][:width])
    else:
        versions.verify()
    shown_accounts.note(account_id)
    shown = ("id", *plain, *(["attributes"] if known.attributes else ()))
    items = [dict(zip(shown, row[width:], strict=False)) for row in rows[:limit]]
    for item in items if known.attributes else ():
        values = item["attributes"]
        item["attributes"] = {one: values[one] for one in known.attributes if one in values}
    if len(rows) <= limit:
        return items, None
    position = list(rows[limit - 1][-len(key) :])
    return items, crypto.sign([account_id, position], PURPOSE)


def _found(account_id: str, known: Settings, query: Query) -> Iterator[Any]:
    """The conditions of a search: each word of it begins a word of a shown field."""
    if query.ids is not None:
        yield User.id.in_([one.lower() for one in query.ids if ID.fullmatch(one)])
    if not query.search.strip():
        return
    terms = index_words(query.search)
    if len(terms) > MAX_TERMS:
        message = f"Search for at most {MAX_TERMS} words."
        raise InvalidValues([problem("search", "too_long", message)])
    if not terms:
        yield sa.false()
    roles = _roles() if "role" in known.shown else {}
    fields = [name for name in known.shown if name not in UNINDEXED]
    table = WORDS
    for term in terms:
        indexed = sa.select(table.c.user_id).where(
            table.c.account_id == account_id,
            begins_with(term),
            table.c.field.in_(fields),
        )
        holding = [id for id, words in roles.items() if any(w.startswith(term) for w in words)]
        yield sa.or_(User.id.in_(indexed), User.role_id.in_(holding))


def _roles() -> Mapping[int, Sequence[str]]:
    rows = db.connection().execute(sa.select(Role.id, Role.name))
    return {row.id: index_words(row.name) for row in rows}


def _after(account_id: str, key: Sequence[Any], cursor: str | None) -> Iterator[Any]:
    if not cursor:
        return
    try:
        signed_account, position = crypto.unsign(cursor, PURPOSE)
    except BadSignature:
        signed_account, position = "", ()
    # What is shown, and with it the order, may have changed since.
    if signed_account != account_id or len(position) != len(key):
        raise InvalidValues(
            [problem("cursor", "invalid_option", "This cursor is of another list.")]
        )
    *first, last = zip(key, position, strict=True)
    condition: Any = last[0] > last[1]
    for expression, value in reversed(first):
        condition = sa.or_(expression > value, sa.and_(expression == value, condition))
    yield condition


def index_words(text: str) -> list[str]:
    """The words of a text without case and accents, each once; of a long text the first ones."""
    folded = words.folded(text[:LONGEST_TEXT])
    spaced = "".join(c if unicodedata.category(c)[0] in "LNM" else " " for c in folded)
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
        for word in index_words(text)
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
