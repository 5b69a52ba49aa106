"""What collections can do, all at once: every door shows the same records, whatever befell them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from flask import Flask

from app import clock
from tests.builders import Caller, Cast, make_collection, make_record
from tests.bundle.accounts import run
from tests.mailbox import run_jobs
from tests.records.test_search import pages_of_index
from tests.records.test_trash import TRASH, in_trash, put_away, reference, restored

NOTES: list[dict[str, Any]] = [
    {"name": "title", "type": "text", "options": {"search": True}},
    {"name": "code", "type": "text", "unique": True},
    {"name": "number", "type": "sequence", "options": {"prefix": "B-", "digits": 3}},
    {"name": "amount", "type": "decimal", "options": {"precision": 30, "scale": 2}},
    {"name": "labels", "type": "text_list"},
    {"name": "made_by", "type": "user", "default": {"expression": "@request.auth.id"}},
    reference("customer", "customers"),
]
VIEW = {"type": "view", "list_rule": "true", "view_rule": "true", "from": "notes"}
AMOUNTS = {"first": "100000000000000000000.10", "second": "0.20", "third": "-7.00"}


def furnish(root: Caller, caller: Caller) -> dict[str, Any]:
    """Notes of a customer, two of them with words in common; returns them by title."""
    make_collection(root, "customers", [{"name": "name", "type": "text"}])
    make_collection(root, "notes", NOTES, **TRASH)
    shown = {"fields": ["title", "amount", "labels", "customer.name"], "where": "amount != -7"}
    sums = {"fields": ["customer.name"], "group_by": ["customer.name"]}
    for name, parts in (
        ("shown", shown),
        ("sums", {**sums, "aggregates": ["count()", "sum(amount)"]}),
    ):
        answer = root.post("collections", {**VIEW, **parts, "name": name})
        assert answer.status_code == 201, answer.json
    made = {"customer": make_record(caller, "customers", name="Ann")}
    for title, amount in AMOUNTS.items():
        more = {"labels": ["hot", title], "customer": made["customer"]["id"], "code": title}
        text = f"{title} xylophone" if amount != "-7.00" else title
        made[title] = make_record(caller, "notes", title=text, amount=amount, **more)
    return made


def listed(**query: str) -> Callable[[Caller, Any], Any]:
    def door(caller: Caller, made: Any) -> Any:
        answer = caller.get("records/notes", query_string={"sort": "number", **query})
        assert answer.status_code == 200, answer.json
        assert answer.json["total"] == len(answer.json["items"])
        return [one["amount"] for one in answer.json["items"]]

    return door


def shown(caller: Caller, made: Any) -> Any:
    items = caller.get("records/shown?sort=-amount").json["items"]
    return [one["amount"] for one in items]


def summed(caller: Caller, made: Any) -> Any:
    return [
        (one["customer_name"], one["count"], one["sum_amount"])
        for one in caller.get("records/sums").json["items"]
    ]


def aggregated(caller: Caller, made: Any) -> Any:
    path = "records/notes/aggregate?functions=count(),sum(amount),max(amount)"
    return caller.get(f"{path}&group_by=customer.name").json["results"]


def behind(caller: Caller, made: Any) -> Any:
    path = f"records/customers/{made['customer']['id']}?expand=notes_via_customer"
    found = caller.get(path).json["expand"]["notes_via_customer"]
    return sorted(one["amount"] for one in found["items"])


def followed(caller: Caller, made: Any) -> Any:
    """Whether a filter of another collection finds one through `@any`."""
    text = "@any(notes, customer = @record.id && amount > 100)"
    return caller.get("records/customers", query_string={"filter": text}).json["total"]


def exported(caller: Caller, made: Any) -> Any:
    lines = caller.get("records/notes/export?format=jsonl&sort=number").text.splitlines()
    return [json.loads(line)["amount"] for line in lines]


DOORS: dict[str, Callable[[Caller, Any], Any]] = {
    "list": listed(),
    "search": listed(search="xyloph*"),
    "words": listed(search="XYLOPHONE -third", highlight="1"),
    "text_list": listed(filter="@contains(labels, 'hot')"),
    "decimal": listed(filter="amount > 0.1"),
    "order behind a reference": listed(sort="customer.name,number"),
    "view": shown,
    "grouped view": summed,
    "aggregate": aggregated,
    "back-reference": behind,
    "@any": followed,
    "export": exported,
}


def seen(caller: Caller, made: Any) -> dict[str, Any]:
    return {name: door(caller, made) for name, door in DOORS.items()}


def expected(every: list[str], *, count: int, total: str, behind: int) -> dict[str, Any]:
    """What all doors show if these amounts are present."""
    positive = [one for one in every if one[0] != "-"]
    sums = {"customer.name": "Ann", "count": count, "sum_amount": total}
    shown = {
        **dict.fromkeys(("list", "text_list", "order behind a reference", "export"), every),
        **dict.fromkeys(("search", "words", "decimal", "view"), positive),
    }
    return {
        **shown,
        "grouped view": [("Ann", count, total)],
        "aggregate": [{**sums, "max_amount": positive[0]}],
        "back-reference": sorted(every),
        "@any": behind,
    }


def test_each_door_shows_the_present_and_nothing_of_the_trash(root: Caller, alice: Caller) -> None:
    made = furnish(root, alice)
    first, second, third = AMOUNTS.values()
    before = seen(alice, made)
    total = "99999999999999999993.30"
    assert before == expected([first, second, third], count=3, total=total, behind=1)
    put_away(alice, "notes", made["first"])
    assert seen(alice, made) == expected([second, third], count=2, total="-6.80", behind=0)
    assert [one["number"] for one in in_trash(alice, "notes")] == ["B-001"]
    assert restored(alice, "notes", made["first"]).status_code == 200
    assert seen(alice, made) == before


def test_writes_do_not_meet_the_trash(root: Caller, alice: Caller) -> None:
    made = furnish(root, alice)
    replies = [{"name": "title", "type": "text"}, reference("note", "notes", "cascade")]
    make_collection(root, "replies", replies)
    put_away(alice, "notes", made["first"])
    id, path = made["first"]["id"], "batch"

    def sent(*operations: dict[str, Any]) -> Any:
        return alice.post(path, {"operations": [*operations]})

    reply = {"method": "POST", "collection": "replies", "body": {"title": "r", "note": id}}
    refused = sent(reply)
    assert [(one["field"], one["code"]) for one in refused.json["details"]] == [
        ("operations[0].body.note", "invalid_reference")
    ]
    change = {"method": "PATCH", "collection": "notes", "id": id, "body": {"title": "x"}}
    assert sent(change).status_code == 404
    file = "code,title,amount\nfirst,again xylophone,1.5\nsecond,second xylophone,0.20\n"
    done = alice.post("records/notes/import?upsert=code", data=file, content_type="text/csv")
    assert (done.status_code, done.json["created"], done.json["updated"]) == (200, 1, 0), done.json
    again = alice.get("records/notes?filter=code = 'first'").json["items"][0]
    assert (again["id"] != id, again["number"], again["made_by"]) == (True, "B-004", alice.id)
    clash = restored(alice, "notes", made["first"])
    assert (clash.status_code, clash.json["details"][0]["field"]) == (409, "code")
    # One request takes the value away, restores nothing, and makes two more with their numbers.
    new = {"method": "POST", "collection": "notes", "as": "new"}
    answer = sent(
        {"method": "DELETE", "collection": "notes", "id": again["id"]},
        {**new, "body": {"title": "newest xylophone", "code": "first", "amount": "3.00"}},
        {**reply, "body": {"title": {"$ref": "new.number"}, "note": {"$ref": "new.id"}}},
    )
    assert answer.status_code == 200, answer.json
    created = answer.json["results"][1]["body"]
    assert (created["number"], created["made_by"], created["amount"]) == ("B-005", alice.id, "3.00")
    assert answer.json["results"][2]["body"]["title"] == "B-005"
    assert len(in_trash(alice, "notes")) == 2
    found = alice.get("records/notes?search=newest&expand=replies_via_note").json["items"]
    assert [len(one["expand"]["replies_via_note"]["items"]) for one in found] == [1]


def test_erased_record_of_the_trash_leaves_no_word(app: Flask, root: Caller, alice: Caller) -> None:
    made = furnish(root, alice)
    kept = seen(alice, made)
    erased = make_record(alice, "notes", title="quetzal", amount="5.00")
    put_away(alice, "notes", erased)
    assert alice.post(f"records/notes/{erased['id']}/erase").status_code == 200
    run_jobs(app)
    run_jobs(app)
    assert in_trash(alice, "notes") == []
    left = pages_of_index(app)
    assert (b"xylophone" in left, b"quetzal" in left) == (True, False)
    assert seen(alice, made) == kept


def test_account_as_of_a_moment_is_the_same_behind_each_door(app: Flask, cast: Cast) -> None:
    made = furnish(cast.root, cast.alice)
    gone = make_record(cast.alice, "notes", title="gone xylophone", amount="9.00")
    put_away(cast.alice, "notes", gone)
    before, moment = seen(cast.alice, made), clock.iso(clock.now())
    put_away(cast.alice, "notes", made["first"])
    change = {"amount": "1.00", "title": "x", "labels": {"$remove": ["hot"]}}
    assert cast.alice.patch(f"records/notes/{made['second']['id']}", change).status_code == 200
    assert restored(cast.alice, "notes", gone).status_code == 200
    make_record(cast.alice, "notes", title="later xylophone", amount="8.00")
    as_root = ("--yes", "--as", "root@system.example")
    done = run(app, "account", "restore", "acme", "--at", moment, *as_root)
    assert done.exit_code == 0, done.output
    assert seen(cast.alice, made) == before
    assert make_record(cast.alice, "notes", title="new")["number"] == "B-006"
