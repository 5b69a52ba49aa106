"""Row-level security: PostgreSQL itself separates accounts, too (docs/scaling.md).

The login that owns the tables has two roles, named after it. In tenant tables `<owner>_account`
sees only the rows of the account in the setting `app.account_id`; `<owner>_all` sees every row. A
connection starts as the former without an account, and sees nothing. Statements set role and
account (`app.db.postgres_driver`).

Lists read views of the same condition and name, in a schema of their own (docs/adr/0030): before a
policy PostgreSQL evaluates leakproof functions only, so that an index on a number would be useless.

Citus connects to its workers as the current role and cannot change that role within a transaction.
A sharded database has one policy instead, which also applies to the owner (docs/adr/0053).
"""

from __future__ import annotations

from contextlib import closing

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.pool import ConnectionPoolEntry

from app.context import tenancy
from app.db import citus
from app.db.postgres_driver import Driver, Roles, quote_identifier

INSTALLING = 0x4174726962
VIEWS = "own_records"
OWN_ROWS = "account_id = current_setting('app.account_id', true)"
SHARDED_ROWS = f"{OWN_ROWS} OR current_setting('app.account_id', true) = '{tenancy.ALL_ACCOUNTS}'"
RIGHTS = "SELECT, INSERT, UPDATE, DELETE"

# Since version 16 the creator of a role is its member, but may not yet SET ROLE to it.
MAY_TAKE = (
    "CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END"
)
MAKE_ROLES = f"""
DO $$
DECLARE role text;
BEGIN
  FOREACH role IN ARRAY ARRAY[current_user || '_account', current_user || '_all'] LOOP
    BEGIN
      IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
        EXECUTE format('CREATE ROLE %I NOLOGIN', role);
      END IF;
      IF NOT pg_has_role(role, {MAY_TAKE}) THEN
        EXECUTE format('GRANT %I TO CURRENT_USER', role);
      END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;  -- roles belong to the server: another database has just created it
    END;
  END LOOP;
EXCEPTION WHEN insufficient_privilege THEN
  NULL;  -- an operator with the privilege has to create them
END $$
"""
# Nobody may log in as one of the roles, and none may bypass policies. psycopg2 would read a "%" in
# a name as a placeholder.
FIND_ROLES = f"""
SELECT one.rolname, every.rolname
FROM pg_roles AS owner
JOIN pg_roles AS one ON one.rolname = owner.rolname || '_account'
JOIN pg_roles AS every ON every.rolname = owner.rolname || '_all'
WHERE owner.rolname = {{owner}} AND strpos(owner.rolname, '%') = 0
  AND pg_has_role(one.oid, {MAY_TAKE}) AND pg_has_role(every.oid, {MAY_TAKE})
  AND NOT (one.rolcanlogin OR one.rolsuper OR one.rolbypassrls)
  AND NOT (every.rolcanlogin OR every.rolsuper OR every.rolbypassrls)
"""  # noqa: S608 - constants
OWNER = "(SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass('users')"
ENTER = (
    "SELECT found.*, current_setting('search_path'), set_config('role', found.one, false)"  # noqa: S608 - constants
    f" FROM ({FIND_ROLES.format(owner=f'{OWNER} AND relrowsecurity AND NOT relforcerowsecurity)')})"
    " AS found (one, every)"
)
# Citus lets one statement at a time change many shards of a table, until its transaction ends. Rows
# that are locked crosswise are found by its detector of deadlocks, as on one server.
ENTER_SHARDED = (
    "SELECT set_config('citus.propagate_set_commands', 'local', false),"
    " set_config('citus.enable_deadlock_prevention', 'off', false) FROM pg_class"
    " WHERE oid = to_regclass('users') AND relrowsecurity AND relforcerowsecurity"
)
UNCOVERED = """
SELECT format('%I', t.relname)
FROM pg_class AS t
JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attname = 'account_id' AND NOT a.attisdropped
WHERE t.relnamespace = current_schema()::regnamespace AND t.relkind IN ('r', 'p')
  AND NOT (t.relrowsecurity AND NOT t.relforcerowsecurity AND (
    SELECT count(*) FROM pg_policy AS p WHERE p.polrelid = t.oid AND p.polroles[1] IN (
      SELECT oid FROM pg_roles WHERE rolname IN (:one, :every))) = 2)
-- `users` last: connections take its policy as the sign that all others exist.
ORDER BY t.relname = 'users', t.relname
"""
UNFORCED = """
SELECT format('%I', t.relname)
FROM pg_class AS t
JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attname = 'account_id' AND NOT a.attisdropped
WHERE t.relnamespace = current_schema()::regnamespace AND t.relkind IN ('r', 'p')
  AND NOT (t.relrowsecurity AND t.relforcerowsecurity AND EXISTS (
    SELECT FROM pg_policy AS p WHERE p.polrelid = t.oid AND p.polroles = '{0}')
    AND (SELECT count(*) FROM pg_policy AS p WHERE p.polrelid = t.oid) = 1)
ORDER BY t.relname = 'users', t.relname
"""
FORCED = """
SELECT format('%I', relname) FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relforcerowsecurity
ORDER BY relname <> 'users', relname
"""
UNVIEWED = f"""
SELECT format('%I', t.relname) FROM collections
JOIN pg_class AS t ON t.relname = table_name AND t.relnamespace = current_schema()::regnamespace
WHERE NOT EXISTS (
  SELECT FROM pg_class AS v WHERE v.relnamespace = to_regnamespace('{VIEWS}')
  AND v.relname = t.relname AND has_table_privilege(:one, v.oid, 'SELECT'))
"""  # noqa: S608 - constants
# Whoever changes or deletes a collection: a view may lack columns, and would keep its table.
DROP_VIEW = f"""
CREATE OR REPLACE FUNCTION drop_own_records() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  IF TG_OP = 'DELETE' OR (OLD.table_name, OLD.schema::text) <> (NEW.table_name, NEW.schema::text)
  THEN
    EXECUTE format('DROP VIEW IF EXISTS {VIEWS}.%I', OLD.table_name);
  END IF;
  RETURN NULL;
END $$
"""
DROPPED = """
CREATE OR REPLACE TRIGGER drop_own_records AFTER UPDATE OR DELETE ON collections
FOR EACH ROW EXECUTE FUNCTION drop_own_records()
"""
BYPASSES_POLICIES = sa.text(
    "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
)
MAY_ADD_VIEWS = sa.text(
    "SELECT has_database_privilege(current_database(), 'CREATE')"
    " AND to_regclass('collections') IS NOT NULL"
)


