"""store each change of the audit log in one row

Revision ID: 0030
Revises: 0029
Create Date: 2026-11-25 19:30:00.000000
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import orjson
import sqlalchemy as sa
import structlog
from alembic import context, op

from migrations.support import audit_log, progress, row_security
from migrations.support.audit_log import NAMES
from migrations.support.types import Text, UtcDateTime, iso

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

log = structlog.get_logger()
BATCH = 1000  # changes
FINAL_BATCH = 5000  # changes that the service may have to wait for

COPIED = ("user_email", "user_name", "es_username", "es_reason", "es_timestamp", "ip_address")
COPIED += ("user_agent", "request_id", "extra_metadata")
SHARED = ("account_id", "operation", "table_name", "record_id", "user_id", *COPIED)
ERASABLE = (
    *("old_values", "new_values", "salts", "actor_salts"),
    *("user_email", "user_name", "ip_address", "user_agent", "es_username", "es_reason"),
)
FIXED = (
    *("account_id", "first_id", "last_id", "entries", "operation", "table_name", "record_id"),
    *("user_id", "occurred_at", "es_timestamp", "request_id", "extra_metadata", "columns"),
    *("ids", "checksum"),
)
INDEXES = {
    "newest": [],
    "account": ["account_id"],
    "table": ["table_name"],
    "record": ["record_id"],
    "user": ["user_id"],
    "operation": ["operation"],
    "account_table": ["account_id", "table_name"],
    "account_operation": ["account_id", "operation"],
}
NEXT_CHANGES = (
    "SELECT first_id, last_id FROM audit_changes WHERE account_id = :account_id"
    " AND first_id > :after ORDER BY first_id LIMIT :limit"
)
CHANGE_OF = (
    "SELECT first_id, last_id FROM audit_changes WHERE account_id = :account_id"
    " AND first_id <= :id ORDER BY first_id DESC LIMIT 1"
)
# By a range of the key, for which no statistics are needed.
ENTRIES = (
    "SELECT * FROM audit_log WHERE account_id = :account_id AND id BETWEEN :first AND :last"
    " ORDER BY id"
)

# What SQL reads of single entries, without their digests. Older versions append here, and see
# their own changes without digests, until they are restarted.
VIEW = """
CREATE VIEW audit_log {options} AS
SELECT c.account_id, c.first_id, c.last_id, {id} AS id,
  c.operation, c.table_name, c.record_id, {name} AS column_name,
  {old} AS old_value, {new} AS new_value,
  c.user_id, c.user_email, c.user_name, c.es_username, c.es_reason, c.es_timestamp,
  c.ip_address, c.user_agent, c.request_id, c.occurred_at, c.extra_metadata,
  {salt} AS salt, {actor_salt} AS actor_salt{digests}
