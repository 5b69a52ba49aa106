"""The hosted pages: their blueprint is the console's shell, which both share."""

from __future__ import annotations

from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.console.shell.blueprint import hosted
    from app.welcome import accounts, links, sign_in, styles

    return Routes(pages=(hosted,), modules=(links, sign_in, accounts, styles))


FEATURE = Feature(routes=routes)
