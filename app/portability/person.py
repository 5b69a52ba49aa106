"""What is held of a person, for themself and for admins of the account, as far as they may see it.

It is read in pieces as it is sent. Records are shown as their view rule and field rights show them
to the caller; of the others admins get the ids, and the person gets the number. Secrets are left
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from app import clock, db
from app.accounts import attributes, users
from app.accounts.attributes import Kind, Level
from app.accounts.models import User
from app.audit import sealing as changes
from app.audit.append import HIDDEN
from app.audit.entries import CHANGES, Mask, columns, readable
from app.audit.security_log import entries as security
from app.audit.security_log import sealing
from app.audit.security_log import service as security_log
from app.auth import principal as principals
from app.auth.mfa.models import SecondFactor
from app.auth.models import ApiKey, Invitation, MailedToken, SignInSession
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import attribute_values, definitions, links, trash
from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.fields.field import PEOPLE
from app.collections.trash import Trash
from app.context import deadline
from app.db import Base
from app.db.policy import OF_EXTENSIONS, Audited
from app.errors import AnswerTooLarge, Forbidden
from app.files.models import FILES
from app.records.read import views
from app.records.store import reads
from app.records.store.reads import Selection
from app.records.transfer import archives
from app.records.transfer.archives import Entry
from app.sso.models import Identity
from app.types import JSONMapping, JSONObject
from app.web.serialization import dumps

Item = TypeVar("Item")
PIECE, RECORDS_AT_ONCE, CHANGES_AT_ONCE = 500, 25, 100
LONGER = 3
"""A statement that looks for a person in a collection may take so many times as long as others."""
BY = ("created_by", "updated_by")
COLLEAGUE = "Only admins of the account may export what is held of somebody else."
PROFILE = (
    *("id", "email", "name", "is_active", "email_verified", "email_verified_at", "auth_provider"),
    *("language", "last_login", "created_at", "updated_at"),
)
OF_OTHERS = (
    *("user_id", "user_email", "user_name", "ip_address", "user_agent", "request_id"),
    *("es_username", "actor_salt", "actor", "actor_kind", "actor_id", "actor_name"),
)
"""Columns that are null in the person's own export where somebody else made the entry."""
FILE = ("id", "name", "mime_type", "size", "sha256", "collection_id", "record_id", "created_at")
# The rows of a person, by the column that names them, with the columns that are no secrets.
TABLES: Mapping[str, tuple[type[Base], Any, Sequence[str]]] = {
    "sessions": (
        SignInSession,
        SignInSession.user_id,
        (
            *("id", "kind", "ip_address", "user_agent", "mfa", "created_at", "last_used_at"),
            *("expires_at", "revoked_at"),
        ),
    ),
    "second_factors": (
        SecondFactor,
        SecondFactor.user_id,
        ("id", "kind", "name", "confirmed_at", "last_used_at", "created_at"),
    ),
    "api_keys": (
        ApiKey,
        ApiKey.created_by,
        (
            *("id", "name", "description", "hint", "scopes", "read_only", "ip_addresses"),
            *("is_revoked", "revoked_at", "expires_at", "last_used_at", "created_at"),
        ),
    ),
    "identities": (
        Identity,
        Identity.user_id,
        ("id", "provider_name", "issuer", "subject", "groups", "created_at", "last_used_at"),
    ),
    "mailed_links": (
        MailedToken,
        MailedToken.user_id,
        ("id", "purpose", "email", "created_at"),
    ),
}
README = Path(__file__).with_name("person_readme.txt").read_text()


