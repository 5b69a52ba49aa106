"""The Flask application: loaded as it is used, sessions for pages only, bounded forms, a cache of
matched routes.

It leans on two insides of werkzeug: with `Rule._converters` a warm GET takes 14 % less CPU, a
create 8 % less; with `Rule._compile_builder` `create_app` takes 73 % less. `get_request`
and `get_g` lean on Flask's context variables (`_cv_app`, `_cv_request`): through its proxies a warm
GET takes 29 % more CPU, a create 10 %. The contract of all is in `tests/test_library_insides.py`.
"""

from __future__ import annotations

import gc
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BytesIO
from ipaddress import ip_address
from threading import RLock
from typing import IO, TYPE_CHECKING, Any, cast

from flask import Flask, Request, Response
from flask import request as current_request
from flask.ctx import AppContext, RequestContext
from flask.globals import _cv_app, _cv_request
from flask.sessions import (
    NullSession,
    SecureCookieSession,
    SecureCookieSessionInterface,
    SessionMixin,
)
from itsdangerous import TimestampSigner, URLSafeTimedSerializer
from werkzeug.exceptions import HTTPException, NotFound, RequestEntityTooLarge
from werkzeug.formparser import FormDataParser
from werkzeug.routing import BaseConverter, MapAdapter, Rule
from werkzeug.wsgi import get_host

from app import config
from app.web import PREFIX

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

LARGEST_ROLE_ID = 2**31 - 1
ID_LENGTH = 36  # no constant segment of a route is this long
MAX_SHAPES, MAX_CACHED_PATH = 1000, 200
MAX_FUNCTIONS = 64  # few, as some are made for one request and hold what it sent
MAX_FORM_FIELDS = 10_000
ROUTING = ("url_map", "view_functions", "blueprints")
"""The attributes of an application that are there once its routes are loaded."""


Shape = Sequence[str | None]
Match = tuple[Rule, Sequence[tuple[str, int]]]


def get_request() -> Request:
    """Return `flask.request` without its proxy."""
    return _cv_request.get().request


def get_header(name: str) -> str | None:
    """Return a request header; None if it is missing."""
    value: str | None = _cv_request.get().request.environ.get(environ_key(name))
    return value


@lru_cache
def environ_key(name: str) -> str:
    """Return a header's key in the WSGI environment; not for Content-Type and Content-Length."""
    return f"HTTP_{name.upper().replace('-', '_')}"


def get_g() -> Any:
    """Return `flask.g` without its proxy."""
    return _cv_app.get().g


class _Signer(TimestampSigner):
    """A signer that ignores age: the clock of the signing process may be ahead of this one's."""

    def unsign(self, *args: Any, max_age: int | None = None, **options: Any) -> Any:
        return super().unsign(*args, **options)


PORTAL = re.compile(r"/portal/[0-9a-fA-F-]{36}(?=/)")
"""The path of a portal session, which its cookies are bound to."""


class _Sessions(SecureCookieSessionInterface):
    """Flask's cookie session for pages: flash messages, CSRF tokens."""

    def get_signing_serializer(self, app: Flask) -> URLSafeTimedSerializer | None:
        serializer = super().get_signing_serializer(app)
        if serializer:
            serializer.signer = _Signer
        return serializer


class _PortalSessions(_Sessions):
    """A session for each portal, which browsers also send in a frame of another site's page.

    Browsers keep it apart for each such site.
    """

    def get_cookie_name(self, app: Flask) -> str:
        return super().get_cookie_name(app).replace("__Host-", "__Secure-") + "_portal"

    def get_cookie_path(self, app: Flask) -> str:
        return portal_path()

    def get_cookie_samesite(self, app: Flask) -> str:
        return "None"

    def get_cookie_secure(self, app: Flask) -> bool:
        return True

    def get_cookie_partitioned(self, app: Flask) -> bool:
        return True


