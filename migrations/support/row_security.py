"""Row-level security for tables that a revision adds to a database that has it."""

from __future__ import annotations

import sqlalchemy as sa

OWN_ROWS = "account_id = current_setting('app.account_id', true)"
ALL_ACCOUNTS = "*"
ROLES = """
SELECT quote_ident(r.rolname) FROM pg_policy AS p JOIN pg_roles AS r ON r.oid = p.polroles[1]
WHERE p.polrelid = to_regclass('users') AND p.polname IN ('one_account', 'every_account')
ORDER BY p.polname DESC
"""


def cover(connection: sa.Connection, table: str) -> None:
    """Add grants and policies like those of `users` to a new table, given by its quoted name."""
    if connection.dialect.name != "postgresql":
        return
    state = "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid = 'users'::regclass"
    is_enabled, is_forced = connection.execute(sa.text(state)).one()
    if not is_enabled:
        return
    roles = connection.scalars(sa.text(ROLES)).all()
    statements = [
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        # An interrupted upgrade may have left some.
        f"DROP POLICY IF EXISTS one_account ON {table}",
        f"DROP POLICY IF EXISTS every_account ON {table}",
    ]
    if is_forced:  # a sharded database has one policy, which also applies to the owner
        rows = f"{OWN_ROWS} OR current_setting('app.account_id', true) = '{ALL_ACCOUNTS}'"
        statements.append(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        statements.append(f"CREATE POLICY one_account ON {table} USING ({rows})")
    elif len(roles) == 2:
        one, every = roles
        rights = "SELECT, INSERT, UPDATE, DELETE"
        statements += [
            f"CREATE POLICY one_account ON {table} TO {one} USING ({OWN_ROWS})",
            f"CREATE POLICY every_account ON {table} TO {every} USING (true)",
            f"GRANT {rights} ON {table} TO {one}, {every}",
        ]
    for statement in statements:
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
