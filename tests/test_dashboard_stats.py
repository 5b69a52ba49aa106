"""Figures of an account, or of all, in the shape of the published client."""

from __future__ import annotations

import pytest

from tests.builders import Caller, Cast, make_collection, make_record

PATH = "dashboard/stats"
HOOK = {"name": "note", "trigger": {"type": "manual"}, "actions": []}
WEBHOOK = {"url": "https://hooks.example.com/x", "collection": "posts", "events": ["create"]}


@pytest.fixture
def posts(cast: Cast) -> None:
    """A record in acme, two in globex."""
    make_collection(cast.root)
    for caller in (cast.alice, cast.charlie, cast.charlie):
        make_record(caller)


@pytest.mark.usefixtures("posts")
def test_dashboard_stats_of_account_for_admin(cast: Cast) -> None:
    assert cast.alice.post("webhooks", WEBHOOK).status_code == 201
    cast.alice.post("invitations", {"email": "dora@acme.example"})
    answer = cast.alice.get(PATH)
    assert answer.status_code == 200
    found = answer.json
    assert found["range"] == "7d"
    assert (found["total_accounts"], found["total_users"], found["new_users_7d"]) == (1, 2, 2)
    assert (found["total_records"], found["total_collections"]) == (1, 1)
    assert found["records_by_collection"] == [{"name": "posts", "count": 1}]
    features = found["feature_counts"]
    assert (features["webhooks"], features["webhooks_enabled"], features["hooks"]) == (1, 1, 0)
    assert features["invitations_pending"] == 1
    today = {name: points[-1] for name, points in found["time_series"].items()}
    assert today["users_created"]["count"] == 2
    assert today["audit_by_operation"]["create"] > 0
    assert {len(points) for points in found["time_series"].values()} == {7}
    accounts = {one["account_id"] for one in found["recent_registrations"]}
    accounts |= {one["account_id"] for one in found["recent_audit_logs"]}
    assert accounts == {cast.alice.account_id}


@pytest.mark.usefixtures("posts")
def test_dashboard_stats_of_all_accounts_for_superadmin(cast: Cast) -> None:
    found = cast.root.get(f"{PATH}?range=90d").json
    assert (found["total_accounts"], found["total_records"]) == (2, 3)
    assert len(found["time_series"]["accounts_created"]) == 90
    assert cast.root.acting_in("*").get(PATH).json["total_records"] == 3
    acting = cast.root.acting_in("globex").get(PATH).json
    assert (acting["total_accounts"], acting["total_users"], acting["total_records"]) == (1, 1, 2)


@pytest.mark.usefixtures("posts")
def test_dashboard_stats_count_records_only_with_full_list_right(cast: Cast) -> None:
    for rule in (None, "title = 'x'"):
        cast.root.put("collections/posts/rules", {"list_rule": rule})
        found = cast.alice.get(PATH).json
        assert (found["total_records"], found["records_by_collection"]) == (0, [])
        assert cast.root.get(PATH).json["total_records"] == 3


@pytest.mark.parametrize(("query", "status"), [("", 403), ("?range=1d", 403)])
def test_dashboard_stats_for_viewer_are_403(cast: Cast, query: str, status: int) -> None:
    assert cast.bob.get(f"{PATH}{query}").status_code == status


def test_dashboard_stats_with_unknown_range_are_422(alice: Caller) -> None:
    assert alice.get(f"{PATH}?range=1d").status_code == 422
