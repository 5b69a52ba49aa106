"""The groups that providers and the directory of an account have sent lately."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from app import db
from app.accounts.models import PII_GROUP, Group
from app.db.types import Text
from app.sso import roles
from app.sso.models import Identity
from app.sso.scim.models import DirectoryGroup

MAX_IDENTITIES = 5000
"""Those that signed in last: more would make a page wait."""


def names(account_id: str, first: Collection[str], limit: int) -> list[str]:
    """At most `limit` names of groups that can give a role: these `first`, then by name."""
    providers = roles.providers_with_groups(account_id)
    latest = (
        sa.select(Identity.groups)
        .where(Identity.account_id == account_id, Identity.provider_name.in_(providers))
        .order_by(Identity.last_used_at.desc())
        .limit(MAX_IDENTITIES)
        .subquery()
    )
    value = sa.column("value", Text)
    if db.connection().dialect.name == "postgresql":
        elements = sa.func.json_array_elements_text(latest.c.groups).table_valued(value)
        one = elements.render_derived()
    else:
        one = sa.func.json_each(latest.c.groups).table_valued(value)
    in_directory = (
        sa.select(Group.name)
        .join(
            DirectoryGroup,
            sa.and_(
                DirectoryGroup.account_id == Group.account_id, DirectoryGroup.group_id == Group.id
            ),
        )
        .where(Group.account_id == account_id, Group.name != PII_GROUP)
    )
    found = sa.union(
        sa.select(one.c.value.label("name")).select_from(latest.join(one, sa.true())), in_directory
    ).subquery()
    is_first = sa.case((found.c.name.in_(first), 0), else_=1)
    query = sa.select(found.c.name).order_by(is_first, found.c.name).limit(limit)
    return list(db.db.session.scalars(query))
