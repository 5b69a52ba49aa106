"""create rule functions

Revision ID: 0004
Revises: 0003
Create Date: 2026-11-21 15:10:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# The smallest number that overflows a double, and the largest that rounds to zero.
TOO_LARGE = 2**1024 - 2**970
TOO_SMALL = f"{5**1075}e-1075"

# `app/rules/values.py` for PostgreSQL; SQLite calls that module itself. They are functions, as
# expressions that use an argument repeatedly would grow exponentially when nested.
FUNCTIONS = {
    # Rounds to one of our numbers: a 64-bit integer, else a double.
    "number(x numeric) RETURNS numeric": f"""
        BEGIN
            IF round(x) BETWEEN -9223372036854775808 AND 9223372036854775807
                AND (x = round(x) OR abs(x) >= 9007199254740992) THEN
                RETURN round(x);
            ELSIF abs(x) >= {TOO_LARGE} THEN
                RETURN NULL;
            ELSIF abs(x) <= {TOO_SMALL} THEN
                RETURN 0;
            ELSIF x::float8 = -9223372036854775808 THEN
                RETURN -9223372036854775808;
            END IF;
            RETURN trim_scale(x::float8::text::numeric);
        END""",
    "add(a numeric, b numeric) RETURNS numeric": "BEGIN RETURN atrium_number(a + b); END",
    "subtract(a numeric, b numeric) RETURNS numeric": "BEGIN RETURN atrium_number(a - b); END",
    "multiply(a numeric, b numeric) RETURNS numeric": "BEGIN RETURN atrium_number(a * b); END",
    # A quotient has as many digits before the point as after it it needs.
    "divide(a numeric, b numeric) RETURNS numeric": """
        BEGIN
            IF b = 0 THEN
                RETURN NULL;
            END IF;
            RETURN atrium_number(a * 1e400 / b * 1e-400);
        END""",
    "remainder(a numeric, b numeric) RETURNS numeric": """
        BEGIN
            IF b = 0 THEN
                RETURN NULL;
            END IF;
            RETURN atrium_number(a % b);
        END""",
    "round(x numeric, digits numeric) RETURNS numeric": """
        BEGIN
            RETURN atrium_number(round(x, trunc(greatest(-400, least(400, digits)))::int));
        END""",
    "abs(x numeric) RETURNS numeric": "BEGIN RETURN atrium_number(abs(x)); END",
    "ceil(x numeric) RETURNS numeric": "BEGIN RETURN atrium_number(ceil(x)); END",
    "floor(x numeric) RETURNS numeric": "BEGIN RETURN atrium_number(floor(x)); END",
    "plain(x numeric) RETURNS text": "BEGIN RETURN trim_scale(x)::text; END",
    "upper(x text) RETURNS text": 'BEGIN RETURN upper(x COLLATE "C"); END',
    "lower(x text) RETURNS text": 'BEGIN RETURN lower(x COLLATE "C"); END',
    "trim(x text) RETURNS text": r"BEGIN RETURN btrim(x, E' \t\n\r\x0b\f'); END",
    "substring(x text, start numeric, length numeric) RETURNS text": """
        DECLARE
            first bigint := trunc(greatest(-1000000000, least(1000000000, start)));
            ending bigint := first + trunc(greatest(0, least(2000000000, length)));
        BEGIN
            first := greatest(first, 1);
            RETURN substring(x FROM first::int FOR greatest(ending - first, 0)::int);
        END""",
    "date_add(start timestamptz, amount numeric, unit text) RETURNS timestamptz": """
        DECLARE
            origin timestamp := start AT TIME ZONE 'UTC';
            months numeric := CASE unit WHEN 'months' THEN 1 WHEN 'years' THEN 12 END;
            unit_length bigint := CASE unit WHEN 'days' THEN 86400000000
                WHEN 'hours' THEN 3600000000 WHEN 'minutes' THEN 60000000 ELSE 1000000 END;
            steps numeric;
        BEGIN
            IF months IS NOT NULL THEN
                steps := trunc(amount) * months;
                IF extract(year FROM origin) * 12 + extract(month FROM origin) - 1 + steps
                    NOT BETWEEN 12 AND 119999 THEN
                    RETURN NULL;
                END IF;
                RETURN (origin + make_interval(months => steps::int)) AT TIME ZONE 'UTC';
            END IF;
            steps := trunc(amount * unit_length);
            IF extract(epoch FROM start) * 1000000 + steps
                NOT BETWEEN -62135596800000000 AND 253402300799999999 THEN
                RETURN NULL;
            END IF;
            RETURN (origin + make_interval(days => div(steps, 86400000000)::int)
                + mod(steps, 86400000000)::float8 * interval '1 microsecond') AT TIME ZONE 'UTC';
        END""",
    "months_between(later timestamptz, earlier timestamptz) RETURNS numeric": """
        DECLARE
            a timestamp := later AT TIME ZONE 'UTC';
            b timestamp := earlier AT TIME ZONE 'UTC';
            months int := (extract(year FROM a) - extract(year FROM b)) * 12
                + extract(month FROM a) - extract(month FROM b);
        BEGIN
            RETURN CASE WHEN b + make_interval(months => months) <= a
                THEN months ELSE months - 1 END;
        END""",
    "date_diff(a timestamptz, b timestamptz, unit text) RETURNS numeric": """
        DECLARE
            months int := CASE unit WHEN 'months' THEN 1 WHEN 'years' THEN 12 END;
            unit_length bigint := CASE unit WHEN 'days' THEN 86400
                WHEN 'hours' THEN 3600 WHEN 'minutes' THEN 60 ELSE 1 END;
        BEGIN
            IF months IS NULL THEN
                RETURN atrium_divide(extract(epoch FROM a - b), unit_length);
            ELSIF a >= b THEN
                RETURN div(atrium_months_between(a, b), months);
            END IF;
            RETURN -div(atrium_months_between(b, a), months);
        END""",
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
