"""Names for what changes of the audit log are about: rows, actors and values that are ids."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa
from flask import current_app, url_for

from app import clock, db
from app.audit import entries as audit
from app.audit.append import DELETE, HIDDEN, UPDATE
from app.audit.service import Change
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import definitions
from app.collections import table as tables
from app.collections.definitions import ByFormerName, Definition
from app.collections.fields import PEOPLE, Field, ListField, entries
from app.console.admin import audit_columns
from app.console.records import references, writers
from app.console.records.display import MAX_LABEL_LENGTH, format_value
from app.console.records.writers import ACTORS
from app.console.shell.checks import Excerpt, differences
from app.console.shell.lists import UrlArgs
from app.db import Base, policies, policy_of
from app.db.policy import Audited, Noun
from app.records.history.audit_view import read_json
from app.types import JSONMapping
from app.web.languages import gettext, lazy_gettext

MAX_LABELLED = 12  # collections of accounts whose records get names; each takes a statement
MAX_SHOWN = 500  # characters of a value
USER_COLUMNS = ("user_id", "created_by", "updated_by", "invited_by", "revoked_by")
Key = tuple[str, str, str]  # table, account, id


# Entries about the log itself name no table.
AUDIT_LOG = Noun(lazy_gettext("Audit log"), lazy_gettext("Erasures"), order=210)
OTHER = Noun(lazy_gettext("Row"), lazy_gettext("Rows"), order=0)


@cache
def nouns() -> Mapping[str, Noun]:
    """The nouns of tables by table name, in the order of choices."""
    found = {name: policy.noun for name, policy in policies().items() if policy.noun}
    found["audit_log"] = AUDIT_LOG
    return dict(sorted(found.items(), key=lambda item: item[1].order))


def is_shared(table: str) -> bool:
    """Whether changes of the table are in the system account's chain, for superadmins."""
    policy = policy_of(table)
    return policy is not None and isinstance(policy.audit, Audited) and policy.audit.chain is None


def name_column(table: str) -> sa.ColumnElement[Any] | None:
    """The names of a table's rows, if they have any."""
    noun = nouns().get(table)
    if noun is None or noun.named_by is None:
        return None
    columns = Base.metadata.tables[table].c
    column = columns[noun.named_by]
    if table == "users":  # services have a name alone
        return sa.func.coalesce(sa.func.nullif(column, ""), columns.name)
    return sa.literal(noun.name_prefix).concat(column) if noun.name_prefix else column


@dataclass(frozen=True)
class Subject:
    """A row by its kind and name, and where it leads."""

    kind: str
    name: str
    url: str | None


@dataclass(frozen=True)
class Value:
    """A changed field with its values before and after."""

    field: str
    before: str | None
    after: str | None
    note: str | None = None
    """The reason why the values are missing."""

    @property
    def parts(self) -> tuple[Excerpt, Excerpt] | None:
        """Both texts with what differs marked, if the rest is worth a comparison."""
        return differences(self.before, self.after)


@dataclass(frozen=True)
class ShownChange:
    """A change in the words of its reader."""

    change: Change
    kind: str
    name: str
    url: str | None
    actor: str
    account: str | None
    """The name of the account, for superadmins."""
    values: Sequence[Value]

    @property
    def entry_id(self) -> int:
        return int(self.change.entries[-1]["id"])


def choices(by: Principal) -> dict[str, str]:
    """The kinds of rows that the log is filtered by, by table name."""
    shown = {
        name: noun.plural
        for name, noun in nouns().items()
        if by.is_superadmin or not is_shared(name)
    }
    return shown | {
        one.table_name: gettext("Records of %(collection)s", collection=one.name)
        for one in definitions.get_all()
    }


def of_row(account_id: str, table: str, id: str) -> Change:
    """A change of a row without values, for its name."""
    return Change(
        account_id=account_id,
        first_id=0,
        operation=UPDATE,
        table_name=table,
        record_id=id,
        user_id="",
        user_email=None,
        user_name=None,
        actor_kind=None,
        actor_id=None,
        actor_name=None,
        es_username=None,
        es_reason=None,
        occurred_at=clock.now(),
        is_complete=True,
        entries=[],
    )


