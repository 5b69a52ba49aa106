"""`/realtime/subscribe`, `/realtime/ws` and `/realtime/tickets`."""

from __future__ import annotations

import asyncio
import re
import socket

import marshmallow as ma
from flask import Response

from app import web
from app.auth import guard, stream_credentials
from app.auth.guard import optimistic, principal
from app.auth.stream_credentials import StreamCredential
from app.db import versioned_cache
from app.errors import Malformed, RealtimeUnavailable
from app.realtime import hub, limits, sse
from app.realtime.connections import OPERATIONS, Connection, Subscription, registry
from app.realtime.sse import EventStream
from app.realtime.websocket import WebSocket, handshake, too_many_subscriptions
from app.types import JSONObject
from app.web import fields
from app.web.access import anonymous
from app.web.app import get_header, get_request
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.parsing import REPEATED
from app.web.schemas import TEXT, Schema, View
from app.web.serialization import json_response
from app.web.sockets import Handover, find_socket

blueprint = Blueprint(
    "Realtime",
    __name__,
    url_prefix=f"{web.PREFIX}/realtime",
    description="Changes of records as they happen: server-sent events and WebSockets.",
)

FILTER = "filter."
LONGEST_CREDENTIAL = 8000
CHANGE_NUMBER = re.compile("[0-9]{1,18}")
STREAM_EXAMPLE = """: connected

id: 4
event: heartbeat
data: {"type": "heartbeat", "timestamp": "2026-11-20T11:59:58.123456Z"}

id: 5
event: message
data: {"type": "posts.create", "change": 5, "timestamp": "2026-11-20T12:00:00.123456Z", "data": {}}

"""


class CredentialArgs(Schema):
    """Credentials for clients that cannot send headers, which take precedence."""

    ticket = fields.Text(**doc("From `POST /realtime/tickets`."))
    token = fields.Text(
        longest=LONGEST_CREDENTIAL, **doc("An access token or an API key; prefer tickets.")
    )


class StreamArgs(CredentialArgs):
    """What to subscribe to. `filter.<collection>=<expression>` selects by a filter."""

    class Meta:
        """Filters are named after their collections."""

        unknown = ma.EXCLUDE

    collections = ma.fields.List(
        fields.Text(longest=LONGEST_CREDENTIAL),
        **doc(
            "`<collection>` or `<collection>:<operation>,<operation>`, such as"
            " `posts:create,update`; repeat it for several. Without it, all collections."
        ),
    )
    collection = ma.fields.List(
        fields.Text(longest=LONGEST_CREDENTIAL), **doc("The same as `collections`.")
    )
    since = fields.Integer(
        0,
        2**63 - 1,
        **doc(
            "The last change that the client has; the header `Last-Event-ID` takes"
            " precedence. Without either, the stream begins with the next change."
        ),
    )


class Ticket(View):
    ticket = ma.fields.String()
    expires_in = ma.fields.Integer(**doc("Seconds."))


@blueprint.route("/subscribe", methods=["GET"])
@blueprint.arguments(StreamArgs, location="query", unknown=ma.EXCLUDE)
@blueprint.response(
    200,
    schema=TEXT,
    content_type="text/event-stream",
    example=STREAM_EXAMPLE,
    description="Events until either side closes.",
)
@blueprint.fails(501, 503)
@optimistic
@anonymous(query_credentials=True)
def subscribe(args: JSONObject) -> Response:
    """Stream changes of records as server-sent events.

    Each change has its number as id, and shows what the caller may view: `data` is
    `{type, change, timestamp, data}`. `heartbeat` comes first, with the position at which the
    stream begins as its id, and every 15 seconds; `reset` says that changes are missing, so read
    the records anew; `expired` says that the credential has expired. A client that reads too slowly
    is disconnected, and resumes with `Last-Event-ID`.
    """
    last_event_id = get_header("Last-Event-ID")
    is_known = last_event_id is None or CHANGE_NUMBER.fullmatch(last_event_id)
    since = args.get("since")
    if last_event_id is not None:
        since = int(last_event_id) if is_known else None
    subscriptions = _subscriptions(since)
    stream = EventStream(_authorize(subscriptions), subscriptions)
    is_reset = not is_known or subscriptions[0].is_reset
    stream.opening = sse.opening(None if is_reset else subscriptions[0].position)
    if not is_known:
        stream.opening += sse.event("reset")
    headers = {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-store",
        "Connection": "close",
        "X-Accel-Buffering": "no",
    }
    return Handover(StreamService(stream), status=200, headers=headers)


