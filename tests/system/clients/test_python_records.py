"""Records by the Python client, on both databases."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.builders import Caller, make_collection
from tests.system.clients.running import run_async

pytestmark = pytest.mark.usefixtures("tasks")


def titles(records: Any) -> list[str]:
    return [record["title"] for record in records]


def test_python_client_record_create_read_update_delete(atrium: ModuleType, client: Any) -> None:
    tasks = client.records("tasks")
    made = tasks.create({"title": "one", "points": 3})
    assert tasks.get(made["id"]) == made
    assert tasks.update(made["id"], {"points": 4})["title"] == "one"
    assert tasks.replace(made["id"], {"title": "two"})["points"] is None
    tasks.delete(made["id"])
    with pytest.raises(atrium.NotFound) as error:
        tasks.get(made["id"])
    assert (error.value.status, error.value.code) == (404, "not_found")
    assert error.value.request_id


def test_python_client_keeps_decimals_lists_and_numbers(root: Caller, client: Any) -> None:
    amount = {"name": "amount", "type": "decimal", "options": {"precision": 38, "scale": 4}}
    number = {"name": "number", "type": "sequence", "options": {"prefix": "R-", "digits": 3}}
    make_collection(root, "receipts", [amount, number, {"name": "words", "type": "text_list"}])
    receipts = client.records("receipts")
    made = receipts.create(
        {"amount": "1234567890123456789012345678901234.5678", "words": ["b", "a"]}
    )
    assert made["amount"] == "1234567890123456789012345678901234.5678"
    assert (made["number"], made["words"]) == ("R-001", ["b", "a"])
    assert receipts.replace(made["id"], {**made}) == made
    changed = receipts.update(made["id"], {"words": {"$add": ["c"], "$remove": ["b"]}})
    assert (changed["words"], changed["amount"]) == (["a", "c"], made["amount"])
    assert [one["number"] for one in receipts.iterate(filter="amount > 0")] == ["R-001"]


def test_python_client_sends_decimals_as_texts(
    atrium: ModuleType, root: Caller, client: Any
) -> None:
    make_collection(root, "prices", [{"name": "price", "type": "decimal", "options": {"scale": 4}}])
    prices = client.records("prices")
    made = prices.create({"price": Decimal("12.50")})
    assert made["price"] == "12.5000"
    assert prices.update(made["id"], {"price": Decimal("1E+3")})["price"] == "1000.0000"
    assert prices.create_many(({"price": Decimal("0.1")},))[0]["price"] == "0.1000"
    change = {"method": "PATCH", "collection": "prices", "id": made["id"]}
    (changed,) = client.batch([{**change, "body": {"price": Decimal(7)}}])
    assert changed["body"]["price"] == "7.0000"
    with pytest.raises(atrium.ValidationError) as error:
        prices.create({"price": Decimal("NaN")})
    assert error.value.fields.keys() == {"price"}


def test_python_client_if_match_of_changed_record_raises(atrium: ModuleType, client: Any) -> None:
    tasks = client.records("tasks")
    read = tasks.create({"title": "one"})
    changed = tasks.update(read["id"], {"title": "two"}, if_match=read)
    for write in (tasks.update, tasks.replace):
        with pytest.raises(atrium.PreconditionFailed):
            write(read["id"], {"title": "three"}, if_match=read)
    with pytest.raises(atrium.PreconditionFailed):
        tasks.delete(read["id"], if_match=read)
    with pytest.raises(ValueError, match="Get it first"):
        tasks.delete(read["id"], if_match=tasks.list().items[0])
    tasks.delete(read["id"], if_match=atrium.etag_of(changed))


def test_python_client_batch_does_all_operations_or_none(atrium: ModuleType, client: Any) -> None:
    first = {"method": "POST", "collection": "tasks", "body": {"title": "one"}, "as": "task"}
    change = {"method": "PATCH", "collection": "tasks", "id": {"$ref": "task.id"}}
    made, changed = client.batch([first, {**change, "body": {"points": 3}}])
    assert (made["status"], changed["status"], changed["body"]["points"]) == (201, 200, 3)
    with pytest.raises(atrium.ValidationError) as error:
        client.batch([first, {**change, "body": {"points": "x"}}])
    assert error.value.details[0]["field"] == "operations[1].body.points"
    assert [one["id"] for one in client.records("tasks").iterate()] == [made["body"]["id"]]


def test_python_client_imports_file(atrium: ModuleType, client: Any, tmp_path: Path) -> None:
    tasks = client.records("tasks")
    assert tasks.import_file(b"title;points\none;1\n", dry_run=True)["separator"] == ";"
    assert tasks.import_file(b'[{"title": "one"}]', "application/json")["imported"] == 1
    with pytest.raises(atrium.AtriumError) as error:
        tasks.import_file(b"title\none\n", upsert="title")
    assert error.value.details[0]["field"] == "upsert"
    assert titles(tasks.iterate()) == ["one"]
    path = tmp_path / "tasks.csv"
    path.write_bytes("title|code\n5 €; Köln|1\n".encode("iso-8859-15"))
    options = {"encoding": "iso-8859-15", "separator": "pipe"}
    with path.open("rb") as stream:
        assert tasks.import_file(stream, **options, upsert="code")["created"] == 1
    for source in (path, str(path)):
        assert tasks.import_file(source, **options, upsert="code")["unchanged"] == 1
    assert titles(tasks.iterate(sort="title")) == ["5 €; Köln", "one"]
    with pytest.raises(FileNotFoundError):
        tasks.import_file("title\nno path\n")


def test_python_client_list_filters_sorts_and_pages(atrium: ModuleType, client: Any) -> None:
    tasks = client.records("tasks")
    tasks.create_many([{"title": f"t{number}", "points": number} for number in range(5)])
    page = tasks.list(filter=atrium.F.points >= 1, sort=["-points"], page=2, page_size=3)
    assert (titles(page.items), page.total, page.page) == (["t1"], 4, 2)
    assert tasks.list(total=False).total is None
    assert tasks.list(fields=["title"], page_size=1).items[0].keys() == {"id", "title"}


def test_python_client_searches_and_highlights(
    atrium: ModuleType, root: Caller, client: Any
) -> None:
    title = {"name": "title", "type": "text", "options": {"search": True}}
    make_collection(root, "notes", [title, {"name": "day", "type": "number"}])
    notes = client.records("notes")
    texts = ["Old harbour", "Harbour <b>, harbour", "Station", "The harbour is far away"]
    notes.create_many([{"title": text, "day": day} for day, text in enumerate(texts)])
    found = notes.list(search="harbour -away", highlight=True)
    marked = ["<mark>Harbour</mark> &lt;b&gt;, <mark>harbour</mark>", "Old <mark>harbour</mark>"]
    assert [one["_highlights"]["title"] for one in found.items] == marked
    assert (found.total, titles(found.items)) == (2, [texts[1], texts[0]])
    walk = [*notes.iterate(search="harb*", highlight=True, sort="-day", page_size=2)]
    assert titles(walk) == [texts[3], texts[1], texts[0]]
    assert walk[2]["_highlights"] == {"title": marked[1]}
    assert "_highlights" not in notes.list(search="station").items[0]
    assert notes.aggregate("count()", search="harbour") == [{"count": 3}]
    with pytest.raises(atrium.ValidationError) as error:
        notes.list(highlight=True)
    assert error.value.fields.keys() == {"highlight"}


def test_python_client_iterate_fetches_pages_lazily(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = client.records("tasks")
    tasks.create_many([{"title": f"t{number}"} for number in range(7)])
    requests, fetch = [], client.session.json
    monkeypatch.setattr(
        client.session, "json", lambda *a, **b: requests.append(a) or fetch(*a, **b)
    )
    walk = tasks.iterate(sort="title", page_size=3)
    assert titles(islice(walk, 2)) == ["t0", "t1"]
    assert len(requests) == 1
    assert titles(walk) == ["t2", "t3", "t4", "t5", "t6"]
    assert len(requests) == 3


def test_python_client_batches_are_all_or_nothing(atrium: ModuleType, client: Any) -> None:
    tasks = client.records("tasks")
    with pytest.raises(atrium.ValidationError) as error:
        tasks.create_many([{"title": "one"}, {"points": 1}])
    assert error.value.details[0]["index"] == 1
    assert "title" in error.value.fields
    one, two = tasks.create_many([{"title": "one", "code": "1"}, {"title": "two", "code": "2"}])
    assert titles(tasks.update_many({one["id"]: {"title": "uno"}})) == ["uno"]
    upserted = tasks.upsert_many([{"title": "due", "code": "2"}], on="code")
    assert (upserted["created"], titles(upserted["updated"])) == ([], ["due"])
    with pytest.raises(atrium.Conflict) as clash:
        tasks.create({"title": "three", "code": "1"})
    assert clash.value.field == "code"
    assert tasks.delete_many([one["id"], two["id"]]) == [one["id"], two["id"]]


def test_python_client_aggregate(client: Any) -> None:
    tasks = client.records("tasks")
    tasks.create_many([{"title": "a", "points": 1}, {"title": "a", "points": 2}, {"title": "b"}])
    results = tasks.aggregate("count()", "sum(points)", group_by="title", having="count > 1")
    assert results == [{"title": "a", "count": 2, "sum_points": 3}]


def test_python_client_record_restore(client: Any) -> None:
    tasks = client.records("tasks")
    made = tasks.create({"title": "one"})
    tasks.update(made["id"], {"title": "two"})
    history = tasks.history(made["id"])
    assert history.total == 2
    restored = tasks.restore(made["id"], history.items[-1]["audit_id"])
    assert restored["title"] == "one"


def test_python_client_trash(atrium: ModuleType, client: Any, root: Caller) -> None:
    id = root.get("collections/tasks").json["id"]
    assert root.patch(f"collections/{id}", {"options": {"trash": {"days": 7}}}).status_code == 200
    tasks = client.records("tasks")
    made = tasks.create({"title": "one"})
    tasks.delete(made["id"])
    assert titles(tasks.list(trash=True).items) == titles([*tasks.iterate(trash=True)]) == ["one"]
    assert tasks.restore(made["id"])["title"] == "one"
    tasks.delete(made["id"])
    assert tasks.restore(made["id"], values={"title": "two"})["title"] == "two"
    tasks.delete(made["id"], permanently=True)
    with pytest.raises(atrium.NotFound):
        tasks.restore(made["id"])
    assert tasks.list(trash=True).items == []


def test_python_async_client_records(atrium: ModuleType, address: str, key: str) -> None:
    async def use() -> None:
        async with atrium.AsyncClient(address, api_key=key) as client:
            tasks = client.records("tasks")
            made = await asyncio.gather(*(tasks.create({"title": f"t{n}"}) for n in range(5)))
            found = [record async for record in tasks.iterate(sort="title", page_size=2)]
            assert titles(found) == ["t0", "t1", "t2", "t3", "t4"]
            await tasks.delete(made[0]["id"])
            with pytest.raises(atrium.NotFound):
                await tasks.get(made[0]["id"])

    run_async(use())


def test_python_client_generated_functions(atrium: ModuleType, client: Any, alice: Caller) -> None:
    me = import_module("atrium_client.rest.api.authentication.get_me")
    assert me.sync(client=client.api).email == "alice@acme.example"
    made = client.records("tasks").create({"title": "x"})
    history = import_module("atrium_client.rest.api.history.list_record_changes")
    assert history.sync("tasks", made["id"], client=client.api).items[0].operation == "CREATE"
    users = import_module("atrium_client.rest.api.users.get_user")
    with pytest.raises(atrium.Forbidden):
        users.sync(alice.id, client=client.api)
