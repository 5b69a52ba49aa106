"""Each model declares what is done with its rows."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import db
from app.db.policy import Audited, NotAudited, TablePolicy


def test_every_table_has_a_policy() -> None:
    assert db.policies().keys() == db.Base.metadata.tables.keys()
    assert db.policy_of("users") is db.Base.metadata.tables["users"].info["policy"]
    assert db.policy_of("col_posts") is None


def test_model_without_policy_fails_at_import() -> None:
    with pytest.raises(TypeError, match="Forgotten lacks its __policy__"):

        class Forgotten(db.Base):
            __tablename__ = "forgotten"
            id: Mapped[int] = mapped_column(primary_key=True)

    assert "forgotten" not in db.Base.metadata.tables


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (TablePolicy(audit=Audited(hidden=("secret",))), "things names no column: secret"),
        (TablePolicy(audit=Audited(ignored=("seen_at",))), "things names no column: seen_at"),
        (TablePolicy(audit=Audited(chain="tenant")), "things names no column: tenant"),
    ],
)
def test_policy_that_does_not_fit_its_table_is_refused(policy: TablePolicy, problem: str) -> None:
    table = sa.Table("things", sa.MetaData(), sa.Column("account_id", sa.Text, primary_key=True))
    TablePolicy(audit=NotAudited("a test")).check(table)
    with pytest.raises(TypeError, match=problem):
        policy.check(table)
