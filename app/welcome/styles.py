"""The accent color of the product or an account, as a stylesheet: pages have no inline styles."""

from __future__ import annotations

from flask import Response, request

from app.accounts.product import faces
from app.accounts.product.settings import COLOR
from app.console.shell.access import ANYBODY
from app.console.shell.blueprint import page
from app.errors import NotFound
from app.web import html


@page("/welcome/accent/<color>.css", role=ANYBODY)
def show_accent(color: str) -> Response:
    """The stylesheet of an accent color, which depends on nothing else."""
    if not COLOR.fullmatch(f"#{color}"):
        raise NotFound
    response = Response(faces.stylesheet(f"#{color.lower()}"), mimetype="text/css")
    response.headers["Cache-Control"] = html.CACHED_FOREVER
    response.add_etag()
    response.make_conditional(request)
    return response
