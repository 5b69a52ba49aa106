"""The policy of a table: each model declares beside its columns how its rows are treated.

Whoever treats tables by their kind reads it here, so that a new table is named nowhere else
(docs/development.md#add-a-table).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase

from app.context import shown_accounts

# Audited in no table: the account, which the chain implies, and internal columns.
SYSTEM_COLUMNS = frozenset({"account_id", "created_at", "updated_at", "version"})


OF_EXTENSIONS = "x_"
"""What the names of extensions' tables begin with."""


@dataclass(frozen=True)
class Audited:
    """Each change of a row is an entry of the audit log.

    `chain` is the column of the account (None: the system account's chain); `ignored` columns are
    not audited, `hidden` ones as `***`. Of `digested` ones, images (`data:` addresses) are audited
    by their digests.
    """

    chain: str | None = "account_id"
    ignored: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    digested: tuple[str, ...] = ()

    def includes(self, column: str) -> bool:
        return column not in SYSTEM_COLUMNS and column not in self.ignored


@dataclass(frozen=True)
class NotAudited:
    """Changes are in no log, for a reason."""

    reason: str


@dataclass(frozen=True)
class Bundled:
    """Rows are in a bundle of their account.

    Tables are written and read by `order`, so that a row follows the rows that it refers to.
    """

    order: int
    is_log: bool = False
    """A chain of hashes, which verifies only under the account's id; written after all others."""
    is_copied: bool = True
    """False for credentials of programs, and for what would act by itself in a copy."""
    reset: Mapping[str, object] = field(default_factory=dict)
    """The values that an import sets, as the exported ones hold on one instance only."""


@dataclass(frozen=True)
class NotBundled:
    """Rows are in no bundle, for a reason."""

    reason: str


class Placement(StrEnum):
    """The place of a table on Citus (docs/scaling.md). Only sharded ones have rows of accounts."""

    SHARDED = "distributed"
    SHARED = "reference"
    """On every node: rarely written, and without counters."""
    LOCAL = "local"
    """On the coordinator: keys may belong to several accounts, or to none."""


class OnClose(StrEnum):
    """The fate of the rows of an account that is closed."""

    DELETED = "deleted"
    KEPT = "kept"
    """The rows of logs, which outlive what they describe."""
    EXPIRES = "expires"
    """They are forgotten by their age, as those of open accounts."""


@dataclass(frozen=True)
class Noun:
    """The name of a row of the table, in the logs and in the console; both texts are lazy."""

    singular: str
    plural: str
    order: int
    """The place among the tables that one chooses from."""
    named_by: str | None = None
    """The column with the name of a row."""
    name_prefix: str = ""
    page: str | None = None
    """The endpoint of the page of a row, or of the one that shows it among others."""
    list_page: str | None = None
    event: str | None = None
    """Its name in events of the security log: its changes are events, such as `user.created`."""


class Sample(Enum):
    """A value of the row that the isolation check writes for each of its accounts.

    Text has the account's mark for `{mark}`; a column without a sample gets what its type allows.
    """

    CERTIFICATE = auto()
    COLLECTION = auto()
    """The name of a collection; its key is in lower case."""
    COLLECTION_ID = auto()
    COLLECTION_KEY = auto()
    EMAIL = auto()
    ENCRYPTED = auto()
    """The mark, encrypted; as a secret, within JSON."""
    SECRET = auto()
    JSON = auto()
    """Text with JSON that has the mark."""
    IS_VICTIM = auto()
    """The other account's actions must not trigger the victim's; its own must send nothing."""
    KEY_HASH = auto()
    SCIM_TOKEN_HASH = auto()
    NOW = auto()
    LATER = auto()
    LONG_AGO = auto()
    SIZE = auto()
    """The length of the mark."""
    STEPS = auto()
    """Steps of a workflow."""
    USER_ID = auto()


@dataclass(frozen=True)
class TablePolicy:
    """The `__policy__` of a model."""

    audit: Audited | NotAudited
    bundle: Bundled | NotBundled
    encrypted: tuple[str, ...] = ()
    """Columns with long-lived secrets, which a new key re-encrypts and a bundle has decrypted."""
    encrypted_json: tuple[str, ...] = ()
    """JSON with such secrets, for which `reencryption.json_column` registers a function."""

    placement: Placement = Placement.SHARDED
    on_close: OnClose = OnClose.DELETED
    noun: Noun | None = None
    id_names: tuple[str, ...] = ()
    """The names of its ids in paths, bodies, jobs and other tables; pages use the first one."""
    sample: Mapping[str, object] = field(default_factory=dict)

    def check(self, table: sa.Table) -> None:
        """Raise TypeError if the policy does not fit the table's columns."""
        is_sharded = self.placement is Placement.SHARDED
        leads = [column.name for column in table.primary_key][:1] == ["account_id"]
        if leads != is_sharded or ("account_id" in table.columns) != is_sharded:
            raise TypeError(f"The key of {table.name} does not fit {self.placement.name}.")
        named = {*self.encrypted, *self.encrypted_json, *self.sample}
        if isinstance(self.audit, Audited):
            named |= {*self.audit.ignored, *self.audit.hidden, *self.audit.digested}
            named |= {self.audit.chain} if self.audit.chain else set()
        if isinstance(self.bundle, Bundled):
            named |= {"account_id", *self.bundle.reset}
        if self.noun and self.noun.named_by:
            named.add(self.noun.named_by)
        if missing := sorted(named - set(table.columns.keys())):
            raise TypeError(f"The policy of {table.name} names no column: {', '.join(missing)}.")


class Base(DeclarativeBase):
    """The declarative base. Constraint names are fixed, so that errors can be mapped by name.

    A model declares what is done with its rows in `__policy__`. Raises TypeError without one.
    """

    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    __table__: ClassVar[sa.Table]
    __policy__: ClassVar[TablePolicy]

    def __init_subclass__(cls, **options: Any) -> None:
        own = vars(cls)
        if "__tablename__" in own and "__policy__" not in own:
            raise TypeError(f"{cls.__name__} lacks its __policy__: docs/development.md#add-a-table")
        super().__init_subclass__(**options)
        if "__tablename__" in own:
            cls.__policy__.check(cls.__table__)
            cls.__table__.info["policy"] = cls.__policy__


def policies() -> dict[str, TablePolicy]:
    """Return the policy of each table by its name."""
    return {name: table.info["policy"] for name, table in Base.metadata.tables.items()}


def policy_of(table: str) -> TablePolicy | None:
    """Return the policy of a table; None for that of a collection, and for what is no table."""
    found = Base.metadata.tables.get(table)
    return None if found is None else found.info["policy"]


@sa.event.listens_for(Base, "load", propagate=True)
def _note_account(row: Base, context: object) -> None:
    shown_accounts.note(row.__dict__.get("account_id"))


def partial_index(name: str, *columns: str, where: str) -> sa.Index:
    """Return an index of those rows that fulfil a condition, on either database."""
    condition = sa.text(where)
    return sa.Index(name, *columns, postgresql_where=condition, sqlite_where=condition)
