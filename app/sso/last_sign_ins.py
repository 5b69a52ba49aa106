"""Which providers users have signed in with, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa

from app import db
from app.accounts.models import User
from app.sso import service
from app.sso.models import Identity


def provider_names(user: User) -> Sequence[str]:
    """The names of the providers that the user has signed in with."""
    own = (Identity.account_id == user.account_id, Identity.user_id == user.id)
    found = db.db.session.scalars(sa.select(Identity.provider_name).where(*own).distinct()).all()
    if not found:
        return ()
    rows = service.list_for_sign_in(user.account_id)[1]
    titles = {row.provider_name: row.display_name for row in rows}
    return sorted(titles.get(name, name) for name in found)


def by_provider(account_id: str) -> Mapping[str, datetime]:
    """When users of an account last signed in, by the name of the provider."""
    last = sa.func.max(Identity.last_used_at)
    query = sa.select(Identity.provider_name, last).where(Identity.account_id == account_id)
    rows = db.db.session.execute(query.group_by(Identity.provider_name))
    return {row[0]: row[1] for row in rows}
