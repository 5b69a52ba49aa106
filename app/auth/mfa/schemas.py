"""Request and response schemas of second factors."""

from __future__ import annotations

import marshmallow as ma

from app.auth.mfa.challenges import LONGEST
from app.auth.mfa.models import KINDS, METHODS, PASSKEY
from app.auth.schemas import CREDENTIAL, SignedIn
from app.types import JSONObject
from app.web import fields
from app.web.fields import doc
from app.web.paging import items_field
from app.web.schemas import Message, Schema, View, example

EXAMPLE = "eyJpZCI6IjAx..."
CODES = ["mf2w-4idb-onuw-qylu"]
OF_SIGN_IN = "Of the response to a sign-in; without it, the caller's access token decides."


def _token(text: str = OF_SIGN_IN, *, required: bool = False) -> fields.Text:
    return fields.Text(longest=LONGEST, required=required, **doc(text))


class SignInStep(Schema):
    mfa_token = _token()


class SecondFactorAnswer(Schema):
    """A second factor: a code, or a passkey's assertion."""

    method = fields.Choice(METHODS, required=True)
    code = fields.Text(longest=100)
    assertion = ma.fields.Dict(**doc(CREDENTIAL))

    @ma.validates_schema
    def check_answer(self, data: JSONObject, **options: object) -> None:
        """Require what the method needs."""
        needed = "assertion" if data.get("method") == PASSKEY else "code"
        if data.get("method") and needed not in data:
            raise ma.ValidationError("Missing data for required field.", needed)


class AddressRestoration(SecondFactorAnswer):
    """The token of a mailed link, and a second factor of a user who had one before the change."""

    token = fields.Text(longest=500, required=True)
    method = fields.Choice(METHODS)
    mfa_token = _token("Of the response that asked for the passkey.")
    wait = fields.StrictBoolean(**doc("Restore the address in 24 hours, without a second factor."))


class RestoredAddress(Message):
    """When the address is restored: null if it is."""

    due_at = fields.Timestamp(allow_none=True)


class MfaVerification(SecondFactorAnswer):
    mfa_token = _token("Of the response to the sign-in.", required=True)


class PasskeyStart(Schema):
    """Nothing: neither account nor user is named."""


class PasskeySignIn(View):
    token = _token("Of the options.")
    assertion = ma.fields.Dict(**doc(CREDENTIAL))


class PasskeyOptions(View):
    """Options for `navigator.credentials`, and the token that goes back with the result."""

    token = ma.fields.String()
    options = ma.fields.Dict(**doc("For `PublicKeyCredential.parse...FromJSON()`."))


class SigningReason(View):
    """The reason of an electronic signature."""

    reason = fields.Text(shortest=1, longest=1000)


class NewTotp(SignInStep):
    """An authenticator app to set up."""

    name = fields.Text(shortest=1, longest=100, load_default="Authenticator app")


class TotpSecret(View):
    """The secret of a new authenticator app, shown once."""

    id = fields.Id()
    secret = ma.fields.String()
    otpauth_url = ma.fields.String()
    qr_svg = ma.fields.String(**doc("An SVG element."))


class TotpCode(SignInStep):
    """A code that the new authenticator app shows."""

    code = fields.Text(longest=20, required=True)


class NewPasskey(SignInStep):
    token = _token("Of the options.", required=True)
    name = fields.Text(shortest=1, longest=100, load_default="Passkey")
    credential = ma.fields.Dict(required=True, **doc(CREDENTIAL))


@example(name="Phone")
class FactorView(View):
    id = fields.Id()
    kind = fields.Choice(KINDS)
    name = ma.fields.String()
    created_at = fields.Timestamp()
    last_used_at = fields.Timestamp(allow_none=True)


class FactorName(View):
    name = fields.Text(shortest=1, longest=100)


@example(recovery_codes=CODES)
class RecoveryCodes(View):
    """New recovery codes, shown once."""

    recovery_codes = ma.fields.List(ma.fields.String())


@example(recovery_codes=CODES)
class EnrolledFactor(View):
    """A new factor; with the first one recovery codes, and tokens if it completes a sign-in."""

    factor = ma.fields.Nested(FactorView)
    recovery_codes = ma.fields.List(
        ma.fields.String(), allow_none=True, **doc("Shown once, with the first factor.")
    )
    signed_in = ma.fields.Nested(SignedIn, allow_none=True, **doc("With `mfa_token`."))


class OwnFactors(View):
    """The caller's second factors."""

    policy = fields.Choice(("off", "optional", "required"))
    required_from = fields.Timestamp(
        allow_none=True, **doc("When you need a second factor to sign in; null: never.")
    )
    factors = items_field(FactorView)
    recovery_codes_left = ma.fields.Integer()
