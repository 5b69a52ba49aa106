"""The second lock between accounts, which PostgreSQL itself holds (docs/scaling.md).

Below the login that owns the tables stand two roles, named after it. `<owner>_account` sees, of
each table of accounts, the rows of the one account that the setting `app.account_id` names;
`<owner>_all` sees those of all. A connection begins as the former, with nothing set: it sees
nothing. Its statements tell role and account along (`app.db.postgres_driver`).
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from app.context import tenancy
from app.db.postgres_driver import Driver, Roles, quoted

INSTALLING = 0x4174726962
RIGHTS = "SELECT, INSERT, UPDATE, DELETE"
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "cmp")

# Since version 16 the maker of a role belongs to it, but may not yet take it.
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
      NULL;  -- roles are the whole server's: another of its databases has just made it
    END;
  END LOOP;
EXCEPTION WHEN insufficient_privilege THEN
  NULL;  -- then whoever may has to make them
END $$
"""
# Nobody may sign in as one, and no right of its own leads past a policy. A "%" would mean something
# else with parameters than without.
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
    "SELECT found.*, set_config('role', found.one, false)"  # noqa: S608 - constants
    f" FROM ({FIND_ROLES.format(owner=f'{OWNER} AND relrowsecurity)')}) AS found (one, every)"
)
UNCOVERED = """
SELECT format('%I', t.relname)
FROM pg_class AS t
JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attname = 'account_id' AND NOT a.attisdropped
WHERE t.relnamespace = current_schema()::regnamespace AND t.relkind IN ('r', 'p')
  AND NOT (t.relrowsecurity AND (
    SELECT count(*) FROM pg_policy AS p WHERE p.polrelid = t.oid AND p.polroles[1] IN (
      SELECT oid FROM pg_roles WHERE rolname IN (:one, :every))) = 2)
-- Connections go by `users`: by then there are all others.
ORDER BY t.relname = 'users', t.relname
"""
UNMARKED = sa.text(
    "SELECT oid::regprocedure::text FROM pg_proc"
    " WHERE proname IN :names AND pronamespace = 'pg_catalog'::regnamespace AND NOT proleakproof"
).bindparams(sa.bindparam("names", [f"numeric_{one}" for one in COMPARISONS], expanding=True))


def enforce(engine: Engine) -> None:
    """Have every statement of an engine, whose driver's connections are ours, seen by policies."""
    sa.event.listen(engine, "connect", _enter)


def _enter(driver: Driver, record: Any) -> None:
    autocommit, driver.autocommit = driver.autocommit, True
    with closing(driver.cursor()) as cursor:
        cursor.execute(ENTER)
        found = cursor.fetchone()
    driver.autocommit = autocommit
    driver.roles = Roles(*found[:2]) if found else None


def install(engine: Engine) -> None:
    """See to roles, rights and policies; without the roles there is no lock.

    Each table has a transaction of its own: what runs meanwhile waits for one at a time.
    """
    with tenancy.as_owner(), engine.connect() as connection:
        _run(connection, f"SELECT pg_advisory_lock({INSTALLING})")
        try:
            _install(connection)
        finally:
            _run(connection, f"SELECT pg_advisory_unlock({INSTALLING})")
    engine.dispose()  # who is connected already does not go by roles made now


def _install(connection: sa.Connection) -> None:
    roles = make_roles(connection)
    if roles is None:
        return
    schema = connection.scalar(sa.text("SELECT quote_ident(current_schema())"))
    to = f"TO {quoted(roles.one)}, {quoted(roles.every)}"
    _run(
        connection,
        f"GRANT USAGE ON SCHEMA {schema} {to}",
        f"GRANT {RIGHTS} ON ALL TABLES IN SCHEMA {schema} {to}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} {to}",
        # For tables that a process of a former release makes while it still runs.
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT {RIGHTS} ON TABLES {to}",
    )
    _mark_numbers(connection)
    for table in uncovered(connection, roles):
        _cover(connection, roles, table)


def make_roles(connection: sa.Connection) -> Roles | None:
    """The roles of a connection's login, made where they are missing; None where it may not."""
    _run(connection, MAKE_ROLES)
    return _find(connection)


def cover(connection: sa.Connection, table: str) -> None:
    """Give a new table, named as SQL has it, what `install` gives those that are there."""
    roles = in_force(connection)
    if roles is not None:
        _cover(connection, roles, table)


def uncovered(connection: sa.Connection, roles: Roles) -> list[str]:
    """The accounts' tables that lack their policies, named as SQL has it."""
    return list(connection.scalars(sa.text(UNCOVERED), roles._asdict()))


def in_force(connection: sa.Connection) -> Roles | None:
    """The roles that a connection's statements are run by; None where there is no lock."""
    roles: Roles | None = getattr(connection.connection.driver_connection, "roles", None)
    return roles


def advice(connection: sa.Connection) -> str:
    """What to do where there is no lock."""
    owner = connection.scalar(sa.text("SELECT current_user"))
    one, every = quoted(f"{owner}_account"), quoted(f"{owner}_all")
    return (
        "are kept apart by the application alone. Run flask --app wsgi db upgrade; where its login"
        f" may not make roles, have somebody run before: CREATE ROLE {one}; CREATE ROLE {every};"
        f" GRANT {one}, {every} TO {quoted(owner)}"
    )


def numbers_are_marked(connection: sa.Connection) -> bool:
    """Whether policies leave indexes of numbers their use (see `_mark_numbers`)."""
    return not list(connection.scalars(UNMARKED))


def _find(connection: sa.Connection) -> Roles | None:
    found = connection.execute(sa.text(FIND_ROLES.format(owner="current_user"))).first()
    return Roles(*found) if found else None


def _cover(connection: sa.Connection, roles: Roles, table: str) -> None:
    one, every = map(quoted, roles)
    mine = "account_id = current_setting('app.account_id', true)"
    _run(
        connection,
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        # A copy of a database may have those of another login's roles.
        f"DROP POLICY IF EXISTS one_account ON {table}",
        f"DROP POLICY IF EXISTS every_account ON {table}",
        f"CREATE POLICY one_account ON {table} TO {one} USING ({mine})",
        f"CREATE POLICY every_account ON {table} TO {every} USING (true)",
        f"GRANT {RIGHTS} ON {table} TO {one}, {every}",
    )


def _mark_numbers(connection: sa.Connection) -> None:
    # Before a policy PostgreSQL does only what tells nothing of a row, and of numbers it knows no
    # better; an index is then of no use to compare them. Only a superuser may say that it is.
    if connection.scalar(sa.text("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")):
        _run(
            connection, *(f"ALTER FUNCTION {one} LEAKPROOF" for one in connection.scalars(UNMARKED))
        )


def _run(connection: sa.Connection, *statements: str) -> None:
    if statements:
        options = {"no_parameters": True}
        connection.exec_driver_sql("; ".join(statements), execution_options=options)
