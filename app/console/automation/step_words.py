"""The words of the form of steps: types of steps and their properties."""

from __future__ import annotations

from app.web.languages import lazy_gettext

LABELS = {
    "create_record": lazy_gettext("Create a record"),
    "update_record": lazy_gettext("Update a record"),
    "delete_record": lazy_gettext("Delete a record"),
    "query_records": lazy_gettext("Query records"),
    "send_webhook": lazy_gettext("Send a request"),
    "send_email": lazy_gettext("Send a mail"),
    "condition": lazy_gettext("Condition"),
    "wait_delay": lazy_gettext("Wait for a time"),
    "wait_condition": lazy_gettext("Wait until a condition holds"),
    "wait_event": lazy_gettext("Wait for an event"),
    "loop": lazy_gettext("Loop over items"),
    "parallel": lazy_gettext("Run in parallel"),
}
PROPERTY_NAMES = {
    "name": lazy_gettext("Name"),
    "next": lazy_gettext("Next"),
    "expression": lazy_gettext("Expression"),
    "on_true": lazy_gettext("On true"),
    "on_false": lazy_gettext("On false"),
    "duration": lazy_gettext("Duration"),
    "poll_interval": lazy_gettext("Poll interval"),
    "timeout": lazy_gettext("Timeout"),
    "event": lazy_gettext("Event"),
    "collection": lazy_gettext("Collection"),
    "condition": lazy_gettext("Condition"),
    "items": lazy_gettext("Items"),
    "steps": lazy_gettext("Steps"),
    "branches": lazy_gettext("Branches"),
    "url": lazy_gettext("URL"),
    "method": lazy_gettext("Method"),
    "headers": lazy_gettext("Headers"),
    "body": lazy_gettext("Body"),
    "to": lazy_gettext("To"),
    "subject": lazy_gettext("Subject"),
    "data": lazy_gettext("Data"),
    "record_id": lazy_gettext("Record id"),
    "filter": lazy_gettext("Filter"),
    "sort": lazy_gettext("Sort"),
    "limit": lazy_gettext("Limit"),
}