def enforce(engine: Engine) -> None:
    """Apply the policies to every connection of an engine."""
    sa.event.listen(engine, "connect", _enter)


def _enter(driver: Driver, record: ConnectionPoolEntry) -> None:
    autocommit, driver.autocommit = driver.autocommit, True
    with closing(driver.cursor()) as cursor:
        cursor.execute(ENTER)
        row = cursor.fetchone()
        if row is None:
            cursor.execute(ENTER_SHARDED)
            driver.is_sharded = cursor.fetchone() is not None
    driver.autocommit = autocommit
    driver.roles = Roles(*row[:2]) if row else None
    driver.views_path = f"{VIEWS}, {row[2]}" if row else ""


def install(engine: Engine) -> None:
    """Create roles, grants and policies; without the roles nothing is enforced.

    Each table has its own transaction, so that concurrent work waits for one table at a time.
    """
    with tenancy.as_owner(), engine.connect() as connection:
        _run(connection, f"SELECT pg_advisory_lock({INSTALLING})")
        try:
            _install(connection)
        finally:
            _run(connection, f"SELECT pg_advisory_unlock({INSTALLING})")
    engine.dispose()  # connections learn their roles as they open


def _install(connection: sa.Connection) -> None:
    if citus.is_sharded(connection):
        for table in unforced(connection):
            _run_apart(connection, "BEGIN", *_forced(table), "COMMIT")
        return
    roles = make_roles(connection)
    if roles is None:
        return
    schema = connection.scalar(sa.text("SELECT quote_ident(current_schema())"))
    to = f"TO {quote_identifier(roles.one)}, {quote_identifier(roles.every)}"
    _run(
        connection,
        f"GRANT USAGE ON SCHEMA {schema} {to}",
        f"GRANT {RIGHTS} ON ALL TABLES IN SCHEMA {schema} {to}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} {to}",
        # For tables that processes of an older release still create.
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT {RIGHTS} ON TABLES {to}",
    )
    for table in uncovered(connection, roles):
        _cover(connection, roles, table)
    if connection.scalar(MAY_ADD_VIEWS):
        one = quote_identifier(roles.one)
        _run(
            connection,
            f"CREATE SCHEMA IF NOT EXISTS {VIEWS}",
            f"GRANT USAGE ON SCHEMA {VIEWS} TO {one}",
            DROP_VIEW,
            DROPPED,
        )
        for table in unviewed(connection, roles):
            _view(connection, roles, table)


def make_roles(connection: sa.Connection) -> Roles | None:
    """Return the login's roles, created if missing; None if it may not create them."""
    _run(connection, MAKE_ROLES)
    row = connection.execute(sa.text(FIND_ROLES.format(owner="current_user"))).first()
    return Roles(*row) if row else None


