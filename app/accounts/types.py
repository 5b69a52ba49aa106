"""Types that the services of accounts and sign-in share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

Body = Mapping[str, Any]
"""A request body, validated by its marshmallow schema."""
Query = Mapping[str, Any]
"""The parameters of a list: `skip`, `limit`, filters and sort order, validated likewise."""
Problem = dict[str, object]
"""One entry of `details` in a validation error."""
Condition = sa.ColumnElement[bool]
