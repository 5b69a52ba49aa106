"""What a page of an extension gets, and the answers that it may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Values:
    """The values of a query or a form."""

    lists: Mapping[str, Sequence[str]]

    def get(self, name: str, default: str = "") -> str:
        """The first value of a name."""
        return next(iter(self.getlist(name)), default)

    def getlist(self, name: str) -> list[str]:
        """All values of a name."""
        return [value.replace("\0", "") for value in self.lists.get(name, ())]


@dataclass(frozen=True)
class Redirect:
    """The answer to a form: go on to a page of the extension. `PageRequest.redirect` makes it."""

    path: str
    message: str | None
    is_error: bool


@dataclass(frozen=True)
class PageRequest:
    """The request for a page of an extension."""

    method: str
    """`GET` or `POST`."""
    args: Values
    """The values of the query."""
    form: Values
    """The values of the form that was sent."""
    renderer: Callable[[str, Mapping[str, object]], Markup]

    def render(self, template: str, **values: object) -> Markup:
        """Render a template of the extension, from its folder `templates/`.

        It may use `page_url(path)` for pages of the extension, `asset(file)` for what is in its
        folder `static/`, `csrf_token()` in forms, and `_()` for texts that it translates.
        """
        return self.renderer(template, values)

    def redirect(self, path: str, message: str | None = None, *, error: bool = False) -> Redirect:
        """Go on to a page of the extension by its path, and show a message or an error there."""
        return Redirect(path, message, error)
