"""What PostgreSQL refuses of the log's entries, which go to it with the commit or by COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.context import tenancy
from tests import services
from tests.audit.chains import verified
from tests.builders import Caller, Cast, make_collection

pytestmark = pytest.mark.parametrize("database", ["postgresql"])
KEY = {"Idempotency-Key": "k-1"}
SECRET = "leak.me@person.example"
Refuse = Callable[..., None]


@pytest.fixture
def refuse(app: Flask) -> Iterator[Refuse]:
    """Have the database refuse entries with a code, as often as said."""

    def begin(code: str, times: int) -> None:
        run(
            everywhere("CREATE SEQUENCE refusals"),
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$"
            f" BEGIN IF nextval('refusals') <= {times} THEN RAISE 'no' USING ERRCODE = '{code}';"
            " END IF; RETURN NEW; END $$",
            "CREATE TRIGGER refuse BEFORE INSERT ON audit_pending"
            " FOR EACH ROW WHEN (NEW.columns LIKE '%title%') EXECUTE FUNCTION refuse()",
        )

    def run(*statements: str) -> None:
        with app.app_context(), tenancy.as_owner(), db.transaction(changes_schema=True) as session:
            for one in statements:
                session.execute(sa.text(one))

    yield begin
    run("DROP FUNCTION refuse CASCADE", everywhere("DROP SEQUENCE refusals"))


def everywhere(statement: str) -> str:
    """The statement, on each node if there are several."""
    return f"SELECT run_command_on_all_nodes('{statement}')" if services.CITUS_NODES else statement


@pytest.fixture
def posts(root: Caller) -> Any:
    return make_collection(root)


def create(caller: Caller, key: bool) -> Any:
    return caller.post("records/posts", {"title": SECRET}, headers=KEY if key else {})


@pytest.mark.usefixtures("posts")
@pytest.mark.parametrize("key", [True, False])
def test_audit_append_with_lock_timeout_is_retried(cast: Cast, refuse: Refuse, key: bool) -> None:
    refuse("55P03", 1)
    assert create(cast.alice, key).status_code == 201
    assert cast.alice.get("records/posts").json["total"] == 1
    assert verified(cast.root)["valid"]


@pytest.mark.usefixtures("posts")
def test_audit_append_failure_is_503_and_request_can_be_repeated(
    cast: Cast, refuse: Refuse
) -> None:
    refuse("57014", 1)
    assert create(cast.alice, True).status_code == 503
    assert cast.alice.get("records/posts").json["total"] == 0
    answers = [create(cast.alice, True) for _ in range(2)]
    assert [one.status_code for one in answers] == [201, 201]
    assert answers[0].json == answers[1].json
    assert cast.alice.get("records/posts").json["total"] == 1


@pytest.mark.usefixtures("posts")
def test_audit_copy_failure_logs_no_values(
    cast: Cast, refuse: Refuse, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse("53100", 1)
    many = {"records": [{"title": SECRET}] * 60}
    assert cast.alice.post("records/posts/batch", many).status_code == 503
    told = capsys.readouterr().out
    assert '"reason":"no (53100)"' in told
    assert SECRET not in told
