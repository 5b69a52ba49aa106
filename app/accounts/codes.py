"""Account codes: `AA0001` upwards, never reused."""

from __future__ import annotations

import sqlalchemy as sa

from app.accounts.models import SYSTEM_CODE, AccountCodeCounter
from app.db import connection
from app.errors import Conflict

NUMBERS_PER_PAIR = 9999
RESERVED_PAIR = SYSTEM_CODE[:2]


def account_code(number: int) -> str:
    """The code of the account with this number, from 1. Raises Conflict past the last code."""
    pair, digits = divmod(number - 1, NUMBERS_PER_PAIR)
    first, second = divmod(pair, 26)
    letters = chr(65 + first) + chr(65 + second)
    if letters >= RESERVED_PAIR:
        first, second = divmod(pair + 1, 26)
        letters = chr(65 + first) + chr(65 + second)
    if first > 25:
        raise Conflict("All account codes are in use.", error="limit_reached")
    return f"{letters}{digits + 1:04}"


def next_code() -> str:
    """Allocate the next code. The counter row stays locked until the transaction ends."""
    counter = sa.update(AccountCodeCounter).values(given_out=AccountCodeCounter.given_out + 1)
    return account_code(
        connection().execute(counter.returning(AccountCodeCounter.given_out)).scalar_one()
    )
