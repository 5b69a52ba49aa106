"""A page of another origin uses the TypeScript client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page
from werkzeug.middleware.shared_data import SharedDataMiddleware
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

from app.realtime import connections
from tests.builders import PASSWORD, Cast, make_collection
from tests.realtime.clients import until
from tests.system.clients import built

FIELDS = [{"name": "title", "type": "text"}, {"name": "cover", "type": "file"}]
IMPORTS = {"@atrium/client": "/client/index.js", "openapi-fetch": "/openapi-fetch/index.mjs"}
PAGE = f'<!doctype html><script type="importmap">{json.dumps({"imports": IMPORTS})}</script>'
USE = """async ([baseUrl, password]) => {
  const { Client, NotFound, f, storageTokens } = await import("@atrium/client");
  const open = () => new Client({ baseUrl, tokens: storageTokens() });
  const [client, tab] = [open(), open()];
  await client.signIn({ account: "acme", email: "alice@acme.example", password });
  const changes = await client.changes.follow(["memos"]);
  const memos = client.records("memos");
  const made = await memos.create({ title: "from a page" });
  const sent = [];
  const upload = await client.files.upload(new File([new Uint8Array(2_000_000)], "a.bin"), {
    onProgress: (done, total) => sent.push(done / total),
  });
  const bytes = await (await tab.files.download(upload)).blob();
  await client.files.delete(upload);
  const heard = [];
  for await (const change of changes) {
    heard.push([change.type, change.data.title]);
    break;
  }
  localStorage.atrium = JSON.stringify({ ...JSON.parse(localStorage.atrium), expires: 0 });
  const pages = await Promise.all([client, tab, client, tab].map((one) =>
    one.records("memos").list({ filter: f("id").eq(made.id) })));
  const missing = await memos.get("none").catch((error) => error instanceof NotFound);
  await tab.signOut();
  return [made.title, upload.name, bytes.size, sent.at(-1), heard, pages.map(({ total }) => total),
    missing, localStorage.length];
}"""


@pytest.fixture
def origin(live_cast: Cast) -> Iterator[str]:
    """The origin of the page, which acme allows to read answers."""
    package = built.package()
    folders = {
        "/client": str(package / "dist"),
        "/openapi-fetch": str(package / "node_modules" / "openapi-fetch" / "dist"),
    }
    pages = SharedDataMiddleware(Response(PAGE, mimetype="text/html"), folders)
    server = make_server("localhost", 0, pages, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    found = f"http://localhost:{server.server_port}"
    assert live_cast.alice.patch("account", {"cors_origins": [found]}).status_code == 200
    yield found
    assert live_cast.alice.patch("account", {"cors_origins": []}).status_code == 200
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of a browser without storage."""
    page = browser.new_page()
    yield page
    page.close()


def test_typescript_client_in_page_of_other_origin(
    page: Page, origin: str, live_cast: Cast, live_server_url: str
) -> None:
    memos = make_collection(live_cast.root, "memos", FIELDS)
    page.goto(origin)
    done = page.evaluate(USE, [live_server_url, PASSWORD])
    heard = [["create", "from a page"]]
    assert done == ["from a page", "a.bin", 2_000_000, 1, heard, [1, 1, 1, 1], True, 0]
    until(lambda: not connections.registry.all())
    assert live_cast.root.delete(f"collections/{memos['id']}").status_code == 200
