"""The rows behind definitions and their revisions; shared by all accounts.

Stored changes keep the names that a collection and its fields had (docs/adr/0034): each change of
names adds an entry to `former_names` of the collection: when the names ended, the next name of each
field that was renamed, or null for one that was removed, and the collection's own name if that
ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base
from app.db.policy import (
    Audited,
    Bundled,
    NotAudited,
    NotBundled,
    Noun,
    Placement,
    Sample,
    TablePolicy,
)
from app.db.types import Id, Json, Text, UtcDateTime
from app.ids import new_id
from app.types import JSONMapping, JSONObject
from app.web.languages import lazy_gettext

IGNORED = ("name_key", "former_names", "fragments", "announced", "indexing")


class Collection(Base):
    """A collection as stored. `version` grows with every change of its schema or its rules."""

    __tablename__ = "collections"
    __policy__ = TablePolicy(
        audit=Audited(chain=None, ignored=IGNORED),
        bundle=NotBundled("shared by all accounts; a bundle has their definitions"),
        placement=Placement.SHARED,
        noun=Noun(
            lazy_gettext("Collection"),
            lazy_gettext("Collections"),
            named_by="name",
            order=220,
            page="console.show_collection",
        ),
        id_names=("collection_id",),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(Text)
    name_key: Mapped[str] = mapped_column(Text, unique=True)  # the name as it is compared
    table_name: Mapped[str] = mapped_column(Text, unique=True)
    schema: Mapped[list[JSONObject]] = mapped_column(Json)
    rules: Mapped[JSONObject] = mapped_column(sa.JSON)
    options: Mapped[JSONObject] = mapped_column(sa.JSON, default=dict, server_default="{}")
    indexes: Mapped[list[JSONObject]] = mapped_column(sa.JSON, default=list, server_default="[]")
    former_names: Mapped[list[JSONObject]] = mapped_column(
        sa.JSON, default=list, server_default="[]"
    )
    # Copies of those that its rules use: `version` tells of a change of them, too.
    fragments: Mapped[JSONObject] = mapped_column(sa.JSON, default=dict, server_default="{}")
    # Of its rules, as a manifest states them; they change nothing, so `version` stays.
    tests: Mapped[list[JSONObject]] = mapped_column(sa.JSON, default=list, server_default="[]")
    # What a view reads: `{from, fields, where, group_by, aggregates}`; its `schema` follows the
    # fields that it reads. Null for collections of records.
    view: Mapped[JSONObject | None] = mapped_column(sa.JSON(none_as_null=True))
    # Whether changes of its records are events of the instance (docs/events.md).
    announced: Mapped[bool] = mapped_column(default=False, server_default=sa.false())
    # The searchable `fields` whose words a job is storing, and of how many `records` it has.
    indexing: Mapped[JSONObject | None] = mapped_column(sa.JSON(none_as_null=True))
    version: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now, onupdate=clock.now)


class RecordLink(Base):
    """An entry of a list of references, users or texts in a record (`app.collections.links`)."""

    __tablename__ = "record_links"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id", "user_id"], ["users.account_id", "users.id"]),
        # The account comes later, as SQLite finds by it what a caller's records have in common.
        sa.Index(
            "ix_record_links_target",
            *("target_id", "collection_id", "field", "account_id", "record_id"),
        ),
        sa.Index(
            "ix_record_links_record",
            *("account_id", "record_id", "collection_id", "field", "target_id"),
        ),
        sa.Index("ix_record_links_user", "account_id", "user_id"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("what the lists of records say, whose changes are audited"),
        bundle=NotBundled("built from the lists as records are imported"),
        sample={"user_id": None},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    collection_id: Mapped[str] = mapped_column(Id)
    field: Mapped[str] = mapped_column(Text)  # no key: a renamed one is followed
    record_id: Mapped[str] = mapped_column(Id)
    target_id: Mapped[str] = mapped_column(Id)  # or the text itself
    user_id: Mapped[str | None] = mapped_column(Id)
    """The target again, if it is a user, for the foreign key."""


class RecordSequence(Base):
    """The last number that a `sequence` field of an account has given (`sequences`)."""

    __tablename__ = "record_sequences"
    __policy__ = TablePolicy(
        audit=NotAudited("numbers that records got, whose changes are audited"),
        bundle=Bundled(order=341),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    collection_id: Mapped[str] = mapped_column(Id, primary_key=True)
    field: Mapped[str] = mapped_column(Text, primary_key=True)  # a renamed one is followed
    value: Mapped[int] = mapped_column(sa.BigInteger)


class TrashedRecord(Base):
    """A deleted record of a collection with `options.trash` (`app.collections.trash`)."""

    __tablename__ = "trashed_records"
    __table_args__ = (
        sa.Index(  # lists of an account's trash
            "ix_trashed_records_account_deleted_at", "account_id", "collection_id", "deleted_at"
        ),
        sa.Index("ix_trashed_records_deleted_at", "collection_id", "deleted_at"),  # what is due
    )
    __policy__ = TablePolicy(
        audit=NotAudited("the records' deletion is audited, and what ends it"),
        bundle=Bundled(order=340),
        noun=Noun(
            lazy_gettext("Record in the trash"), lazy_gettext("Records in the trash"), order=335
        ),
        sample={"collection_id": Sample.COLLECTION_ID, "record": {}, "size": Sample.SIZE},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    collection_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    record: Mapped[JSONObject] = mapped_column(sa.JSON)
    """Its values by column, as texts of the audit log."""
    size: Mapped[int] = mapped_column(sa.BigInteger)  # bytes of these
    deleted_at: Mapped[datetime] = mapped_column(UtcDateTime)
    deleted_by: Mapped[str | None] = mapped_column(Id)


class RuleFragment(Base):
    """A named part of rules, which those of all collections may use."""

    __tablename__ = "rule_fragments"
    __policy__ = TablePolicy(
        audit=Audited(chain=None),
        bundle=NotBundled("shared by all accounts, as the rules that use them"),
        placement=Placement.SHARED,
        noun=Noun(
            lazy_gettext("Fragment of rules"),
            lazy_gettext("Fragments of rules"),
            named_by="name",
            order=225,
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(Text, unique=True)
    text: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now, onupdate=clock.now)


class RecordCount(Base):
    """A part of the number and bytes of an account's records in a collection (`record_counts`)."""

    __tablename__ = "record_counts"
    __table_args__ = (sa.Index("ix_record_counts_collection_id", "collection_id"),)
    __policy__ = TablePolicy(
        audit=NotAudited("numbers of records, whose changes are audited"),
        bundle=NotBundled("counted by triggers as records are inserted"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    collection_id: Mapped[str] = mapped_column(Id, primary_key=True)
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    records: Mapped[int] = mapped_column(sa.BigInteger)
    bytes: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("0"))


class Revision(Base):
    """One change of a collection's table, written with its DDL."""

    __tablename__ = "collection_revisions"
    __policy__ = TablePolicy(
        audit=NotAudited("the DDL of changes that are in their collection's entries"),
        bundle=NotBundled("the history of shared definitions"),
        placement=Placement.SHARED,
    )

    revision: Mapped[str] = mapped_column(Text, primary_key=True)
    number: Mapped[int] = mapped_column(unique=True)
    down_revision: Mapped[str | None] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text)
    collection_id: Mapped[str] = mapped_column(Id)
    statements: Mapped[list[str]] = mapped_column(sa.JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


@dataclass(frozen=True)
class Era:
    """The time between two changes of names."""

    since: datetime
    collection: str
    """The name that the collection had."""
    until: datetime | None = None
    """Exclusive; None for the present."""
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    """The present name of each field that had another one; None if it was removed."""

    def present_name(self, name: str) -> str | None:
        """The present name of a field; None if it was removed."""
        return self.renamed.get(name, name)

    def former_name(self, name: str) -> str | None:
        """The name that a present field had; None if another field had its name."""
        for former, present in self.renamed.items():
            if present == name:
                return former
        return None if name in self.renamed else name


def parse_eras(former_names: Sequence[JSONMapping], created_at: datetime, name: str) -> list[Era]:
    """The eras of a collection with this name, oldest first."""
    starts = [created_at, *(clock.parse(entry["until"]) for entry in former_names)]
    eras = [Era(starts[-1], name)]
    for number in reversed(range(len(former_names))):
        fields, later = former_names[number]["fields"], eras[0]
        collection = former_names[number].get("collection", later.collection)
        kept = {name: later.renamed[name] for name in later.renamed.keys() - fields.values()}
        ended = {
            former: None if name is None else later.present_name(name)
            for former, name in fields.items()
        }
        eras.insert(0, Era(starts[number], collection, starts[number + 1], kept | ended))
    return eras


def era_entry(fields: Mapping[str, str | None], collection: str | None = None) -> JSONObject:
    """The entry of `former_names` for a change of names that is being made.

    With the name of the collection, if that ends.
    """
    own = {} if collection is None else {"collection": collection}
    return {"until": clock.iso(clock.now()), "fields": dict(fields), **own}
