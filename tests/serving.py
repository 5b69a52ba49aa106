"""A server of the application, in a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from flask import Flask
from werkzeug.serving import make_server


@contextmanager
def serving(app: Flask) -> Iterator[str]:
    """A server of an application at the address that it knows."""
    url: str = app.extensions["atrium.config"].base_url
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = 3600  # each visit asks once for styles and scripts
    server = make_server("127.0.0.1", urlsplit(url).port or 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    yield url
    server.shutdown()
    thread.join()
    server.server_close()