@blueprint.route("/ws", methods=["GET"])
@blueprint.arguments(CredentialArgs, location="query")
@blueprint.response(101, description="A WebSocket, whose messages are JSON.")
@blueprint.fails(426, 501, 503)
@optimistic
@anonymous(query_credentials=True)
def open_websocket(args: JSONObject) -> Response:
    """Open a WebSocket for changes of records.

    Send `{"action": "subscribe", "collection": "posts"}` with `operations`, `filter` and `since` as
    needed, `unsubscribe` or `ping`. Without `collection` it is for all collections. The answer to
    `subscribe` has the position at which the subscription begins as `since`. Changes come as
    `{type, change, timestamp, data}`, errors as `{"type": "error", error, message}`, which leave
    the connection open; `heartbeat` comes every 15 seconds.
    """
    principal().home_and_user()
    headers = handshake(get_request().headers)
    connection = WebSocket(_authorize([]), hub.subscribe)
    return Handover(StreamService(connection), status=101, headers=headers)


@blueprint.route("/tickets", methods=["POST"])
@blueprint.response(
    201,
    Ticket,
    example={"ticket": "AB1234-pPvFzZ0Xk3nqkQb0m3bS2w", "expires_in": 30},
)
@anonymous(shows_secret=True, reads=True)
def create_ticket() -> Response:
    """Create a ticket that opens one stream.

    For browsers, which open streams without headers: `?ticket=` stands for the credential and the
    account of this request, once and within 30 seconds.
    """
    ticket = stream_credentials.issue_ticket(guard.stream_credential())
    seconds = int(stream_credentials.TICKET_LIFETIME.total_seconds())
    return json_response({"ticket": ticket, "expires_in": seconds}, 201)


def _authorize(subscriptions: list[Subscription]) -> StreamCredential:
    """Check everything before the head goes out: whatever fails is an ordinary error."""
    by = principal()
    by.home_and_user()
    credential = guard.stream_credential()
    versioned_cache.verify(by.version_checks)
    registry.check_room(credential.account_id, limits.MAX_STREAMS, limits.MAX_STREAMS_PER_ACCOUNT)
    hub.open_stream(by, subscriptions)
    if find_socket(get_request().environ) is None:
        raise RealtimeUnavailable
    return credential


def _subscriptions(since: int | None) -> list[Subscription]:
    """The subscriptions in the query. Raises Malformed with all problems."""
    query, problems = get_request().args, list[JSONObject]()
    wanted = dict[str, frozenset[str]]()
    for text in [*query.getlist("collections"), *query.getlist("collection")]:
        names, _, listed = text.partition(":")
        operations = frozenset(listed.split(",")) if listed else OPERATIONS
        if not operations <= OPERATIONS:
            message = "Operations are create, update and delete."
            problems.append(_problem("collections", message, "value_error"))
        for name in map(str.lower, names.split(",")):
            wanted[name] = wanted.get(name, frozenset()) | operations
    for name in query.keys() - StreamArgs._declared_fields.keys():
        if not name.startswith(FILTER):
            problems.append(_problem(name, "Unknown query parameter.", "unknown"))
        elif name.removeprefix(FILTER).lower() not in wanted:
            problems.append(_problem(name, "Name this collection in `collections`.", "value_error"))
        elif len(query.getlist(name)) > 1:
            problems.append(_problem(name, REPEATED, "repeated"))
    if problems:
        raise Malformed(problems)
    if len(wanted) > limits.MAX_SUBSCRIPTIONS:
        raise too_many_subscriptions()
    filters = {name.removeprefix(FILTER).lower(): query[name] for name in query if FILTER in name}
    return [
        Subscription(name, operations, filters.get(name, ""), since)
        for name, operations in wanted.items()
    ] or [Subscription(None, since=since)]


def _problem(name: str, message: str, kind: str) -> JSONObject:
    return {"loc": ["query", name], "msg": message, "type": kind}


class StreamService:
    """Serves a stream in the loop, from its head to its end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def count(self) -> None:
        registry.add(self._connection)

    async def serve(self, head: bytes, sock: socket.socket) -> None:
        """Attach the stream to the hub until its connection is lost."""
        connection = self._connection
        connection.head = head
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except OSError:
            registry.remove(connection)
            sock.close()
            return
        hub.attach(connection)
        connection.start_reading()
        await connection.lost
        hub.detach(connection)
