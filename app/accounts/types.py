"""Types that the services of accounts and sign-in share."""

from __future__ import annotations

import sqlalchemy as sa

from app.types import JSONMapping

Body = JSONMapping
"""A request body, validated by its marshmallow schema."""
Query = JSONMapping
"""The parameters of a list: `skip`, `limit`, filters and sort order, validated likewise."""
Problem = dict[str, object]
"""One entry of `details` in a validation error."""
Condition = sa.ColumnElement[bool]