FROM audit_changes AS c {entry}
"""
ON_SQLITE = {
    "options": "",
    "entry": "JOIN json_each(c.columns) AS e",
    "id": "CASE WHEN c.ids IS NULL THEN c.first_id + e.key"
    " ELSE json_extract(c.ids, '$[' || e.key || ']') END",
    "name": "e.value",
    "old": "json_extract(c.old_values, '$[' || e.key || ']')",
    "new": "json_extract(c.new_values, '$[' || e.key || ']')",
    "salt": "CASE WHEN c.salts IS NOT NULL"
    " THEN lower(hex(substr(c.salts, 16 * e.key + 1, 16))) END",
    "actor_salt": "CASE WHEN length(c.actor_salts) = 16 THEN lower(hex(c.actor_salts))"
    " WHEN c.actor_salts IS NOT NULL"
    " THEN lower(hex(substr(c.actor_salts, 16 * e.key + 1, 16))) END",
    "digests": "",
}
ON_POSTGRES = {
    "options": "WITH (security_invoker = true)",
    "entry": "CROSS JOIN LATERAL json_array_elements_text(c.columns::json)"
    " WITH ORDINALITY AS e (name, n)",
    "id": "CASE WHEN c.ids IS NULL THEN c.first_id + e.n - 1"
    " ELSE (c.ids::json ->> (e.n - 1)::int)::bigint END",
    "name": "e.name",
    "old": "c.old_values::json ->> (e.n - 1)::int",
    "new": "c.new_values::json ->> (e.n - 1)::int",
    "salt": "encode(substr(c.salts, 16 * (e.n - 1)::int + 1, 16), 'hex')",
    "actor_salt": "encode(CASE WHEN length(c.actor_salts) = 16 THEN c.actor_salts"
    " ELSE substr(c.actor_salts, 16 * (e.n - 1)::int + 1, 16) END, 'hex')",
    "digests": "".join(
        f", NULL::text AS {name}"
        for name in (
            *("values_digest", "actor_digest", "entry_digest", "previous_hash", "checksum"),
        )
    ),
}
INSERT_ENTRY = """
CREATE FUNCTION insert_audit_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO audit_changes (
    account_id, first_id, last_id, entries, operation, table_name, record_id, user_id, occurred_at,
    user_email, user_name, es_username, es_reason, es_timestamp, ip_address, user_agent,
    request_id, extra_metadata, columns, old_values, new_values, salts, actor_salts, checksum)
  VALUES (
    NEW.account_id, NEW.id, NEW.id, 1, NEW.operation, NEW.table_name, NEW.record_id, NEW.user_id,
    NEW.occurred_at, NEW.user_email, NEW.user_name, NEW.es_username, NEW.es_reason,
    NEW.es_timestamp, NEW.ip_address, NEW.user_agent, NEW.request_id, NEW.extra_metadata,
    json_build_array(NEW.column_name)::text,
    CASE WHEN NEW.old_value IS NOT NULL THEN json_build_array(NEW.old_value)::text END,
    CASE WHEN NEW.new_value IS NOT NULL THEN json_build_array(NEW.new_value)::text END,
    decode(NEW.salt, 'hex'), decode(NEW.actor_salt, 'hex'), decode(NEW.checksum, 'hex'));
  RETURN NEW;
END $$
"""
SKIP = """
CREATE FUNCTION skip_audit_index() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RETURN NULL;
END $$
"""
# `told` has the columns that all entries share, in the order of the declarations. Ids are drawn
# under the lock of the head, so that they ascend along every chain, and accounts do not wait for
# each other; between them, others may draw.
SIGNATURE = (
    "account text, told text[], joined text, names text, olds text, news text,"
    " value_salts bytea, actor_salt bytea"
)
APPEND = f"""
CREATE FUNCTION append_audit_change({SIGNATURE})
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  digests text[] := string_to_array(joined, ',');
  count int := cardinality(digests);
  previous text := lock_audit_head(account, told[5]::timestamptz);
  drawn bigint[] := '{{}}';
  newest bigint;
BEGIN
  FOR i IN 1 .. count LOOP
    newest := nextval('audit_log_ids');
    previous := encode(sha256((previous || ':' || newest || ':' || digests[i])::bytea), 'hex');
    drawn := drawn || newest;
  END LOOP;
  WITH moved AS (
    UPDATE audit_heads AS head
      SET last_id = newest, checksum = previous, changed_at = told[5]::timestamptz
      WHERE head.account_id = account
  )
  INSERT INTO audit_changes (
    account_id, first_id, last_id, entries, operation, table_name, record_id, extra_metadata,
    occurred_at, user_id, user_email, user_name, ip_address, user_agent, request_id,
    es_username, es_reason, es_timestamp,
    columns, old_values, new_values, salts, actor_salts, ids, checksum)
  VALUES (
    account, drawn[1], newest, count, told[1], told[2], told[3], told[4],
    told[5]::timestamptz, told[6], told[7], told[8], told[9], told[10], told[11],
    told[12], told[13], told[14]::timestamptz,
    names, olds, news, value_salts, actor_salt,
    CASE WHEN newest - drawn[1] >= count THEN array_to_json(drawn)::text END,
    decode(previous, 'hex'));
END $$
"""  # noqa: S608 - constants


def upgrade() -> None:
    """Apply the revision; on PostgreSQL most of it beside the running service."""
    bind = op.get_bind()
    if bind.dialect.name == "postgresql":
        with bind.engine.connect() as beside:
            if _is_served(beside):
                _convert_beside(beside)
        _create_table(bind)
        # Writers wait from here on, as they lock heads.
        op.execute("LOCK TABLE audit_heads IN EXCLUSIVE MODE")
        _convert_all(bind)
        _create_indexes(bind)
        _replace_on_postgres()
    else:
        _create_table(bind)
        _convert_all(bind)
        _replace_on_sqlite()


def _is_served(connection: sa.Connection) -> bool:
    """Whether a committed revision has the tables, and none that is not committed locks them."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return False
    version = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    connection.rollback()
    return version is not None and "0020" <= version <= "0029"


