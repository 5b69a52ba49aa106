"""Pages that are sent while the work that they show goes on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from flask import Response, current_app, get_flashed_messages, stream_with_context

from app.console.shell.forms import TemplateContext


def stream(template: str, steps: Generator[object], **values: object) -> Response:
    """Stream a page that iterates over `steps`.

    The steps end with the response: a page whose reader leaves must not hold a transaction until
    the garbage collector finds it.
    """
    # Notices leave the session before the response starts: its cookie cannot be sent later.
    get_flashed_messages()
    page = current_app.jinja_env.get_template(template)
    context: TemplateContext = {"steps": steps, **values}
    current_app.update_template_context(context)

    def text() -> Iterator[str]:
        with closing(steps):
            yield from page.generate(context)

    # Without buffering by the proxy, so that progress shows.
    headers = {"X-Accel-Buffering": "no"}
    return Response(stream_with_context(text()), mimetype="text/html", headers=headers)