class _PageSessions(_Sessions):
    """The sessions of all paths; none for the API."""

    _none = NullSession()  # refuses changes
    _portals = _PortalSessions()

    def open_session(self, app: Flask, request: Request) -> SecureCookieSession | None:
        if request.path.startswith(f"{PREFIX}/"):
            return self._none
        if portal_path():
            return self._portals.open_session(app, request)
        return super().open_session(app, request)

    def save_session(self, app: Flask, session: SessionMixin, response: Response) -> None:
        if portal_path():
            self._portals.save_session(app, session, response)
        else:
            super().save_session(app, session, response)


def portal_path() -> str:
    """Return the path of the portal session that this request is for, or an empty text."""
    match = PORTAL.match(current_request.path)
    return match[0] if match else ""


class _FormParser(FormDataParser):
    """werkzeug's parser with a limit of fields; it refuses chunked forms that are too long."""

    def _parse_urlencoded(
        self, stream: IO[bytes], mimetype: str, content_length: int | None, options: Any
    ) -> Any:
        text = stream.read()
        if content_length is None and len(text) == self.max_content_length:
            raise RequestEntityTooLarge  # werkzeug would parse the beginning
        if text.count(b"&") >= MAX_FORM_FIELDS:
            raise RequestEntityTooLarge(f"A form has at most {MAX_FORM_FIELDS:,} fields.")
        return super()._parse_urlencoded(BytesIO(text), mimetype, content_length, options)


class _Request(Request):
    form_data_parser_class = _FormParser


@lru_cache
def _is_valid_host(host: str) -> bool:
    try:
        host.partition(":")[0].encode("idna")
    except UnicodeError:
        return False
    return True


def _remote_address(environ: WSGIEnvironment) -> str:
    # If a proxy forwards something that is no IP address, the proxy's own counts.
    forwarded = environ.get("REMOTE_ADDR", "")
    peer = environ.get("werkzeug.proxy_fix.orig", {}).get("REMOTE_ADDR", "")
    return _ip_address(forwarded) or _ip_address(peer)


@lru_cache(2048)
def _ip_address(text: str) -> str:
    # Some proxies add the port: 192.0.2.1:4711, [2001:db8::1]:4711
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text.partition("%")[0].strip()))
    except ValueError:
        return ""


class UuidPath(BaseConverter):
    """A UUID; checked after authentication (422)."""

    expected = "a UUID"

    @staticmethod
    def accepts(text: str) -> bool:
        """Whether the text is a UUID in canonical form."""
        try:
            return str(uuid.UUID(text)) == text.lower()
        except ValueError:
            return False


class IntegerPath(BaseConverter):
    """An integer of up to 31 bits; checked after authentication (422)."""

    expected, largest = "a whole number", LARGEST_ROLE_ID

    @classmethod
    def accepts(cls, text: str) -> bool:
        """Whether the text is such an integer."""
        return re.fullmatch(r"[0-9]{1,19}", text) is not None and int(text) <= cls.largest


class LargeIntegerPath(IntegerPath):
    """An integer of up to 63 bits; checked after authentication (422)."""

    largest = 2**63 - 1


