"""The Flask application, without what none of its requests needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from ipaddress import ip_address
from typing import IO, TYPE_CHECKING, Any

from flask import Flask, Request
from flask.ctx import RequestContext
from flask.sessions import NullSession, SecureCookieSession, SecureCookieSessionInterface
from itsdangerous import TimestampSigner, URLSafeTimedSerializer
from werkzeug.exceptions import HTTPException, NotFound, RequestEntityTooLarge
from werkzeug.formparser import FormDataParser
from werkzeug.routing import MapAdapter, Rule
from werkzeug.wsgi import get_host

from app.rest import PREFIX

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

LENGTH_OF_IDS = 36  # which no part of a route has that is always the same
MOST_FORMS, LONGEST_KEPT_PATH = 1000, 200
MOST_FORM_FIELDS = 10_000


class _Signer(TimestampSigner):
    """Flask's, by which the clock of the process that signed may be ahead of this one's."""

    def unsign(self, *signed: Any, max_age: int | None = None, **options: Any) -> Any:
        """What was signed, however long ago, or to come: the browser forgets it when it closes."""
        return super().unsign(*signed, **options)


class _SessionsOfPages(SecureCookieSessionInterface):
    """Flask's own session, which carries the notices and tokens of forms: the API has none."""

    _none = NullSession()  # which refuses whatever would change it

    def open_session(self, app: Flask, request: Request) -> SecureCookieSession | None:
        """The session of a page; that of nobody for a call of the API."""
        if request.path.startswith(f"{PREFIX}/"):
            return self._none
        return super().open_session(app, request)

    def get_signing_serializer(self, app: Flask) -> URLSafeTimedSerializer | None:
        """What reads and writes the cookie."""
        serializer = super().get_signing_serializer(app)
        if serializer:
            serializer.signer = _Signer
        return serializer


class _FormParser(FormDataParser):
    """werkzeug's, with a bound of fields in any form; of a chunked one it would read the start."""

    def _parse_urlencoded(
        self, stream: IO[bytes], mimetype: str, content_length: int | None, options: Any
    ) -> Any:
        text = stream.read()
        if content_length is None and len(text) == self.max_content_length:
            raise RequestEntityTooLarge
        if text.count(b"&") >= MOST_FORM_FIELDS:
            raise RequestEntityTooLarge(f"A form has at most {MOST_FORM_FIELDS:,} fields.")
        return super()._parse_urlencoded(BytesIO(text), mimetype, content_length, options)


class _Request(Request):
    """A request that is not looked through again for what it does not have."""

    form_data_parser_class = _FormParser

    @property
    def blueprints(self) -> list[str]:
        """The names of the blueprint of its route, and of those around it."""
        return _blueprints_of(self.url_rule.endpoint) if self.url_rule else []

    def close(self) -> None:
        """Let go of files that were sent."""
        if "files" in self.__dict__:
            super().close()


@lru_cache(MOST_FORMS)
def _blueprints_of(endpoint: str) -> list[str]:
    names = endpoint.split(".")
    return [".".join(names[:length]) for length in range(len(names) - 1, 0, -1)]


@lru_cache
def _can_be(host: str) -> bool:
    try:
        host.partition(":")[0].encode("idna")
    except UnicodeError:
        return False
    return True


def _address_in(environ: WSGIEnvironment) -> str:
    # What a proxy says is no address counts as the proxy's own.
    told = environ.get("REMOTE_ADDR", "")
    peer = environ.get("werkzeug.proxy_fix.orig", {}).get("REMOTE_ADDR", "")
    return _address(told) or _address(peer)


@lru_cache(2048)
def _address(text: str) -> str:
    # Some proxies tell the port, too: 192.0.2.1:4711, [2001:db8::1]:4711
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text.partition("%")[0].strip()))
    except ValueError:
        return ""


class _Adapter(MapAdapter):
    """What finds a request's route; of paths that differ in ids only once."""

    known: Callable[..., tuple[Rule, Sequence[tuple[str, int]]]]

    def match(self, *asked: Any, **options: Any) -> Any:
        """The route of the request's own path, or of another that is asked about."""
        path = self.path_info
        if not asked and options == {"return_rule": True} and len(path) <= LONGEST_KEPT_PATH:
            parts = path.split("/")
            form = tuple([None if len(part) == LENGTH_OF_IDS else part for part in parts])
            with suppress(HTTPException):
                rule, places = self.known(self.default_method, form)
                return rule, {name: parts[i] for name, i in places}
        return super().match(*asked, **options)


class Application(Flask):
    """What serves requests."""

    request_class = _Request
    session_interface = _SessionsOfPages()

    def __init__(self, *about: Any, **options: Any) -> None:
        super().__init__(*about, **options)
        self._known = lru_cache(MOST_FORMS)(self._route)

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself: none is asynchronous, and Flask would look each time."""
        return func

    def request_context(self, environ: WSGIEnvironment) -> RequestContext:
        """A request, from an address, whose body is none where it ends before its length."""
        environ["REMOTE_ADDR"] = _address_in(environ) or None
        if "CONTENT_LENGTH" in environ and "HTTP_TRANSFER_ENCODING" not in environ:
            environ.pop("wsgi.input_terminated", None)
        return super().request_context(environ)

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """What finds a request's route, of which none goes by the host or is a WebSocket's."""
        host = get_host(request.environ) if request else ""
        if request is None or not _can_be(host):
            return super().create_url_adapter(request)
        request.host = host
        adapter = _Adapter(
            self.url_map,
            host.lower(),
            request.root_path,
            "",
            request.scheme,
            request.path,
            request.method,
            request.query_string.decode(errors="replace"),
        )
        adapter.known = self._known
        return adapter

    def _route(
        self, method: str, form: Sequence[str | None]
    ) -> tuple[Rule, Sequence[tuple[str, int]]]:
        """The route of all paths of a form, and which of their parts are its arguments.

        None stands for an id. Raises NotFound where another way has to look, or nobody finds any.
        """
        path = "/".join(["-" * LENGTH_OF_IDS if part is None else part for part in form])
        adapter = self.url_map.bind("", default_method=method)
        rule, arguments = adapter.match(path, return_rule=True)
        if not all(one.part_isolating for one in rule._converters.values()):
            raise NotFound  # what spans parts is particular about what is in them
        places = [
            (part[1:-1].rpartition(":")[2], i)
            for i, part in enumerate(rule.rule.split("/"))
            if part.startswith("<")
        ]
        parts = path.split("/")
        if arguments != {name: parts[i] for name, i in places if i < len(parts)}:
            raise NotFound
        return rule, places
