"""Events in the Open Cybersecurity Schema Framework, version 1.3 (https://schema.ocsf.io)."""

from __future__ import annotations

from typing import NamedTuple

from app import clock
from app.types import JSONMapping, JSONObject

VERSION = "1.3.0"
CATEGORIES = {3: "Identity & Access Management", 6: "Application Activity"}
PEOPLE = ("user", "service", "operator")
FAILED = ("sign_in.failed", "sign_in.locked", "sign_in.suppressed", "refresh_token.reused")
CREATED, CHANGED, DELETED = "created", "changed", "deleted"


class Class(NamedTuple):
    uid: int
    name: str
    activity: int
    activity_name: str


AUTHENTICATION = (3002, "Authentication")
ACCOUNT_CHANGE = (3001, "Account Change")
ENTITY = (3004, "Entity Management")
DATASTORE = (6005, "Datastore Activity")
API = (6003, "API Activity")
CLASSES = {
    "sign_in.succeeded": Class(*AUTHENTICATION, 1, "Logon"),
    "sign_in.failed": Class(*AUTHENTICATION, 1, "Logon"),
    "sign_in.locked": Class(*AUTHENTICATION, 1, "Logon"),
    "sign_in.suppressed": Class(*AUTHENTICATION, 1, "Logon"),
    "sessions.ended": Class(*AUTHENTICATION, 2, "Logoff"),
    "refresh_token.reused": Class(*AUTHENTICATION, 99, "Refresh token reused"),
    "password.changed": Class(*ACCOUNT_CHANGE, 3, "Password Change"),
    "user.created": Class(*ACCOUNT_CHANGE, 1, "Create"),
    "user.changed": Class(*ACCOUNT_CHANGE, 99, "Change"),
    "user.deleted": Class(*ACCOUNT_CHANGE, 6, "Delete"),
    "second_factor.created": Class(*ACCOUNT_CHANGE, 10, "MFA Factor Enable"),
    "second_factor.deleted": Class(*ACCOUNT_CHANGE, 11, "MFA Factor Disable"),
    "personal_data.read": Class(*DATASTORE, 1, "Read"),
    "operator.records_read": Class(*DATASTORE, 1, "Read"),
    "portal.created": Class(*ENTITY, 1, "Create"),
    "file_link.used": Class(*DATASTORE, 1, "Read"),
    "file_link.ended": Class(*ENTITY, 4, "Delete"),
}
REQUESTS = {
    "POST": Class(*API, 1, "Create"),
    "GET": Class(*API, 2, "Read"),
    "PUT": Class(*API, 3, "Update"),
    "PATCH": Class(*API, 3, "Update"),
    "DELETE": Class(*API, 4, "Delete"),
}
OTHER = Class(*API, 99, "Other")
ENTITY_VERBS = {
    CREATED: Class(*ENTITY, 1, "Create"),
    CHANGED: Class(*ENTITY, 3, "Update"),
    DELETED: Class(*ENTITY, 4, "Delete"),
}


def event(shown: JSONMapping, account_id: str) -> JSONObject:
    """An event, as `service.view` shows it, in OCSF."""
    kind: str = shown["kind"]
    found = _class_of(kind, shown["details"] or {})
    category = found.uid // 1000
    user = {"uid": shown["user_id"], "email_addr": shown["user_email"], "name": shown["user_name"]}
    user = {name: value for name, value in user.items() if value is not None}
    has_failed = kind in FAILED
    result: JSONObject = {
        "activity_id": found.activity,
        "activity_name": found.activity_name,
        "category_uid": category,
        "category_name": CATEGORIES[category],
        "class_uid": found.uid,
        "class_name": found.name,
        "type_uid": found.uid * 100 + found.activity,
        "time": round(clock.parse(shown["occurred_at"]).timestamp() * 1000),
        "severity_id": 3 if has_failed else 1,
        "severity": "Medium" if has_failed else "Informational",
        "status_id": 2 if has_failed else 1,
        "status": "Failure" if has_failed else "Success",
        "metadata": {
            "version": VERSION,
            "product": {"name": "Atrium", "vendor_name": "Atrium"},
            "uid": f"{account_id}/{shown['number']}",
            "sequence": shown["number"],
            "tenant_uid": account_id,
            "event_code": kind,
            "log_name": "security-log",
        },
        "actor": {"user": user, **_application(shown["actor"])},
        "src_endpoint": {"ip": shown["ip_address"]} if shown["ip_address"] else {},
        "unmapped": {
            "details": shown["details"],
            "checksum": shown["checksum"],
            "actor": shown["actor"],
        },
    }
    if shown["request_id"]:
        result["metadata"]["correlation_uid"] = shown["request_id"]
    if shown["user_agent"]:
        result["http_request"] = {"user_agent": shown["user_agent"]}
    return result | _about(shown, found, user)


def _application(actor: JSONMapping | None) -> JSONObject:
    """What acts for a user: a key, a workflow, an import."""
    if actor is None or actor["kind"] in PEOPLE:
        return {}
    named = {"app_uid": actor["id"], "app_name": actor["name"]}
    return {name: value for name, value in named.items() if value is not None}


def _class_of(kind: str, details: JSONMapping) -> Class:
    if kind == "operator.request":
        return REQUESTS.get(details.get("method", ""), OTHER)
    other = Class(*ENTITY, 99, "Other")
    return CLASSES.get(kind) or ENTITY_VERBS.get(kind.rpartition(".")[2], other)


def _about(shown: JSONMapping, found: Class, user: JSONMapping) -> JSONObject:
    details = shown["details"] or {}
    target = {"type": shown["target_type"], "uid": shown["target_id"]}
    if found.uid == AUTHENTICATION[0]:
        about: JSONObject = {"uid": shown["target_id"], "email_addr": details.get("email")}
        named = {name: value for name, value in about.items() if value}
        return {"user": named or dict(user), "is_mfa": bool(details.get("mfa"))}
    if found.uid == ACCOUNT_CHANGE[0]:
        return {"user": {"uid": shown["target_id"]}}
    if found.uid == DATASTORE[0]:
        resource = {"name": shown["target_type"], "type": "collection"}
        return {"table": resource, "type_id": 1, "query_info": {"name": shown["path"]}}
    if found.uid == API[0]:
        operation = f"{details.get('method')} {details.get('route')}"
        return {"api": {"operation": operation}}
    return {"entity": target}
