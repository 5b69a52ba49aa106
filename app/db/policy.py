"""What the application does with the rows of a table: each model declares it beside its columns.

Whoever treats tables by their kind reads it here, so that a new table is named nowhere else
(docs/development.md#add-a-table).
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

# Audited in no table: the account, which the chain implies, and internal columns.
SYSTEM_COLUMNS = frozenset({"account_id", "created_at", "updated_at", "version"})


@dataclass(frozen=True)
class Audited:
    """Each change of a row is an entry of the audit log.

    `chain` is the column of the account (None: the system account's chain); `ignored` columns are
    not audited, `hidden` ones as `***`.
    """

    chain: str | None = "account_id"
    ignored: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    def includes(self, column: str) -> bool:
        """Whether changes of this column are audited."""
        return column not in SYSTEM_COLUMNS and column not in self.ignored


@dataclass(frozen=True)
class NotAudited:
    """Changes are in no log, for a reason."""

    reason: str


@dataclass(frozen=True)
class TablePolicy:
    """The `__policy__` of a model."""

    audit: Audited | NotAudited

    def check(self, table: sa.Table) -> None:
        """Raise TypeError if the policy does not fit the table's columns."""
        named = set[str]()
        if isinstance(self.audit, Audited):
            named |= {*self.audit.ignored, *self.audit.hidden}
            named |= {self.audit.chain} if self.audit.chain else set()
        if missing := sorted(named - set(table.columns.keys())):
            raise TypeError(f"The policy of {table.name} names no column: {', '.join(missing)}.")
