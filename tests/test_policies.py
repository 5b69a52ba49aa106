"""Each model declares what is done with its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from sqlalchemy.orm import Mapped, mapped_column

from app import db
from app.audit.security_log import subscribers
from app.db.policy import Audited, Bundled, NotAudited, NotBundled, Noun, Placement, TablePolicy


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
    ("facets", "problem"),
    [
        ({"audit": Audited(hidden=("secret",))}, "things names no column: secret"),
        ({"audit": Audited(ignored=("seen_at",))}, "things names no column: seen_at"),
        ({"audit": Audited(chain="tenant")}, "things names no column: tenant"),
        ({"encrypted": ("secret",)}, "names no column: secret"),
        ({"encrypted_json": ("headers",)}, "names no column: headers"),
        ({"placement": Placement.SHARED}, "key of things does not fit SHARED"),
        ({"noun": Noun("Thing", "Things", order=10, named_by="name")}, "names no column: name"),
        ({"sample": {"url": "x"}}, "names no column: url"),
        ({"bundle": Bundled(order=10, reset={"seen_at": None})}, "names no column: seen_at"),
    ],
)
def test_policy_that_misfits_its_table_is_refused(facets: dict[str, Any], problem: str) -> None:
    table = sa.Table("things", sa.MetaData(), sa.Column("account_id", sa.Text, primary_key=True))
    fitting = TablePolicy(audit=NotAudited("a test"), bundle=NotBundled("a test"))
    fitting.check(table)
    with pytest.raises(TypeError, match=problem):
        replace(fitting, **facets).check(table)


def test_events_of_the_security_log_are_those_of_the_api() -> None:
    nouns = [policy.noun for policy in db.policies().values() if policy.noun]
    assert sorted(noun.event for noun in nouns if noun.event) == sorted(subscribers.NOUNS)
    assert len({noun.order for noun in nouns}) == len(nouns)


def test_pages_of_nouns_exist(app: Flask) -> None:
    for name, policy in db.policies().items():
        for page in (policy.noun.page, policy.noun.list_page) if policy.noun else ():
            assert page is None or page in app.view_functions, (name, page)
