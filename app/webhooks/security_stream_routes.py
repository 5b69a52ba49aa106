"""`/account/security-log/stream`: where an account's security log is sent."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app.accounts.own_account_routes import blueprint
from app.accounts.types import Body
from app.audit.security_log.models import SecurityStream
from app.auth.guard import principal
from app.outbound.address_policy import LONGEST_URL
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.examples import USER_ID
from app.web.fields import doc
from app.web.schemas import Schema, View, example
from app.webhooks import security_streams, signing
from app.webhooks.security_streams import Revealed

LARGEST = 2**63 - 1
TEST = {"success": False, "response_body": "", "error": "The receiver responded with 503."}
SECRET = {"secret": "4f" * 32, "signing_secret": signing.signing_secret("4f" * 32)}


class SecurityStreamBody(Schema):
    """The receiver of a security log."""

    url = fields.Text(required=True, longest=LONGEST_URL, **doc("HTTPS in production."))
    is_enabled = fields.StrictBoolean(**doc("true by default."))
    owner_id = fields.GivenId(
        **doc(
            "A service user who is an admin: the receiver goes on when you leave. By default its"
            " present service user, else you."
        )
    )
    after = fields.Integer(
        0, LARGEST, **doc("Of a new stream: send events above this number, by default all.")
    )


@example(
    url="https://siem.example.com/atrium",
    is_enabled=True,
    sent_number=12,
    last_sent_at="2026-11-20T12:00:00.123456Z",
    owner_id=USER_ID,
)
class SecurityStreamView(View):
    """Where a security log is sent, and how far."""

    url = ma.fields.String()
    is_enabled = ma.fields.Boolean()
    sent_number = ma.fields.Integer(**doc("The receiver has confirmed events up to this one."))
    failing_since = fields.Timestamp(allow_none=True)
    last_error = ma.fields.String(allow_none=True)
    last_sent_at = fields.Timestamp(allow_none=True)
    created_by = fields.Id(allow_none=True, **doc("The owner; null if unknown."))
    owner_id = fields.Id(allow_none=True, **doc("The same as `created_by`."))
    paused_at = fields.Timestamp(
        allow_none=True,
        **doc(
            "Since when nothing is sent, because the owner is no admin any more;"
            " events wait until an admin takes the stream over."
        ),
    )
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()


class SecurityStreamTestResult(View):
    success = ma.fields.Boolean()
    response_body = ma.fields.String()
    error = ma.fields.String(allow_none=True)


class SecurityStreamSecret(SecurityStreamView):
    """The same with its secret, which is shown once."""

    secret = ma.fields.String(allow_none=True, **doc("null unless it is new."))
    signing_secret = ma.fields.String(
        allow_none=True, **doc("The same in the form of Standard Webhooks libraries.")
    )


@blueprint.route("/security-log/stream", methods=["GET"])
@blueprint.response(200, SecurityStreamView)
@account_admin
def get_security_stream() -> SecurityStream:
    """Get where your account's security log is sent, and how far.

    A 404 means that it is not sent anywhere.
    """
    return security_streams.get(_account_id())


@blueprint.route("/security-log/stream", methods=["PUT"])
@blueprint.arguments(SecurityStreamBody, example={"url": "https://siem.example.com/atrium"})
@blueprint.response(200, SecurityStreamSecret, example={**SECRET})
@account_admin(recent_sign_in=True, api_keys=False)
def put_security_stream(body: Body) -> JSONObject:
    """Send your account's security log to a receiver.

    In signed batches, in order, each with its first and last number and the checksums before and
    after. A new stream's response has the secret; another URL keeps secret and position.
    """
    return _shown(security_streams.put(_account_id(), body, by=principal()))


@blueprint.route("/security-log/stream/test", methods=["POST"])
@blueprint.response(200, SecurityStreamTestResult, example=TEST)
@blueprint.fails(429)
@account_admin
def test_security_stream() -> JSONObject:
    """Send a signed batch without events to the receiver now, and return its response.

    Also works while sending is switched off. A receiver that fails is a 200 with `success: false`,
    and changes nothing. While too many tests run, it is a 429.
    """
    tested = security_streams.send_test(_account_id())
    body = {"response_body": tested.body, "error": tested.error}
    return {"success": tested.error is None, **body}


@blueprint.route("/security-log/stream/take-over", methods=["POST"])
@blueprint.response(200, SecurityStreamView)
@account_admin(recent_sign_in=True, api_keys=False)
def take_over_security_stream() -> SecurityStream:
    """Become the one whose security log's stream it is: a paused one goes on.

    Check the address first.
    """
    return security_streams.take_over(_account_id(), by=principal())


@blueprint.route("/security-log/stream/rotate-secret", methods=["POST"])
@blueprint.response(200, SecurityStreamSecret, example={**SECRET})
@account_admin(recent_sign_in=True, api_keys=False, shows_secret=True)
def rotate_security_stream_secret() -> JSONObject:
    """Replace the secret of your security log's stream at once."""
    return _shown(security_streams.rotate_secret(_account_id(), by=principal()))


@blueprint.route("/security-log/stream", methods=["DELETE"])
@blueprint.response(204)
@account_admin(recent_sign_in=True, api_keys=False)
def delete_security_stream() -> Response:
    """Stop sending your account's security log."""
    security_streams.delete(_account_id(), by=principal())
    return Response(status=204)


def _shown(revealed: Revealed) -> JSONObject:
    stream, secret = revealed.stream, revealed.secret
    shown: JSONObject = {name: getattr(stream, name) for name in SecurityStreamView().fields}
    signing_secret = signing.signing_secret(secret) if secret else None
    return {**shown, "secret": secret, "signing_secret": signing_secret}


def _account_id() -> str:
    return principal().require_account_id()
