"""Orders get numbers, and prices come from a server that runs for the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.extend.testing import Client, Instance

ORDERS = {"number": {"type": "text", "unique": True}, "title": "text"}


class Supplier(BaseHTTPRequestHandler):
    """Knows the price of lamps, and stumbles over ladders."""

    def do_GET(self) -> None:
        status, body = {
            "/lamp": (200, b'{"cents": 250}'),
            "/ladder": (200, b"<html>Maintenance</html>"),
        }.get(self.path, (404, b"{}"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Tests read no log."""


@pytest.fixture
def supplier() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Supplier)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def instance(supplier: str) -> Iterator[Instance]:
    folder = Path(__file__).parent.parent
    with Instance(folder, SERVICE_X_ORDER_NUMBERS_PRICES_URL=supplier) as instance:
        instance.collection("orders", ORDERS)
        yield instance


@pytest.fixture
def ann(instance: Instance) -> Client:
    return instance.account("acme").user("ann")


def test_orders_get_numbers_that_check_themselves(ann: Client) -> None:
    numbers = {
        ann.post("records/orders", {"title": "x", "number": "7"}).json["number"] for _ in range(5)
    }
    assert len(numbers) == 5
    for number in numbers:
        assert len(number) == 10
        doubled = [int(one) * (1 + place % 2) for place, one in enumerate(reversed(number))]
        assert sum(one // 10 + one % 10 for one in doubled) % 10 == 0


def test_orders_keep_their_number(ann: Client) -> None:
    order = ann.post("records/orders", {"title": "x"}).json
    path = f"records/orders/{order['id']}"
    refused = ann.patch(path, {"number": "0000000000"})
    assert [one["code"] for one in refused.json["details"]] == ["number_fixed"]
    assert ann.patch(path, {"title": "y"}).json["number"] == order["number"]


def test_prices_come_from_the_supplier(instance: Instance, ann: Client) -> None:
    def ask(article: str, pieces: int = 3) -> tuple[int, object]:
        answer = ann.post("x/order_numbers/prices", {"article": article, "pieces": pieces})
        return answer.status_code, answer.json.get("cents")

    assert ask("lamp") == (200, 750)
    assert ask("chair") == (400, None)
    assert ask("ladder") == (409, None)
    assert ask("lamp", 0)[0] in (400, 422)
    body = {"article": "lamp", "pieces": 1}
    assert instance.anybody.post("x/order_numbers/prices", body).status_code == 401