class _Rule(Rule):
    """A URL rule that compiles what builds its URLs when that is first used: mostly never."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        def build(rule: Rule, /, **values: Any) -> tuple[str, str]:
            build: Any = Rule._compile_builder(rule, append_unknown)
            name = "_build_unknown" if append_unknown else "_build"
            setattr(rule, name, build.__get__(rule, None))  # from the next time on
            return cast(tuple[str, str], build(rule, **values))

        return build


class _CachingAdapter(MapAdapter):
    """A URL adapter that matches paths which differ only in ids once."""

    cached_route: Callable[[str, Shape], Match]

    def match(self, *args: Any, **options: Any) -> Any:
        path = self.path_info
        if not args and options == {"return_rule": True} and len(path) <= MAX_CACHED_PATH:
            parts = path.split("/")
            shape = tuple([None if len(part) == ID_LENGTH else part for part in parts])
            with suppress(HTTPException):
                rule, positions = self.cached_route(self.default_method, shape)
                return rule, {name: parts[i] for name, i in positions}
        return super().match(*args, **options)


class Application(Flask):
    request_class = _Request
    url_rule_class = _Rule
    session_interface = _PageSessions()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cached_route = lru_cache(MAX_SHAPES)(self._route)
        # Flask looks six times in a request whether a function is a coroutine.
        self.__dict__["ensure_sync"] = lru_cache(MAX_FUNCTIONS)(super().ensure_sync)
        self._loading = RLock()
        self._unloaded: list[Callable[[Application], None]] = []
        self._is_loaded, self._has_routes = True, True
        self._is_half = False  # for good: what failed has registered half of it

    def load_later(
        self, features: Callable[[Application], None], routes: Callable[[Application], None]
    ) -> None:
        """Load features with the first application context, and routes with the first request."""
        self._unloaded = [features, routes]
        self._is_loaded = self._has_routes = False
        self._routing = {name: self.__dict__.pop(name) for name in ROUTING}

    def _load_features(self) -> None:
        # Others wait; what loads may open a context of its own.
        with self._loading, collection_paused():
            if self._is_half:
                raise RuntimeError("the application could not be loaded: see what failed before")
            if len(self._unloaded) == 2:
                self._load_next()
                self._is_loaded = True

    def load(self) -> None:
        """Load all now: servers do so before they fork."""
        with self._loading, collection_paused():
            self._load_features()
            if self._unloaded:
                self.__dict__.update(self._routing)
                self._load_next()
                self._has_routes = True

    def _load_next(self) -> None:
        is_whole = False
        try:
            self._unloaded.pop(0)(self)
            is_whole = True
        finally:
            self._is_half = not is_whole

    def __getattr__(self, name: str) -> Any:
        """Load the routes for what is asked of them before the first request."""
        if name not in ROUTING:
            raise AttributeError(name, name=name, obj=self)
        self.load()
        return self.__dict__[name]

    def app_context(self) -> AppContext:
        """Return an application context, with all features loaded."""
        if not self._is_loaded:
            self._load_features()
        return super().app_context()

    def request_context(self, environ: WSGIEnvironment) -> RequestContext:
        """Return the request context, with a valid remote address."""
        if not self._has_routes:
            self.load()
        environ["REMOTE_ADDR"] = _remote_address(environ) or None
        if "CONTENT_LENGTH" in environ and "HTTP_TRANSFER_ENCODING" not in environ:
            # A body that ends before its length counts as cut off.
            environ.pop("wsgi.input_terminated", None)
        return super().request_context(environ)

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Return the caching URL adapter; no route depends on the host."""
        host = get_host(request.environ) if request else ""
        if request is None or not _is_valid_host(host):
            return super().create_url_adapter(request)
        request.host = host
        adapter = _CachingAdapter(
            self.url_map,
            host.lower(),
            request.root_path,
            "",
            request.scheme,
            request.path,
            request.method,
            request.query_string.decode(errors="replace"),
        )
        adapter.cached_route = self._cached_route
        return adapter

    def _route(self, method: str, shape: Shape) -> Match:
        """The route of all paths of a shape (None stands for an id), and where its arguments are.

        Raises NotFound if there is none, or if it cannot be cached.
        """
        path = "/".join(["-" * ID_LENGTH if part is None else part for part in shape])
        adapter = self.url_map.bind("", default_method=method)
        rule, arguments = adapter.match(path, return_rule=True)
        if not all(converter.part_isolating for converter in rule._converters.values()):
            raise NotFound  # a converter that spans segments looks at their text
        positions = [
            (part[1:-1].rpartition(":")[2], i)
            for i, part in enumerate(rule.rule.split("/"))
            if part.startswith("<")
        ]
        parts = path.split("/")
        if arguments != {name: parts[i] for name, i in positions if i < len(parts)}:
            raise NotFound
        return rule, positions


@contextmanager
def collection_paused() -> Iterator[None]:
    """Search for no garbage within the block: loading makes none, and would take a fifth longer."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def loaded() -> Application:
    """Return the running application with its routes, which a command may lack."""
    app = cast(Application, config.running())
    app.load()
    return app
