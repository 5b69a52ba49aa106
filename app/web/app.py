"""The Flask application: sessions for pages only, bounded forms, rules that build URLs when asked.

It leans on an inside of werkzeug: with `Rule._compile_builder` `create_app` takes 73 % less CPU.
The contract is in `tests/test_library_insides.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from ipaddress import ip_address
from typing import IO, TYPE_CHECKING, Any, cast

from flask import Flask, Request
from flask.ctx import RequestContext
from flask.sessions import NullSession, SecureCookieSession, SecureCookieSessionInterface
from itsdangerous import TimestampSigner, URLSafeTimedSerializer
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser
from werkzeug.routing import MapAdapter, Rule
from werkzeug.wsgi import get_host

from app.web import PREFIX

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

MAX_FORM_FIELDS = 10_000


class _Signer(TimestampSigner):
    """A signer that ignores age: the clock of the signing process may be ahead of this one's."""

    def unsign(self, *args: Any, max_age: int | None = None, **options: Any) -> Any:
        return super().unsign(*args, **options)


class _PageSessions(SecureCookieSessionInterface):
    """Flask's cookie session for pages (flash messages, CSRF tokens); none for the API."""

    _none = NullSession()  # refuses changes

    def open_session(self, app: Flask, request: Request) -> SecureCookieSession | None:
        if request.path.startswith(f"{PREFIX}/"):
            return self._none
        return super().open_session(app, request)

    def get_signing_serializer(self, app: Flask) -> URLSafeTimedSerializer | None:
        serializer = super().get_signing_serializer(app)
        if serializer:
            serializer.signer = _Signer
        return serializer


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


class _Rule(Rule):
    """A URL rule that compiles what builds its URLs when that is first used: mostly never."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        def build(rule: Rule, /, **values: Any) -> tuple[str, str]:
            build: Any = Rule._compile_builder(rule, append_unknown)
            name = "_build_unknown" if append_unknown else "_build"
            setattr(rule, name, build.__get__(rule, None))  # from the next time on
            return cast(tuple[str, str], build(rule, **values))

        return build


class Application(Flask):
    request_class = _Request
    url_rule_class = _Rule
    session_interface = _PageSessions()

    def request_context(self, environ: WSGIEnvironment) -> RequestContext:
        """Return the request context, with a valid remote address."""
        environ["REMOTE_ADDR"] = _remote_address(environ) or None
        if "CONTENT_LENGTH" in environ and "HTTP_TRANSFER_ENCODING" not in environ:
            # A body that ends before its length counts as cut off.
            environ.pop("wsgi.input_terminated", None)
        return super().request_context(environ)

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Return the URL adapter of a valid host, on which no route depends."""
        host = get_host(request.environ) if request else ""
        if request is None or not _is_valid_host(host):
            return super().create_url_adapter(request)
        request.host = host
        return MapAdapter(
            self.url_map,
            host.lower(),
            request.root_path,
            "",
            request.scheme,
            request.path,
            request.method,
            request.query_string.decode(errors="replace"),
        )
