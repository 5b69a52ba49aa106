"""calculate with decimals

Revision ID: 0091
Revises: 0090
Create Date: 2026-11-30 18:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0091"
down_revision = "0090"
branch_labels = None
depends_on = None

# `app/rules/values.py` for PostgreSQL, as in migration 0004.
FUNCTIONS = {
    "decimal_settled(x numeric) RETURNS numeric": """
        BEGIN
            x := round(x, 38);
            IF abs(x) >= 1e308 THEN
                RETURN NULL;
            END IF;
            RETURN trim_scale(x);
        END""",
    "decimal(x numeric) RETURNS numeric": "BEGIN RETURN x; END",
    "decimal(x text) RETURNS numeric": r"""
        BEGIN
            IF length(x) <= 400 AND x ~ '^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)$' THEN
                RETURN x::numeric;
            END IF;
            RETURN NULL;
        END""",
    "decimal_plain(x numeric) RETURNS text": "BEGIN RETURN trim_scale(x)::text; END",
    "decimal_add(a numeric, b numeric) RETURNS numeric": (
        "BEGIN RETURN atrium_decimal_settled(a + b); END"
    ),
    "decimal_subtract(a numeric, b numeric) RETURNS numeric": (
        "BEGIN RETURN atrium_decimal_settled(a - b); END"
    ),
    "decimal_multiply(a numeric, b numeric) RETURNS numeric": (
        "BEGIN RETURN atrium_decimal_settled(a * b); END"
    ),
    # Twice the quotient and one, by twice the divisor: rounds once, as div() has no rest.
    "decimal_divide(a numeric, b numeric) RETURNS numeric": """
        BEGIN
            IF b = 0 THEN
                RETURN NULL;
            END IF;
            RETURN atrium_decimal_settled(
                sign(a) * sign(b) * div(abs(a) * 2e38 + abs(b), abs(b) * 2) * 1e-38);
        END""",
    "decimal_remainder(a numeric, b numeric) RETURNS numeric": """
        BEGIN
            IF b = 0 THEN
                RETURN NULL;
            END IF;
            RETURN atrium_decimal_settled(a % b);
        END""",
    "decimal_round(x numeric, digits numeric) RETURNS numeric": """
        BEGIN
            RETURN atrium_decimal_settled(
                round(x, trunc(greatest(-400, least(400, digits)))::int));
        END""",
    "decimal_abs(x numeric) RETURNS numeric": "BEGIN RETURN atrium_decimal_settled(abs(x)); END",
    "decimal_ceil(x numeric) RETURNS numeric": "BEGIN RETURN atrium_decimal_settled(ceil(x)); END",
    "decimal_floor(x numeric) RETURNS numeric": (
        "BEGIN RETURN atrium_decimal_settled(floor(x)); END"
    ),
}


def upgrade() -> None:
    """Apply the revision."""
    if op.get_bind().dialect.name == "postgresql":
        for head, body in FUNCTIONS.items():
            op.get_bind().exec_driver_sql(
                f"CREATE FUNCTION atrium_{head} LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE"
                f" AS $body$ {body}; $body$".replace("%", "%%")
            )


def downgrade() -> None:
    """Revert the revision."""
    if op.get_bind().dialect.name == "postgresql":
        for head in reversed(FUNCTIONS):
            signature = head.partition(" RETURNS ")[0]
            op.execute(sa.text(f"DROP FUNCTION atrium_{signature}"))