def _create_table(connection: sa.Connection) -> None:
    sa.Table("audit_changes_new", sa.MetaData(), *_columns()).create(connection, checkfirst=True)


def _columns() -> list[sa.SchemaItem]:
    return [
        sa.Column("account_id", Text, nullable=False),
        sa.Column("first_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_id", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("operation", Text, nullable=False),
        sa.Column("table_name", Text, nullable=False),
        sa.Column("record_id", Text, nullable=False),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("occurred_at", UtcDateTime(), nullable=False),
        sa.Column("user_email", Text, nullable=True),
        sa.Column("user_name", Text, nullable=True),
        sa.Column("es_username", Text, nullable=True),
        sa.Column("es_reason", Text, nullable=True),
        sa.Column("es_timestamp", UtcDateTime(), nullable=True),
        sa.Column("ip_address", Text, nullable=True),
        sa.Column("user_agent", Text, nullable=True),
        sa.Column("request_id", Text, nullable=True),
        sa.Column("extra_metadata", Text, nullable=True),
        sa.Column("columns", Text, nullable=False),
        sa.Column("old_values", Text, nullable=True),
        sa.Column("new_values", Text, nullable=True),
        sa.Column("salts", sa.LargeBinary(), nullable=True),
        sa.Column("actor_salts", sa.LargeBinary(), nullable=True),
        sa.Column("erased_digests", Text, nullable=True),
        sa.Column("ids", Text, nullable=True),
        sa.Column("checksum", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "first_id", name="pk_audit_changes_new"),
    ]


NEW = sa.Table("audit_changes_new", sa.MetaData(), *_columns())


def _convert_beside(connection: sa.Connection) -> None:
    """Convert what is there, in committed pieces; what an earlier try converted is kept."""
    with connection.begin():
        _create_table(connection)
    done = 0
    with progress.shown("Changes of the audit log converted") as show:
        for account_id in connection.scalars(sa.text("SELECT account_id FROM audit_heads")).all():
            connection.commit()
            while True:
                with connection.begin():
                    if not (count := _convert_some(connection, account_id, BATCH)):
                        break
                show(done := done + count)
    connection.commit()
    with connection.begin():
        _create_indexes(connection)


def _create_indexes(connection: sa.Connection) -> None:
    for name, columns in INDEXES.items():
        place = ", ".join((*columns, "occurred_at", "first_id"))
        index = f"IF NOT EXISTS ix_audit_changes_new_{name} ON audit_changes_new ({place})"
        connection.exec_driver_sql(f"CREATE INDEX {index}")


def _convert_all(connection: sa.Connection) -> None:
    """Convert the rest, and see that every chain ends as its head says."""
    heads = sa.text("SELECT account_id, last_id, checksum FROM audit_heads ORDER BY account_id")
    for account_id, last_id, checksum in connection.execute(heads).all():
        with progress.shown(f"Changes of account {account_id} converted") as show:
            done = 0
            while count := _convert_some(connection, account_id, FINAL_BATCH):
                show(done := done + count)
        last = _last(connection, account_id)
        if last_id and (last is None or (last.last_id, last.checksum.hex()) != (last_id, checksum)):
            _refuse_broken(account_id, last_id)


def _refuse_broken(account_id: str, id: int) -> None:
    if context.get_x_argument(as_dictionary=True).get("broken_chains") == "convert":
        log.warning("audit chain broken", account=account_id, entry=id)
        return
    raise RuntimeError(
        f"The audit chain of account {account_id} is broken at entry {id}. Look into it with the"
        " version before (bin/atrium audit verify, and an export of the log). To convert it,"
        " still broken: bin/atrium db upgrade -x broken_chains=convert"
    )


def _last(connection: sa.Connection, account_id: str) -> Any:
    mine = sa.select(NEW).where(NEW.c.account_id == account_id)
    return connection.execute(mine.order_by(NEW.c.first_id.desc()).limit(1)).first()


def _convert_some(connection: sa.Connection, account_id: str, limit: int) -> int:
    """Convert the next changes of a chain. Returns how many."""
    last = _last(connection, account_id)
    values = {"account_id": account_id, "after": last.first_id if last else -(2**63)}
    changes = connection.execute(sa.text(NEXT_CHANGES), {**values, "limit": limit}).all()
    stored = _stored(connection, account_id, changes)
    rows = list(_converted(stored, last.checksum if last else b""))
    if rows:
        connection.execute(sa.insert(NEW), rows)
    for row in rows:
        if (row["operation"], row["table_name"]) == ("UPDATE", "audit_log"):
            _take_erasure(connection, account_id, int(row["record_id"]))
    if rows:
        log.info("audit changes converted", account=account_id, up_to=rows[-1]["last_id"])
    return len(rows)


def _stored(connection: sa.Connection, account_id: str, changes: Sequence[Any]) -> list[Any]:
    """The entries of consecutive changes, each with the `first_id` of its change."""
    if not changes:
        return []
    types = {"occurred_at": UtcDateTime(), "es_timestamp": UtcDateTime()}
    entries_of = sa.text(ENTRIES).columns(**types, extra_metadata=sa.JSON())
    ends = {"first": changes[0].first_id, "last": changes[-1].last_id}
    found = connection.execute(entries_of, {"account_id": account_id, **ends}).mappings()
    firsts = [change.first_id for change in changes]
    return [{**entry, "first_id": firsts[bisect_right(firsts, entry["id"]) - 1]} for entry in found]


def _take_erasure(connection: sa.Connection, account_id: str, id: int) -> None:
    # It may have come after its change was converted.
    change = connection.execute(sa.text(CHANGE_OF), {"account_id": account_id, "id": id}).all()
    stored = _stored(connection, account_id, change)
    if not stored:
        return
    place = (NEW.c.account_id == account_id, NEW.c.first_id >= stored[0]["id"])
    until = NEW.c.first_id <= stored[-1]["id"]
    before = sa.select(NEW.c.checksum).where(
        NEW.c.account_id == account_id, NEW.c.first_id < stored[0]["id"]
    )
    previous = connection.scalar(before.order_by(NEW.c.first_id.desc()).limit(1))
    connection.execute(sa.delete(NEW).where(*place, until))
    connection.execute(sa.insert(NEW), list(_converted(stored, previous or b"")))


def _converted(stored: list[Any], previous: bytes) -> Iterator[dict[str, object]]:
    """The new rows of entries in order, after the change with the checksum `previous`."""
    for _, group in groupby(stored, _change_of):
        found = list(group)
        row = _row(found)
        yield _verified(row, found, previous)
        previous = row["checksum"]


def _change_of(entry: Any) -> tuple[object, ...]:
    shared = tuple(str(entry[name]) for name in ("occurred_at", *SHARED))
    return (entry["first_id"], entry["salt"] is None, entry["actor_salt"] is None, *shared)


def _row(found: list[Any]) -> dict[str, Any]:
    first = found[0]
    names = [entry["column_name"] for entry in found]
    values = [(entry["column_name"], entry["old_value"], entry["new_value"]) for entry in found]
    columns, old_values, new_values = audit_log.stored_values(values)
    ids = [entry["id"] for entry in found]
    erased = {
        kind: [entry[f"{kind}_digest"] for entry in found]
        for kind, salt in (("values", "salt"), ("actor", "actor_salt"))
        if first[salt] is None
    }
    metadata = first["extra_metadata"]
    same = ("account_id", "operation", "table_name", "record_id", "user_id", "occurred_at")
    return {
        **{name: first[name] for name in (*same, *COPIED)},
        "extra_metadata": audit_log.canonical(metadata).decode() if metadata else None,
        "first_id": ids[0],
        "last_id": ids[-1],
        "entries": len(names),
        "columns": columns,
        "old_values": old_values,
        "new_values": new_values,
        "salts": None if first["salt"] is None else _bytes(found, "salt"),
        "actor_salts": None if first["actor_salt"] is None else _bytes(found, "actor_salt"),
        "erased_digests": orjson.dumps(erased).decode() if erased else None,
        "ids": audit_log.stored_ids(ids),
        "checksum": bytes.fromhex(found[-1]["checksum"]),
    }


def _bytes(found: list[Any], name: str) -> bytes:
    return bytes.fromhex("".join(entry[name] for entry in found))


def _verified(row: dict[str, Any], found: list[Any], previous: bytes) -> dict[str, Any]:
    """The new row. Raises RuntimeError unless it gives exactly the entries that it replaces."""
    for entry, computed in zip(found, audit_log.entries_of(row, previous), strict=True):
        stored = {**entry, "masked": False, "occurred_at": iso(entry["occurred_at"])}
        if entry["es_timestamp"] is not None:
            stored["es_timestamp"] = iso(entry["es_timestamp"])
        if any(stored[name] != value for name, value in computed.items()):
            _refuse_broken(entry["account_id"], entry["id"])
            break
    return row


def _replace_on_postgres() -> None:
    for statement in (
        "DROP TRIGGER audit_heads_moved ON audit_heads",
        "ALTER SEQUENCE audit_log_ids OWNED BY NONE",
        "DROP TABLE audit_log",
        "DROP TABLE audit_changes",
        "ALTER TABLE audit_changes_new RENAME TO audit_changes",
        "ALTER TABLE audit_changes RENAME CONSTRAINT pk_audit_changes_new TO pk_audit_changes",
        *(
            f"ALTER INDEX ix_audit_changes_new_{name} RENAME TO ix_audit_changes_{name}"
            for name in INDEXES
        ),
        VIEW.format(**ON_POSTGRES),
        INSERT_ENTRY,
        (
            "CREATE TRIGGER audit_log_insert INSTEAD OF INSERT ON audit_log"
            " FOR EACH ROW EXECUTE FUNCTION insert_audit_entry()"
        ),
        SKIP,
        # Older versions also write the former index of changes.
        (
            "CREATE TRIGGER audit_changes_skip BEFORE INSERT ON audit_changes"
            " FOR EACH ROW WHEN (NEW.checksum IS NULL) EXECUTE FUNCTION skip_audit_index()"
        ),
        APPEND,
        (
            "CREATE TRIGGER audit_changes_update BEFORE UPDATE ON audit_changes FOR EACH ROW"
            f" WHEN ({_changes('IS DISTINCT FROM')}) EXECUTE FUNCTION refuse_audit_change()"
        ),
        (
            "CREATE TRIGGER audit_changes_delete BEFORE DELETE ON audit_changes"
            " FOR EACH ROW EXECUTE FUNCTION refuse_audit_change()"
        ),
        (
            "CREATE TRIGGER audit_changes_truncate BEFORE TRUNCATE ON audit_changes"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
        ),
    ):
        op.execute(statement)
    row_security.cover(op.get_bind(), "audit_changes")


def _changes(
    distinct: str, erasable: Sequence[str] = ERASABLE, fixed: Sequence[str] = FIXED
) -> str:
    """The condition for an UPDATE that does more than erase."""
    differs = [f"NEW.{name} {distinct} OLD.{name}" for name in fixed]
    erased = [f"(NEW.{n} IS NOT NULL AND NEW.{n} {distinct} OLD.{n})" for n in erasable]
    # Digests are kept by the erasure itself.
    salts = (f"NOT (NEW.{name} {distinct} OLD.{name})" for name in ("salts", "actor_salts"))
    digests = [f"NEW.erased_digests {distinct} OLD.erased_digests", *salts]
    return " OR ".join([*differs, *erased, f"({' AND '.join(digests)})"])


def _replace_on_sqlite() -> None:
    for trigger in ("update", "delete"):
        op.execute(f"DROP TRIGGER IF EXISTS audit_log_{trigger}")
        op.execute(f"DROP TRIGGER IF EXISTS audit_changes_{trigger}")
    op.execute("DROP TABLE audit_log")
    op.execute("DROP TABLE audit_changes")
    op.execute("ALTER TABLE audit_changes_new RENAME TO audit_changes")
    for name, columns in INDEXES.items():
        op.create_index(
            f"ix_audit_changes_{name}", "audit_changes", [*columns, "occurred_at", "first_id"]
        )
    op.execute(VIEW.format(**ON_SQLITE).replace(":", "\\:"))
    refuse = "BEGIN SELECT RAISE(ABORT, 'audit_changes is append-only'); END"
    op.execute(
        "CREATE TRIGGER audit_changes_update BEFORE UPDATE ON audit_changes"
        f" WHEN {_changes('IS NOT')} {refuse}"
    )
    op.execute(f"CREATE TRIGGER audit_changes_delete BEFORE DELETE ON audit_changes {refuse}")


def downgrade() -> None:
    """Revert the revision; the service must be stopped."""
    bind = op.get_bind()
    postgres = bind.dialect.name == "postgresql"
    op.execute("DROP VIEW audit_log")
    if postgres:
        op.execute(f"DROP FUNCTION append_audit_change({SIGNATURE})")
        op.execute("DROP TRIGGER audit_changes_skip ON audit_changes")
        op.execute("DROP FUNCTION insert_audit_entry")
        op.execute("DROP FUNCTION skip_audit_index")
    op.rename_table("audit_changes", "audit_changes_new")
    for name in INDEXES:
        op.drop_index(f"ix_audit_changes_{name}", "audit_changes_new")
    if postgres:
        op.execute("ALTER INDEX pk_audit_changes RENAME TO pk_audit_changes_new")
    older = {number: context.script.get_revision(number).module for number in ("0005", "0012")}
    _create_former_tables()
    _fill_former_tables(bind)
    op.drop_table("audit_changes_new")
    op.execute("UPDATE audit_heads SET listed_id = last_id")
    if postgres:
        _guard_former_tables(older["0005"])
    else:
        older["0005"]._guard_sqlite()
        older["0012"]._guard_sqlite()


FORMER = ("account_id", "first_id", "last_id", "entries", "operation", "table_name", "record_id")
FORMER += ("user_id", "occurred_at")


def _create_former_tables() -> None:
    types = {column.name: column.type for column in NEW.columns}
    types |= {"id": sa.BigInteger(), "extra_metadata": sa.JSON(none_as_null=True)}
    required = {"id", "column_name", *FORMER, *(n for n in NAMES if n.endswith("_digest"))}
    required |= {"previous_hash", "checksum"}
    op.create_table(
        "audit_log",
        *(
            sa.Column(
                name,
                Text if name == "checksum" else types.get(name, Text),
                autoincrement=False,
                nullable=name not in required,
            )
            for name in NAMES
            if name != "masked"
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name="pk_audit_log"),
    )
    op.create_table(
        "audit_changes",
        *(sa.Column(name, types[name], autoincrement=False, nullable=False) for name in FORMER),
        sa.PrimaryKeyConstraint("account_id", "first_id", name="pk_audit_changes"),
    )
    for name, columns in {**INDEXES, "account_user": ["account_id", "user_id"]}.items():
        place = [*columns, "occurred_at", "first_id"]
        op.create_index(f"ix_audit_changes_{name}", "audit_changes", place)


def _fill_former_tables(connection: sa.Connection) -> None:
    metadata = sa.MetaData()
    log_table, changes = (
        sa.Table(name, metadata, autoload_with=connection)
        for name in ("audit_log", "audit_changes")
    )
    previous: dict[str, bytes] = {}
    for row in connection.execute(sa.select(NEW).order_by(NEW.c.account_id, NEW.c.first_id)).all():
        found = audit_log.entries_of(row._asdict(), previous.get(row.account_id, b""))
        previous[row.account_id] = row.checksum
        moments = {"occurred_at": row.occurred_at, "es_timestamp": row.es_timestamp}
        kept = [name for name in NAMES if name != "masked"]
        stored = [{name: (entry | moments)[name] for name in kept} for entry in found]
        connection.execute(sa.insert(log_table), stored)
        connection.execute(sa.insert(changes).values({n: getattr(row, n) for n in FORMER}))


def _guard_former_tables(older: Any) -> None:
    refuse = "EXECUTE FUNCTION refuse_audit_change()"
    for statement in (
        "ALTER SEQUENCE audit_log_ids OWNED BY audit_log.id",
        (
            "CREATE TRIGGER audit_log_update BEFORE UPDATE ON audit_log FOR EACH ROW"
            f" WHEN ({older._changes('IS DISTINCT FROM')}) {refuse}"
        ),
        f"CREATE TRIGGER audit_log_delete BEFORE DELETE ON audit_log FOR EACH ROW {refuse}",
        (
            "CREATE TRIGGER audit_log_truncate BEFORE TRUNCATE ON audit_log"
            f" FOR EACH STATEMENT {refuse}"
        ),
        (
            "CREATE TRIGGER audit_changes_change BEFORE UPDATE OR DELETE OR TRUNCATE"
            f" ON audit_changes FOR EACH STATEMENT {refuse}"
        ),
        (
            "CREATE TRIGGER audit_heads_moved AFTER UPDATE OF last_id ON audit_heads FOR EACH ROW"
            " WHEN (NEW.listed_id < NEW.last_id) EXECUTE FUNCTION collect_audit_changes()"
        ),
    ):
        op.execute(statement)
