"""Decimals order, add up and divide on both databases as they do in Python."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rules.backends import ROWS, Backend

DECIMALS = st.builds(
    lambda whole, places: Decimal(whole).scaleb(-places),
    st.integers(-(10**38) + 1, 10**38 - 1),
    st.integers(0, 38),
)


@given(st.lists(DECIMALS | st.sampled_from([Decimal(0), Decimal("0.1")]), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_decimal_order_sums_and_averages_are_those_of_python(
    backend: Backend, exact: list[Decimal]
) -> None:
    backend.fill([{"d": one} for one in exact])
    is_sqlite = backend.engine.dialect.name == "sqlite"
    kind, d = ROWS.c.d.type, ROWS.c.d
    total: Any = sa.func.atrium_decimal_sum(d, type_=kind)
    average: Any = sa.func.atrium_decimal_average(d, type_=kind)
    if not is_sqlite:
        total = sa.func.atrium_decimal_settled(sa.func.sum(d), type_=kind)
        count = sa.cast(sa.func.count(d), sa.Numeric)
        average = sa.func.atrium_decimal_divide(sa.func.sum(d), count, type_=kind)
    extremes = [sa.func.min(d, type_=kind), sa.func.max(d, type_=kind)]
    row = backend.connection.execute(sa.select(total, average, *extremes)).one()
    sums = sum(map(_scaled, exact))
    assert _scaled(row[0]) == sums
    half_up = (abs(sums) * 2 + len(exact)) // (2 * len(exact))
    assert _scaled(row[1]) == (half_up if sums >= 0 else -half_up)
    assert (row[2], row[3]) == (min(exact), max(exact))
    ordered = backend.connection.execute(sa.select(d).order_by(d)).scalars()
    assert list(ordered) == sorted(exact)
    pivot = exact[0]
    smaller = backend.connection.execute(sa.select(d).where(d < sa.literal(pivot, kind)))
    assert sorted(smaller.scalars()) == sorted(one for one in exact if one < pivot)


def _scaled(exact: Decimal) -> int:
    """A decimal as a whole number of 10**-38."""
    sign, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits))) * 10 ** (38 + exponent)
    return -whole if sign else whole
