"""The streams of one account: who may be sent which of the next changes."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from app import clock
from app.audit import sealing
from app.audit.security_log import reads
from app.collections import definitions
from app.collections import table as tables
from app.collections.definitions import Definition
from app.context import tenancy
from app.db import versioned_cache
from app.errors import AppError, NotFound
from app.realtime import sse, websocket
from app.realtime.connections import Subscription, key_of
from app.realtime.feed import changes, dependencies, marks, rights, states
from app.realtime.feed.changes import Scan
from app.realtime.feed.marks import Mark
from app.realtime.feed.members import Outlook
from app.realtime.feed.rights import Reset
from app.realtime.feed.states import Transition
from app.realtime.feed.visibility import Event, Linked, View
from app.realtime.stream import Outbox, Stream
from app.web.serialization import dumps

RELOADS = 5  # rights may change again while they are read
TURN_SECONDS = 0.2  # then other accounts have their turn
PATIENCE = timedelta(seconds=0.5)  # of what a change concerns; then its reader lists again
SEALING_SECONDS = 1  # of a statement, where the feed of an account has to be sealed first
Collections = Mapping[str, Definition]
"""The definitions by table name."""
Payloads = Callable[[], Sequence[bytes]]
"""Makes what a stream is sent of a change."""


class Listener(NamedTuple):
    """A stream that follows a collection."""

    stream: Stream
    subscription: Subscription
    view: View

    def hears(self, event: Event | Reset) -> bool:
        """Whether it asked for events of this kind."""
        if isinstance(event, Reset) or event.hidden:
            return True
        return event.operation in self.subscription.operations


class Audience:
    """The streams of an account."""

    def __init__(self, account_id: str, streams: Sequence[Stream]) -> None:
        self._account_id, self._streams = account_id, streams
        # Fixed here, as clients subscribe meanwhile.
        self._following = [(stream, one) for stream in streams for one in stream.subscriptions]
        self.has_more = False
        """Whether to go on at once."""
        self.is_behind = False
        """Whether a client has yet to read before it is sent more."""

    def send_next(self, outbox: Outbox) -> None:
        """Send the next changes to those who are ready, and end what has no right any more."""
        ready = {stream for stream in self._streams if outbox.is_ready(stream)}
        self.is_behind = len(ready) < len(self._streams)
        following = [(stream, one) for stream, one in self._following if stream in ready]
        with tenancy.in_account(self._account_id):
            scan, wanted = None, set[str]()
            if following:
                with sealing.brief(SEALING_SECONDS):  # or no account has its turn
                    sealing.settle(self._account_id)
                start = min(one.position for _, one in following)
                wanted = _tables(following)
                scan = changes.scan(self._account_id, start, wanted)
            # After the scan: whoever lost a right before a change is not sent it.
            collections = self._verified()
            self._end_closed(collections)
            if scan is None:
                return
            if wanted and not _tables(following) <= wanted:  # a rule reads more since
                self.has_more = True
                return
            done = 0
            for stream in ready:
                stream.sent, stream.stopped_at = 0, None
            try:
                self._send(scan, collections, following, outbox)
                done = scan.next
            finally:
                outbox.flush()  # what is in it counts as sent
                for stream, one in following:
                    stopped = done if stream.stopped_at is None else stream.stopped_at
                    one.position = max(one.position, stopped, stream.sent)
        self.is_behind |= any(stream.stopped_at is not None for stream in ready)
        self.has_more = not scan.ended

    def _verified(self) -> Collections:
        """The current collections, with all callers identified."""
        for stream in self._streams:
            if stream.caller is None:
                self._identify(stream)
        collections = self._collections()
        self._read_filters(collections)
        for _ in range(RELOADS):
            live = [stream for stream in self._streams if stream.caller is not None]
            checks = {check for one in collections.values() for check in one.version_checks}
            for stream in live:
                checks.update(stream.version_checks)
            with tenancy.across_accounts():
                outdated = versioned_cache.outdated(checks)
            if not outdated:
                break
            with versioned_cache.reloading():
                collections = self._collections()
                for stream in live:
                    if stream.caller and not outdated.isdisjoint(stream.caller.version_checks):
                        self._identify(stream)
                self._read_filters(collections)
        now = clock.now().timestamp()
        for stream in self._streams:
            expires_at = stream.connection.credential.expires_at
            if expires_at is not None and expires_at <= now and stream.caller:
                stream.caller = None
                stream.call("expire")
        return collections

    def _identify(self, stream: Stream) -> None:
        stream.caller = None
        try:
            with tenancy.across_accounts():
                stream.caller = stream.connection.credential.principal()
        except AppError as error:
            stream.call("expire" if error.error == "token_expired" else "end")

    def _read_filters(self, collections: Collections) -> None:
        """Read the filters that may refer to other collections, whose versions count then."""
        for stream, one in self._following:
            if one.collection is None or "." not in one.filter or stream.caller is None:
                continue
            definition = collections.get(tables.table_name_for(one.collection))
            if definition is not None:
                _view(stream, definition, one)

    def _collections(self) -> Collections:
        names = {one.collection for _, one in self._following}
        if None in names:
            return {one.table_name: one for one in definitions.get_all()}
        found = {}
        for name in names:
            try:
                one = definitions.get(str(name))
            except NotFound:
                continue
            found[one.table_name] = one
        return found

    def _end_closed(self, collections: Collections) -> None:
        current = set(collections.values())
        for stream, one in self._following:
            if stream.caller is None or one.collection is None:
                continue
            definition = collections.get(tables.table_name_for(one.collection))
            try:
                if definition is None:
                    raise NotFound("There is no such collection.")
                stream.view(definition, one.filter)
            except AppError as error:
                self._end(stream, one, error)
        for stream in self._streams:
            stream.forget_views(current)

    def _end(self, stream: Stream, one: Subscription, error: AppError) -> None:
        if stream.connection.protocol == sse.EventStream.protocol:
            stream.caller = None
            stream.call("end")
            return
        subscriptions, key = stream.connection.subscriptions, key_of(one.collection)
        if subscriptions.get(key) is one:  # else the client has replaced it
            del subscriptions[key]
            stream.call("unsubscribed", one.collection, error)

    def _send(
        self,
        scan: Scan,
        collections: Collections,
        following: Sequence[tuple[Stream, Subscription]],
        outbox: Outbox,
    ) -> None:
        read = (dependencies.read_by(one) for one in collections.values())
        known = {name: one for own in read for name, one in own.items()} | dict(collections)
        found = states.transitions(self._account_id, scan.rows, known.values())
        changed = {one.definition for one in found}
        tables_changed = {one.table_name for one in changed}
        concerned = changed | {
            one
            for one in collections.values()
            if not tables_changed.isdisjoint(dependencies.read_by(one))
        }
        listeners = _listeners(concerned, following)
        every = [one for own in listeners.values() for one in own]
        linked = Linked(found, [one.view for one in every])
        outlooks = Outlooks(self._account_id, scan.next, found)
        steps: dict[int, list[Iterable[tuple[Stream, Payloads]]]] = {}
        for transition in found:
            payloads = ChangePayloads(transition, linked, outlooks)
            own = listeners.get(transition.definition, ())
            steps.setdefault(transition.change, []).append(
                _of_change(transition.change, payloads, own)
            )
        behind = [one for one in every if one.subscription.position < scan.next]
        for change, by_others in _by_memberships(outlooks, behind).items():
            steps.setdefault(change, []).append(by_others)
        for mark in (mark for row in scan.rows if (mark := marks.read(row))):
            steps[mark.change] = [_resets(mark, collections, following)]
        deadline = time.monotonic() + TURN_SECONDS
        for change in sorted(steps):
            frames, ready = Frames(change), list[tuple[Stream, bytes]]()
            by_stream: dict[Stream, list[Payloads]] = {}
            for stream, payload in chain.from_iterable(steps[change]):
                if stream.stopped_at is None:
                    by_stream.setdefault(stream, []).append(payload)
            for stream, mine in by_stream.items():
                # A stream gets all frames of a change, or none.
                if not outbox.is_ready(stream) or time.monotonic() > deadline:
                    stream.stopped_at = change - 1
                    continue
                # Two subscriptions that include a change in the same way are sent it once.
                with reads.collected("realtime"):
                    shown = tuple(dict.fromkeys(one for make in mine for one in make()))
                ready += [(stream, frame) for frame in frames.of(stream, shown)]
            for stream, frame in ready:
                outbox.add(stream, frame)
                stream.sent = change


def _resets(
    mark: Mark, collections: Collections, following: Sequence[tuple[Stream, Subscription]]
) -> Iterator[tuple[Stream, Payloads]]:
    """The streams that are sent a reset at a mark."""
    for stream, one in following:
        caller = stream.caller
        if caller is None or one.position >= mark.change:
            continue
        followed = {definition.name: [definition] for definition in collections.values()}
        if one.collection is not None:
            named = collections.get(tables.table_name_for(one.collection))
            view = named and _view(stream, named, one)
            referenced = view.referenced.values() if view else ()
            own = [view.definition, *(access.definition for access in referenced)] if view else []
            followed = {own[0].name: own} if own else {}
        found = rights.resets([mark], caller, followed, all_=one.collection is None)
        payloads = [*map(_of_reset, found)]
        if payloads:
            yield stream, partial(tuple, payloads)


def _of_change(
    change: int, payloads: ChangePayloads, listeners: Sequence[Listener]
) -> Iterator[tuple[Stream, Payloads]]:
    """The streams that a change may be sent to, and what."""
    for one in listeners:
        if one.subscription.position < change:
            yield one.stream, partial(payloads.of, one)


def _by_memberships(
    outlooks: Outlooks, listeners: Sequence[Listener]
) -> Mapping[int, Sequence[tuple[Stream, Payloads]]]:
    """The streams that are sent what other records give or take, and what, by the change.

    After the time of a turn, the streams of further callers whom they concern wait for the next;
    who has waited for long lists again.
    """
    found: dict[int, list[tuple[Stream, Payloads]]] = {}
    known: dict[object, Sequence[Event | Reset]] = {}
    has_judged, deadline = False, time.monotonic() + TURN_SECONDS
    for one in listeners:
        outlook = outlooks.at(one.subscription.position)
        key = (outlook, one.view.definition, *one.view.key)
        if key not in known:
            touches = outlook.touches(one.view)
            if touches and has_judged and time.monotonic() > deadline:
                first = min((touch.transition for touch in touches), key=attrgetter("change"))
                if clock.now() - first.occurred_at < PATIENCE:
                    one.stream.stopped_at = 0  # where it is
                    continue
                known[key] = [Reset(first.change, one.view.definition.name)]
            else:
                has_judged |= bool(touches)
                known[key] = outlook.of(one.view)
        for event in known[key]:
            if one.subscription.position < event.change and one.hears(event):
                payloads = partial(_payloads, event, one.view)
                found.setdefault(event.change, []).append((one.stream, payloads))
    return found


def _payloads(event: Event | Reset, view: View) -> Sequence[bytes]:
    """The messages of an event."""
    if isinstance(event, Reset):
        return (_of_reset(event),)
    source = event.source
    content = {
        "type": f"{source.definition.name}.{event.operation}",
        "change": event.change,
        "timestamp": clock.iso(source.occurred_at),
        "data": {"id": source.record_id} if event.record is None else view.render(event.record),
    }
    if event.operation == "create" and source.is_restored:
        content["restored"] = True
    if event.record is not None:
        reads.note_rows(view.access, [event.record], view.names)
    return (dumps({**content, "hidden": True} if event.hidden else content),)


def _of_reset(reset: Reset) -> bytes:
    return dumps({"type": f"{reset.collection}.reset", "change": reset.change})


def _tables(following: Sequence[tuple[Stream, Subscription]]) -> set[str]:
    """The tables that are followed, and those that their rules read; empty for all."""
    names = {one.collection or "" for _, one in following}
    if "" in names:
        return set()
    found = set[str]().union(*map(definitions.table_names, names))
    for name in names:
        with suppress(NotFound):
            for one in dependencies.read_by(definitions.get(name)).values():
                found.update(span.table_name for span in one.spans)
    return found


def _listeners(
    changed: set[Definition], following: Sequence[tuple[Stream, Subscription]]
) -> Mapping[Definition, Sequence[Listener]]:
    found: dict[Definition, list[Listener]] = {}
    by_name = {one.name.lower(): one for one in changed}
    for stream, one in following:
        if stream.caller is None:
            continue
        named = by_name.get(one.collection.lower()) if one.collection else None
        for definition in changed if one.collection is None else {named} - {None}:
            view = definition and _view(stream, definition, one)
            if view:
                found.setdefault(view.definition, []).append(Listener(stream, one, view))
    return found


def _view(stream: Stream, definition: Definition, one: Subscription) -> View | None:
    try:
        return stream.view(definition, one.filter)
    except AppError:
        return None


class Outlooks:
    """What streams have not read yet, and what has followed, by their positions."""

    def __init__(self, account_id: str, end: int, found: Sequence[Transition]) -> None:
        self._account_id, self._end, self._found = account_id, end, found
        self._numbers = [one.change for one in found]
        self._known: dict[int, Outlook] = {}

    def at(self, position: int) -> Outlook:
        """The outlook of a stream that has all changes up to this one."""
        start = bisect_right(self._numbers, position)
        if start not in self._known:
            self._known[start] = Outlook(self._account_id, self._end, self._found[start:])
        return self._known[start]


class Frames:
    """The frames of what comes of one change: made once for all who are sent the same."""

    def __init__(self, change: int) -> None:
        self._change = change
        self._frames: dict[object, Sequence[bytes]] = {}

    def of(self, stream: Stream, payloads: Sequence[bytes]) -> Sequence[bytes]:
        """The frames of these payloads. The last one has the change as its position."""
        protocol = stream.connection.protocol
        key = (protocol, tuple(payloads))
        if key not in self._frames and protocol == sse.EventStream.protocol:
            numbers = [None] * (len(payloads) - 1) + [self._change]
            self._frames[key] = [*map(sse.frame, numbers, payloads)]
        elif key not in self._frames:
            self._frames[key] = [*map(websocket.frame, payloads)]
        return self._frames[key]


class ChangePayloads:
    """The messages of one change: rendered once for all who see the same of it."""

    def __init__(self, transition: Transition, linked: Linked, outlooks: Outlooks) -> None:
        self._transition, self._linked, self._outlooks = transition, linked, outlooks
        self._events: dict[object, Event | Reset | None] = {}
        self._payloads: dict[object, Sequence[bytes]] = {}

    def of(self, listener: Listener) -> Sequence[bytes]:
        """The messages to a listener; none if it sees nothing of the change."""
        view, outlook = listener.view, self._outlooks.at(listener.subscription.position)
        key = (outlook, *view.key)  # once for all streams of a caller with the same filter
        if key not in self._events:
            self._events[key] = outlook.event(view, self._transition, self._linked)
        event = self._events[key]
        if event is None or not listener.hears(event):
            return ()
        if isinstance(event, Reset):
            return _payloads(event, view)
        shown = None if event.record is None else view.shown
        seen = (event.operation, event.hidden, shown)
        if seen not in self._payloads:
            self._payloads[seen] = _payloads(event, view)
        elif event.record is not None:  # rendered once, and seen by each listener
            reads.note_rows(view.access, [event.record], view.names)
        return self._payloads[seen]