@dataclass
class Person:
    """A person's export, which is read as it is written."""

    user: User
    by: Principal
    is_own: bool
    """Whether the caller is the person, and no admin."""
    hidden: Counter[str] = field(default_factory=Counter)
    """The numbers of records by collection that the person may not see."""

    def __post_init__(self) -> None:
        self.account_id, self.id = self.user.account_id, self.user.id
        self._profile = self._read_profile()

    def json(self) -> Iterator[bytes]:
        """Write one JSON object."""
        head = dumps(self._profile)[:-1]
        yield head
        lists: Mapping[str, Callable[[], Iterable[JSONMapping]]] = {
            "records": self._records,
            "files": self._files,
            "audit_log": self._audit_log,
            "security_log": self._security_log,
            **({"rows": self._rows} if _extended() else {}),
        }
        for name, items in lists.items():
            yield b',"%s":[' % name.encode()
            for number, some in enumerate(_in_pieces(items(), RECORDS_AT_ONCE)):
                yield (b"," if number else b"") + b",".join(map(dumps, some))
            yield b"]"
        yield b',"hidden_records":' + dumps(dict(self.hidden)) + b"}\n"

    def zip(self) -> Iterator[bytes]:
        """Write a ZIP archive of JSON and JSON lines."""
        return archives.write_zip(self._entries())

    def _entries(self) -> Iterator[Entry]:
        moment = f"{clock.now():%Y-%m-%d %H:%M}"
        email, account = self._profile["user"]["email"], self._profile["account"]["name"]
        text = README.format(email=email, account=account, moment=moment)
        yield Entry("README.txt", [text.encode()], is_compressed=True)
        yield Entry("records.jsonl", _lines(self._records()), is_compressed=True)
        yield Entry("files.jsonl", _lines(self._files()), is_compressed=True)
        yield Entry("audit_log.jsonl", _lines(self._audit_log()), is_compressed=True)
        yield Entry("security_log.jsonl", _lines(self._security_log()), is_compressed=True)
        if _extended():
            yield Entry("rows.jsonl", _lines(self._rows()), is_compressed=True)
        content = {**self._profile, "hidden_records": dict(self.hidden)}
        yield Entry("person.json", [dumps(content)], is_compressed=True)

    def _read_profile(self) -> JSONObject:
        user, account = self.user, self.user.account
        shown = attributes.load(Kind.USERS).shown(user.attributes, _level(self.by, user))
        found: JSONObject = {
            "exported_at": clock.now(),
            "account": {"id": account.id, "slug": account.slug, "name": account.name},
            "user": {
                **{name: getattr(user, name) for name in PROFILE},
                "role": user.role_name,
                "attributes": shown,
            },
            "groups": user.group_names,
        }
        for name, (model, column, shown_columns) in TABLES.items():
            table = model.__table__
            query = sa.select(*(table.c[one] for one in shown_columns))
            mine = (table.c.account_id == self.account_id, column == self.id)
            rows = db.connection().execute(query.where(*mine).order_by(table.c.id))
            found[name] = [dict(row) for row in rows.mappings()]
        invited = sa.select(
            *(Invitation.id, Invitation.email, Invitation.state, Invitation.created_at),
            *(Invitation.accepted_at, Invitation.expires_at),
        )
        mine = (Invitation.account_id == self.account_id, Invitation.email_key == user.email_key)
        found["invitations"] = [
            dict(row) for row in db.connection().execute(invited.where(*mine)).mappings()
        ]
        return found

    def _records(self) -> Iterator[JSONObject]:
        """The records that name the person, or that they made or changed."""
        for definition in _with_trashes(definitions.get_all()):
            access = accesses.if_open(self.by, definition, "view")
            for some in _in_pieces(self._relations(definition), RECORDS_AT_ONCE):
                rows = _visible(access, [id for id, _ in some]) if access else {}
                for id, relations in some:
                    if id not in rows and self.is_own:
                        self.hidden[definition.name] += 1
                        continue
                    record = {"collection": definition.name, "id": id, "relations": relations}
                    yield {**record, "record": rows.get(id)}

    def _relations(self, definition: Definition) -> Iterator[tuple[str, list[str]]]:
        """The ids of records, each with the fields that name the person."""
        table, fields = definition.table, definition.fields.items()
        conditions = {name: table.c[name] == self.id for name in BY}
        for name, one in fields:
            if name in definition.lists and isinstance(definition, Trash):
                conditions[name] = sa.cast(table.c[name], sa.Text).contains(self.id)
            elif one.leads_to == PEOPLE and name in definition.lists:
                found = links.referring(definition, self.account_id, name, [self.id])
                conditions[name] = found
            elif one.leads_to == PEOPLE:
                conditions[name] = table.c[name] == self.id
        is_named = [sa.case((one, 1), else_=0) for one in conditions.values()]
        query = sa.select(table.c.id, *is_named).order_by(table.c.id).limit(PIECE)
        query = query.where(table.c.account_id == self.account_id, sa.or_(*conditions.values()))
        after = ""
        while True:
            with deadline.within(deadline.multiplied(LONGER)):
                rows = db.connection().execute(query.where(table.c.id > after)).all()
            for id, *named in rows:
                yield id, [name for name, found in zip(conditions, named, strict=True) if found]
            if len(rows) < PIECE:
                return
            after = rows[-1][0]

    def _files(self) -> Iterator[JSONObject]:
        names = {one.id: one.name for one in definitions.get_all()}
        mine = (FILES.c.account_id == self.account_id, FILES.c.uploaded_by == self.id)
        query = sa.select(*(FILES.c[name] for name in FILE)).order_by(FILES.c.id).limit(PIECE)
        query = query.where(*mine, FILES.c.removed_at.is_(None))
        after = ""
        while rows := db.connection().execute(query.where(FILES.c.id > after)).mappings().all():
            for row in rows:
                collection = names.get(row["collection_id"])
                yield {**row, "collection": collection}
            after = rows[-1]["id"]

    def _rows(self) -> Iterator[JSONObject]:
        """The rows of extensions that refer to the person; to them, those that end with them."""
        for table, keys in _extended().items():
            shown = [
                key for key in keys if not self.is_own or (key.ondelete or "").upper() == "CASCADE"
            ]
            if not shown:
                continue
            named = {element.parent.name for key in shown for element in key.elements}
            named.discard("account_id")
            audit = table.info["policy"].audit
            hidden = audit.hidden if isinstance(audit, Audited) else ()
            is_theirs = sa.or_(*(table.c[name] == self.id for name in named))
            query = sa.select(table).where(table.c.account_id == self.account_id, is_theirs)
            query, after = query.order_by(table.c.id).limit(PIECE), ""
            while rows := db.connection().execute(query.where(table.c.id > after)).mappings().all():
                for row in rows:
                    relations = sorted(name for name in named if row[name] == self.id)
                    values = {
                        name: HIDDEN if name in hidden and value is not None else value
                        for name, value in row.items()
                        if name != "account_id"
                    }
                    yield {"table": table.name, "relations": relations, "row": values}
                after = rows[-1]["id"]

    def _audit_log(self) -> Iterator[JSONObject]:
        """The changes that they made, then those of their user by others; as a caller sees them."""
        changes.settle(self.account_id)
        mask = Mask(self.by)
        mine, theirs = CHANGES.c.account_id == self.account_id, CHANGES.c.user_id == self.id
        about = (CHANGES.c.table_name == User.__tablename__, CHANGES.c.record_id == self.id)
        place = sa.tuple_(CHANGES.c.occurred_at, CHANGES.c.first_id)
        for where in ((mine, theirs), (mine, *about, CHANGES.c.user_id != self.id)):
            query = sa.select(*columns()).where(*where)
            query = query.order_by(CHANGES.c.occurred_at, CHANGES.c.first_id).limit(CHANGES_AT_ONCE)
            after: list[Any] = []
            while True:
                found_rows = db.connection().execute(query.where(*after)).mappings()
                rows = [dict(row) for row in found_rows]
                if not rows:
                    break
                mask.load(rows)
                found = [mask(entry) for row in rows for entry in readable(row)]
                mask.publish()
                yield from map(self._shown, found)
                last = (rows[-1]["occurred_at"], rows[-1]["first_id"])
                values = zip(last, (CHANGES.c.occurred_at, CHANGES.c.first_id), strict=True)
                after = [place > sa.tuple_(*(sa.literal(one, c.type) for one, c in values))]

    def _security_log(self) -> Iterator[JSONObject]:
        sealing.seal(self.account_id)
        events = security.EVENTS.c
        is_about = sa.and_(events.target_type == User.__tablename__, events.target_id == self.id)
        where = sa.or_(events.user_id == self.id, is_about)
        for event in security.iter_events(self.account_id, where):
            yield self._shown(security_log.view(event))

    def _shown(self, entry: JSONObject) -> JSONObject:
        """An entry of a log, to the person without who else made it."""
        if not self.is_own or entry["user_id"] == self.id:
            return entry
        return {name: None if name in OF_OTHERS else value for name, value in entry.items()}