class Names:
    """The names for the changes of a page, in a bounded number of statements."""

    def __init__(self, changes: Sequence[Change], by: Principal) -> None:
        self._by, self._names = by, dict[Key, str]()
        self._kinds = dict[Key, str]()  # of workflows
        self._by_table = {one.table_name: one for one in definitions.get_all()}
        self._collections = ByFormerName(self._by_table.values())
        self._load([key for change in changes for key in self._keys(change)])

    def shown(self, change: Change) -> ShownChange:
        collection = self._collection(change)
        kind = _noun(change.table_name).singular
        if collection is not None:
            kind = gettext("Record of %(collection)s", collection=collection.name)
        values = [self._value(change, collection, entry) for entry in _shown_entries(change)]
        return ShownChange(
            change,
            kind,
            self._name(change, collection),
            self._url(change, collection),
            _actor(change),
            self.row_name("accounts", *[change.account_id] * 2) if self._by.is_superadmin else None,
            values,
        )

    def subject(self, change: Change) -> Subject:
        """The row that a change is about."""
        collection = self._collection(change)
        kind = _noun(change.table_name).singular
        return Subject(kind, self._name(change, collection), self._url(change, collection))

    def row_name(self, table: str, account_id: str, id: str) -> str:
        return self._names.get((table, account_id, id), f"…{id[-8:]}")

    def _collection(self, change: Change) -> Definition | None:
        if not change.table_name.startswith(tables.PREFIX):
            return None
        return self._collections.find(change.table_name, change.occurred_at)

    def _keys(self, change: Change) -> Iterator[Key]:
        """The rows that a change is about: its own, and those that values point to."""
        collection = self._collection(change)
        yield from _own_keys(change, collection)
        if self._by.is_superadmin:
            yield "accounts", change.account_id, change.account_id
        for entry in change.entries:
            table = self._target(change, collection, entry["column_name"])
            for text in (entry["old_value"], entry["new_value"]):
                if table and text:
                    ids = self._ids(change, collection, entry, text)
                    yield from ((table, change.account_id, id) for id in ids)

    def _target(self, change: Change, collection: Definition | None, column: str) -> str | None:
        if collection is not None:
            field = self._field(change, collection, column)
            if field is not None and field.leads_to == PEOPLE:
                return "users"
            target = collection.target(field.name) if field and field.collection else None
            return target.table_name if target else None
        if column in USER_COLUMNS:
            return "users"
        return {"group_id": "groups", "role_id": "roles"}.get(column)

    def _field(self, change: Change, collection: Definition, column: str) -> Field | None:
        """The present field of a changed column."""
        name = collection.era_at(change.occurred_at).present_name(column) or ""
        return collection.fields.get(name)

    def _ids(
        self, change: Change, collection: Definition | None, entry: JSONMapping, text: str
    ) -> list[str]:
        """The ids in a value that points to rows."""
        field = self._field(change, collection, entry["column_name"]) if collection else None
        is_list = isinstance(field, ListField) and text[0] + text[-1] == "[]"  # not cut
        return entries(field, text) if is_list else [text]

    def _load(self, keys: Iterable[Key]) -> None:
        by_table = defaultdict[str, set[tuple[str, str]]](set)
        for table, account_id, id in keys:
            by_table[table].add((account_id, id))
        for table, rows in by_table.items():
            if (name := name_column(table)) is not None:
                self._load_rows(table, name, rows)
        records = [table for table in by_table if table.startswith(tables.PREFIX)]
        pairs = [(table, account) for table in records for account, _ in by_table[table]]
        for table, account_id in list(dict.fromkeys(sorted(pairs)))[:MAX_LABELLED]:
            ids = [id for account, id in by_table[table] if account == account_id]
            self._load_records(table, account_id, ids)

    def _load_rows(
        self, table: str, name: sa.ColumnElement[Any], rows: Iterable[tuple[str, str]]
    ) -> None:
        columns = Base.metadata.tables[table].c
        accounts, ids = (sorted({row[place] for row in rows}) for place in (0, 1))
        is_named = columns.id.in_(map(_role_id, ids) if table == "roles" else ids)
        kind = columns.kind if "kind" in columns else sa.null()
        query = sa.select(columns.id, name.label("name"), kind.label("kind"))
        query = query.where(is_named)
        if "account_id" in columns:
            query = query.add_columns(columns.account_id)
            query = query.where(columns.account_id.in_(accounts))
        for row in db.connection().execute(query):
            for account_id in [row.account_id] if "account_id" in columns else accounts:
                key = (table, account_id, str(row.id))
                self._names[key], self._kinds[key] = row.name, row.kind

    def _load_records(self, table: str, account_id: str, ids: Sequence[str]) -> None:
        collection = self._by_table.get(table)
        by: Principal | None = self._by
        if self._by.is_superadmin:
            account = principals.reload_active_account(account_id)
            by = self._by.acting_in(account) if account else None
        if collection is not None and by is not None:
            for id, label in references.labels(collection, ids, by).items():
                self._names[table, account_id, id] = label

    def _name(self, change: Change, collection: Definition | None) -> str:
        table, account_id = change.table_name, change.account_id
        if table == "group_members":
            group, _, user = change.record_id.partition("/")
            user_name = self.row_name("users", account_id, user)
            group_name = self.row_name("groups", account_id, group)
            return gettext("%(user)s in %(group)s", user=user_name, group=group_name)
        key = (collection.table_name if collection else table, account_id, change.record_id)
        if key in self._names:
            return self._names[key]
        if collection is not None and change.record_id == collection.id:
            return gettext("all records")
        return self._name_then(change, collection) or self.row_name(*key)

    def _name_then(self, change: Change, collection: Definition | None) -> str | None:
        """The name of a row that is gone, if the change has it."""
        values = {e["column_name"]: e["new_value"] or e["old_value"] for e in change.entries}
        if collection is not None:
            labels = [n for n, f in collection.fields.items() if f.names_records]
            columns = [name for name in labels if name in values]
        else:
            columns = ["email", "name", "display_name", "url"]
        found = next((str(values[name]) for name in columns if values.get(name)), None)
        if found is None or set(found) == {"*"}:
            return None
        return found[:MAX_LABEL_LENGTH]

    def _url(self, change: Change, collection: Definition | None) -> str | None:
        table, id = change.table_name, change.record_id
        if change.operation == DELETE:
            return None
        if collection is not None:
            key = (collection.table_name, change.account_id, id)
            at: UrlArgs = {
                "account_id": change.account_id,
                "name": collection.name,
                "record_id": id,
            }
            return url_for("console.show_record", **at) if key in self._names else None
        page, by = _noun(table).page, self._by
        if page is None or (is_shared(table) and not by.is_superadmin):
            return None
        names = {name for rule in current_app.url_map.iter_rules(page) for name in rule.arguments}
        at = {"account_id": change.account_id} if "account_id" in names else {}
        policy = policy_of(table)
        for id_name in policy.id_names[:1] if policy else ():
            if id_name in names:
                if (table, change.account_id, id) not in self._names:
                    return None
                at[id_name] = id
        page = "console.show_user" if table == "users" and by.is_superadmin else page
        if table == "workflows":
            at["kind"] = self._kinds[table, change.account_id, id]
        return url_for(page, **at)

    def _value(self, change: Change, collection: Definition | None, entry: JSONMapping) -> Value:
        column = entry["column_name"]
        if collection is not None:
            label = collection.era_at(change.occurred_at).present_name(column) or column
        else:
            label = audit_columns.label(column)
        if entry["salt"] is None and not entry["masked"]:
            return Value(label, None, None, gettext("erased"))
        if not change.is_complete:
            return Value(label, None, None, gettext("too large to show here"))
        texts = {entry["old_value"], entry["new_value"]}
        if texts == {HIDDEN} or (texts == {None, HIDDEN} and change.operation != UPDATE):
            return Value(label, None, None, gettext("hidden"))
        before, after = (
            self._text(change, collection, entry, entry[name])
            for name in ("old_value", "new_value")
        )
        return Value(label, before, after)

    def _text(
        self, change: Change, collection: Definition | None, entry: JSONMapping, text: str | None
    ) -> str | None:
        if text is None or text == HIDDEN:
            return None if text is None else gettext("hidden")
        table = self._target(change, collection, entry["column_name"])
        if table is not None:
            ids = self._ids(change, collection, entry, text)
            return ", ".join(self.row_name(table, change.account_id, id) for id in ids)
        name = entry["column_name"]
        if collection is not None and not entry["masked"]:
            name = collection.era_at(change.occurred_at).present_name(name) or name
            field = collection.fields.get(name)
            return format_value(read_json(field, text) if field else text, MAX_SHOWN, exact=True)
        model = Base.metadata.tables.get(change.table_name)
        column = model.c.get(name) if model is not None else None
        if column is not None and isinstance(column.type, sa.Boolean):
            return {"true": gettext("yes"), "false": gettext("no")}.get(text, text)
        return format_value(text, MAX_SHOWN, exact=True)


def _own_keys(change: Change, collection: Definition | None) -> Iterator[Key]:
    if change.table_name == "group_members":
        group, _, user = change.record_id.partition("/")
        yield "groups", change.account_id, group
        yield "users", change.account_id, user
    else:
        table = collection.table_name if collection else change.table_name
        yield table, change.account_id, change.record_id


def _role_id(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) else 0


def _shown_entries(change: Change) -> list[JSONMapping]:
    # A token's name shows the last characters, which the log hides.
    left_out = ("", "id", "hint") if change.table_name == "scim_tokens" else ("", "id")
    return [entry for entry in change.entries if entry["column_name"] not in left_out]


def _noun(table: str) -> Noun:
    return nouns().get(table, OTHER)


def _actor(change: Change) -> str:
    if change.user_id in ACTORS:
        return str(ACTORS[change.user_id])
    if change.is_anonymized:
        return gettext("Erased user")
    name = change.user_name or change.user_email or f"…{change.user_id[-8:]}"
    return writers.acting(name, writers.means(audit.named(vars(change))))