def uninstall(engine: Engine) -> None:
    """Let the owner of a sharded database see all rows again, whatever is set."""
    with tenancy.as_owner(), engine.connect() as connection:
        for table in connection.scalars(sa.text(FORCED)).all():
            _run_apart(connection, f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    engine.dispose()


def cover(connection: sa.Connection, table: str) -> None:
    """Add grants and policies to a new table, given by its quoted name."""
    if is_forced(connection):
        _run_apart(connection, *_forced(table))
        return
    roles = active_roles(connection)
    if roles is not None:
        _cover(connection, roles, table)
        add_view(connection, table)


def add_view(connection: sa.Connection, table: str) -> None:
    """Create a collection's view if it is missing."""
    roles = active_roles(connection)
    has_schema = sa.text(f"SELECT to_regnamespace('{VIEWS}') IS NOT NULL")
    if roles is not None and connection.scalar(has_schema) and table in unviewed(connection, roles):
        _view(connection, roles, table)


def drop_view(table: str) -> str:
    """Return the statement that drops a collection's view, before its table is locked.

    Readers lock the view first: the other way round, the two would wait for each other.
    """
    return f"DROP VIEW IF EXISTS {VIEWS}.{table}"


def leave_views(connection: sa.Connection) -> None:
    """Drop all views: a sharded database has none, as its owner is subject to policies, too."""
    _run_apart(
        connection,
        "DROP TRIGGER IF EXISTS drop_own_records ON collections",
        "DROP FUNCTION IF EXISTS drop_own_records",
        f"DROP SCHEMA IF EXISTS {VIEWS} CASCADE",
    )


def unviewed(connection: sa.Connection, roles: Roles) -> list[str]:
    """Return the tables of collections without a view, by quoted name."""
    return list(connection.scalars(sa.text(UNVIEWED), roles._asdict()))


def uncovered(connection: sa.Connection, roles: Roles) -> list[str]:
    """Return the tenant tables without policies, by quoted name."""
    return list(connection.scalars(sa.text(UNCOVERED), roles._asdict()))


def unforced(connection: sa.Connection) -> list[str]:
    """Return the tenant tables of a sharded database without its policy, by quoted name."""
    return list(connection.scalars(sa.text(UNFORCED)))


def is_forced(connection: sa.Connection) -> bool:
    """Whether the policies of a sharded database apply to a connection's statements."""
    return bool(getattr(connection.connection.driver_connection, "is_sharded", False))


def hides_rows(connection: sa.Connection) -> bool:
    """Whether policies hide rows from the login itself, as in a sharded database."""
    forced = connection.scalar(sa.text(FORCED)) is not None
    return forced and not connection.scalar(BYPASSES_POLICIES)


def active_roles(connection: sa.Connection) -> Roles | None:
    """Return the roles that a connection's statements run as; None if nothing is enforced."""
    roles: Roles | None = getattr(connection.connection.driver_connection, "roles", None)
    return roles


def setup_advice(connection: sa.Connection) -> str:
    """Return how to enable row-level security."""
    owner = connection.scalar(sa.text("SELECT current_user"))
    one, every = quote_identifier(f"{owner}_account"), quote_identifier(f"{owner}_all")
    return (
        "are separated by the application alone. Run bin/atrium db upgrade. If its login may"
        f" not create roles, first run as a superuser: CREATE ROLE {one}; CREATE ROLE {every};"
        f" GRANT {one}, {every} TO {quote_identifier(owner)}"
    )


def _cover(connection: sa.Connection, roles: Roles, table: str) -> None:
    one, every = map(quote_identifier, roles)
    _run(
        connection,
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY",  # of a restored, sharded database
        # A restored database may have policies for another login's roles.
        f"DROP POLICY IF EXISTS one_account ON {table}",
        f"DROP POLICY IF EXISTS every_account ON {table}",
        f"CREATE POLICY one_account ON {table} TO {one} USING ({OWN_ROWS})",
        f"CREATE POLICY every_account ON {table} TO {every} USING (true)",
        f"GRANT {RIGHTS} ON {table} TO {one}, {every}",
    )


def _forced(table: str) -> list[str]:
    return [
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
        f"DROP POLICY IF EXISTS one_account ON {table}",
        # It would also apply to the owner, as a member of its role.
        f"DROP POLICY IF EXISTS every_account ON {table}",
        f"CREATE POLICY one_account ON {table} USING ({SHARDED_ROWS})",
    ]


def _view(connection: sa.Connection, roles: Roles, table: str) -> None:
    view = f"{VIEWS}.{table}"
    _run(
        connection,
        drop_view(table),
        f"CREATE VIEW {view} AS SELECT * FROM {table} WHERE {OWN_ROWS}",  # noqa: S608 - quoted
        f"GRANT SELECT ON {view} TO {quote_identifier(roles.one)}",
    )


def _run(connection: sa.Connection, *statements: str) -> None:
    if statements:
        options = {"no_parameters": True}
        connection.exec_driver_sql("; ".join(statements), execution_options=options)


def _run_apart(connection: sa.Connection, *statements: str) -> None:
    """Run statements one by one: Citus sends the text of a message to its workers as a whole."""
    for statement in statements:
        _run(connection, statement)