def of(user_id: str, *, by: Principal) -> Person:
    """Return the export of a user of the account acted in; by superadmins who name none, of any.

    Raises NotFound, also for a user of another account, and Forbidden for a colleague.
    """
    home, own_id = by.home_and_user()
    is_self = user_id.lower() == own_id
    if not is_self and not by.is_admin:
        raise Forbidden(COLLEAGUE)
    is_of_any = by.is_superadmin and by.account in (None, home)
    user = users.get(None if is_of_any else by.require_account_id(), user_id)
    acting = by if by.account_id == user.account_id else principals.in_new_account(by, user.account)
    return Person(user, acting, is_own=is_self and not by.is_admin)


def _with_trashes(all_: Iterable[Definition]) -> Iterator[Definition]:
    for one in all_:
        yield one
        if one.trash_days:
            yield trash.of(one)


def _extended() -> dict[sa.Table, list[sa.ForeignKeyConstraint]]:
    """The tables of the loaded extensions that refer to users, with their keys."""
    keys = {
        table: [
            key
            for key in table.foreign_key_constraints
            if key.referred_table.name == User.__tablename__
        ]
        for name, table in sorted(Base.metadata.tables.items())
        if name.startswith(OF_EXTENSIONS)
    }
    return {table: found for table, found in keys.items() if found}


def _visible(access: Access, ids: Sequence[str]) -> dict[str, JSONObject]:
    """The records that an access opens, by id, as it shows them."""
    names = list(access.readable)
    try:
        rows = reads.read_by_ids(Selection(access, names=frozenset(names)), ids)
    except AnswerTooLarge:
        if len(ids) == 1:
            raise
        return {id: record for one in ids for id, record in _visible(access, [one]).items()}
    shown = views.render_all(rows, names, access)
    return {row["id"]: record for row, record in zip(rows, shown, strict=True)}


def _level(by: Principal, user: User) -> Level:
    level = attribute_values.level_for_account(by)
    return max(level, Level.SELF) if by.user_id == user.id else level


def _in_pieces(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    remaining = iter(items)
    while piece := list(islice(remaining, size)):
        yield piece


def _lines(items: Iterable[JSONMapping]) -> Iterator[bytes]:
    for some in _in_pieces(items, RECORDS_AT_ONCE):
        yield b"".join(dumps(one) + b"\n" for one in some)
