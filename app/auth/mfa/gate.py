"""Whether a first factor is enough to start a session (contract section 18)."""

from __future__ import annotations

from enum import Enum

import sqlalchemy as sa

from app import clock, db
from app.accounts import sign_in_settings
from app.accounts.models import User
from app.auth.factor_models import KINDS, PASSKEY, RECOVERY_CODE, RecoveryCode, SecondFactor
from app.auth.login_users import LoginUser
from app.auth.mfa import challenges, passkeys
from app.errors import BadRequest, Unauthorized
from app.types import JSONObject


class Proof(Enum):
    """How a user has proved who they are."""

    ONE_FACTOR = "one factor"  # a password or a mailed link
    PROVIDER = "provider"  # of the account, which sets its own policy
    PROVIDER_MFA = "provider with a second factor"
    MFA = "second factor"  # ours; also a passkey that verified its user


class MfaRequired(Unauthorized):
    """A sign-in that needs a second factor: `mfa_token`, and the `methods` that are set up."""

    error = "mfa_required"
    message = "Confirm your sign-in with a second factor (POST /auth/mfa/verify)."


class EnrolmentRequired(Unauthorized):
    """A sign-in of a user who must set up a second factor first: `mfa_token`."""

    error = "mfa_enrolment_required"
    message = (
        "Your account requires a second factor. Set one up with the mfa_token"
        " (POST /auth/mfa/totp or /auth/mfa/passkeys/options)."
    )


def check(user: User | LoginUser, proof: Proof) -> bool:
    """Whether the new session has passed a second factor.

    Raises MfaRequired or EnrolmentRequired if the proof is not enough.
    """
    if proof is not Proof.ONE_FACTOR:
        return proof in (Proof.MFA, Proof.PROVIDER_MFA)
    if needs_factor(user):
        raise factor_required(user)
    required_from = sign_in_settings.required_from(
        user.account.settings, user.role.name, user.created_at
    )
    if required_from and required_from <= clock.now():
        token = challenges.issue(challenges.ENROLMENT, user)
        raise EnrolmentRequired(mfa_token=token, methods=list(KINDS))
    return False


def factors_of(user: User | LoginUser) -> list[SecondFactor]:
    """The user's confirmed factors, oldest first."""
    return list(
        db.db.session.scalars(
            sa.select(SecondFactor)
            .where(SecondFactor.account_id == user.account_id, SecondFactor.user_id == user.id)
            .where(SecondFactor.confirmed_at.is_not(None))
            .order_by(SecondFactor.created_at, SecondFactor.id)
        )
    )


def needs_factor(user: User | LoginUser) -> bool:
    """Whether the user has a second factor, and the account uses them."""
    if sign_in_settings.mode(user.account.settings) == sign_in_settings.OFF:
        return False
    if isinstance(user, LoginUser):
        return user.has_second_factor
    return bool(factors_of(user))


def factor_required(
    user: User | LoginUser, purpose: str = challenges.SIGN_IN, message: str | None = None
) -> MfaRequired:
    """The error that asks for a second factor of the user, with a token of this purpose."""
    factors, token = factors_of(user), challenges.issue(purpose, user)
    methods = [kind for kind in KINDS if any(factor.kind == kind for factor in factors)]
    has_codes = sa.exists().where(
        RecoveryCode.account_id == user.account_id, RecoveryCode.user_id == user.id
    )
    if db.db.session.scalar(sa.select(has_codes)):
        methods.append(RECOVERY_CODE)
    extra: JSONObject = {}
    if PASSKEY in methods:
        try:
            extra["passkey_options"] = passkeys.request_options(
                token, [factor for factor in factors if factor.kind == PASSKEY]
            )
        except BadRequest:  # no host name: the other methods remain
            methods.remove(PASSKEY)
    return MfaRequired(message, mfa_token=token, methods=methods, **extra)
