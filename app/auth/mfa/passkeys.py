"""Passkeys (WebAuthn Level 3): registered by a signed-in user, used as a factor or alone."""

from __future__ import annotations

import ipaddress
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

import sqlalchemy as sa

from app import clock, config, db
from app.accounts.models import Account, User
from app.accounts.product import faces
from app.auth.mfa import challenges
from app.auth.mfa.models import Method, SecondFactor
from app.errors import BadRequest
from app.types import JSONMapping, JSONObject

if TYPE_CHECKING:
    from webauthn.helpers.structs import PublicKeyCredentialDescriptor

TIMEOUT = int(challenges.LIFETIME.total_seconds()) * 1000  # milliseconds
LONGEST_ID = 1400  # characters of base64url: 1,023 bytes
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, LookupError)


def rp_id() -> str:
    """The domain that passkeys belong to. Raises BadRequest if the service has none.

    The base domain where accounts have host names, else the host of the base URL; browsers accept
    no IP addresses, but `localhost` while developing.
    """
    settings = config.current()
    host = urlsplit(settings.base_url).hostname or ""
    if settings.base_domain and f".{host}".endswith(f".{settings.base_domain}"):
        return settings.base_domain
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_loopback:
        return "localhost"
    message = "Passkeys need a host name, and this service runs under an IP address."
    raise BadRequest(message, error="passkeys_unavailable")


def registration_options(user: User, token: str, existing: Iterable[SecondFactor]) -> JSONObject:
    """The options for `navigator.credentials.create`."""
    import webauthn  # imported on use: large
    from webauthn.helpers import structs

    options = webauthn.generate_registration_options(
        rp_id=rp_id(),
        rp_name=faces.of(user.account_id).name,
        # With the account, so that a sign-in by passkey alone is a keyed look-up.
        user_id=UUID(user.account_id).bytes + UUID(user.id).bytes,
        user_name=user.email,
        user_display_name=user.name or user.email,
        challenge=challenges.bytes_of(token),
        timeout=TIMEOUT,
        authenticator_selection=structs.AuthenticatorSelectionCriteria(
            resident_key=structs.ResidentKeyRequirement.PREFERRED,
            user_verification=structs.UserVerificationRequirement.PREFERRED,
        ),
        exclude_credentials=_descriptors(existing),
    )
    return _as_json(options)


def request_options(token: str, factors: Iterable[SecondFactor] = ()) -> JSONObject:
    """The options for `navigator.credentials.get`; without factors, any passkey of the service."""
    import webauthn  # imported on use: large
    from webauthn.helpers.structs import UserVerificationRequirement

    known = _descriptors(factors)
    options = webauthn.generate_authentication_options(
        rp_id=rp_id(),
        challenge=challenges.bytes_of(token),
        timeout=TIMEOUT,
        allow_credentials=known or None,
        user_verification=UserVerificationRequirement.PREFERRED
        if known
        else UserVerificationRequirement.REQUIRED,
    )
    return _as_json(options)


def register(user: User, token: str, name: str, credential: JSONMapping) -> SecondFactor | None:
    """A new passkey of the user, not stored yet; None if the credential does not verify."""
    import webauthn  # imported on use: large
    from webauthn.helpers.exceptions import WebAuthnException

    try:
        verified = webauthn.verify_registration_response(
            credential=dict(credential),
            expected_challenge=challenges.bytes_of(token),
            expected_rp_id=rp_id(),
            expected_origin=_origins(user.account),
        )
    except (WebAuthnException, *UNREADABLE):
        return None
    credential_id = _encoded(verified.credential_id)
    if len(credential_id) > LONGEST_ID:
        return None
    return SecondFactor(
        account_id=user.account_id,
        user_id=user.id,
        kind=Method.PASSKEY,
        name=name,
        credential_id=credential_id,
        public_key=_encoded(verified.credential_public_key),
        sign_count=verified.sign_count,
        confirmed_at=clock.now(),
    )


def accept(
    user: User, token: str, assertion: JSONMapping, *, alone: bool = False
) -> SecondFactor | None:
    """Verify an assertion by one of the user's passkeys; None if it does not verify.

    `alone`: without another factor, which needs the authenticator to have verified the user.
    """
    credential_id = assertion.get("id")
    if not isinstance(credential_id, str) or len(credential_id) > LONGEST_ID:
        return None
    same = (
        SecondFactor.account_id == user.account_id,
        SecondFactor.user_id == user.id,
        SecondFactor.credential_id == credential_id.replace("\0", ""),
    )
    factor = db.db.session.scalar(sa.select(SecondFactor).where(*same))
    if factor is None:
        return None
    import webauthn  # imported on use: large
    from webauthn.helpers.exceptions import WebAuthnException

    try:
        verified = webauthn.verify_authentication_response(
            credential=dict(assertion),
            expected_challenge=challenges.bytes_of(token),
            expected_rp_id=rp_id(),
            expected_origin=_origins(user.account),
            credential_public_key=_decoded(factor.public_key or ""),
            credential_current_sign_count=factor.sign_count or 0,
            require_user_verification=alone,
        )
    except (WebAuthnException, *UNREADABLE):
        return None
    # Of two requests with one assertion, one stores the authenticator's counter.
    table = SecondFactor.__table__.c
    counted = (
        sa.update(SecondFactor)
        .where(table.account_id == factor.account_id, table.id == factor.id)
        .where(table.sign_count == factor.sign_count)
        .values(sign_count=verified.new_sign_count, last_used_at=clock.now())
    )
    result: Any = db.db.session.execute(counted)
    return factor if result.rowcount else None


def user_key(assertion: JSONMapping) -> tuple[str, str] | None:
    """The account and user that an assertion names by its user handle, unverified."""
    response = assertion.get("response")
    handle = response.get("userHandle") if isinstance(response, dict) else None
    try:
        raw = _decoded(str(handle))
        return str(UUID(bytes=raw[:16])), str(UUID(bytes=raw[16:]))
    except ValueError:
        return None


def _origins(account: Account) -> list[str]:
    """The origins of pages that may use passkeys: ours, and those that the account allows."""
    settings = config.current()
    base = urlsplit(settings.base_url)
    port = f":{base.port}" if base.port else ""
    hosts = [base.netloc, f"{rp_id()}{port}"]
    if settings.base_domain:
        hosts.append(f"{account.slug}.{settings.base_domain}{port}")
    return [f"{base.scheme}://{host}" for host in hosts] + list(
        account.settings.get("cors_origins", ())
    )


def _descriptors(factors: Iterable[SecondFactor]) -> list[PublicKeyCredentialDescriptor]:
    from webauthn.helpers.structs import PublicKeyCredentialDescriptor

    return [
        PublicKeyCredentialDescriptor(id=_decoded(factor.credential_id))
        for factor in factors
        if factor.credential_id
    ]


def _as_json(options: Any) -> JSONObject:
    from webauthn import options_to_json

    loaded: JSONObject = json.loads(options_to_json(options))
    return loaded


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
