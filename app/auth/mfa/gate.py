"""Whether a proof is enough to start a session: every session begins here (docs/sign-in.md)."""

from __future__ import annotations

from enum import StrEnum

import sqlalchemy as sa

from app import clock, db
from app.accounts import sign_in_settings
from app.accounts.domains import service as domains
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.accounts.sign_in_settings import MfaMode
from app.auth.login_users import AccountRow, LoginUser
from app.auth.mfa import challenges, passkeys
from app.auth.mfa.challenges import Challenge, Step
from app.auth.mfa.models import KINDS, Method, RecoveryCode, SecondFactor
from app.errors import BadRequest, Forbidden, Unauthorized
from app.types import JSONObject

PROVIDER_ONLY = "Your account signs in with its provider, not by password."
ADDRESS_MANAGED = "Your organization manages your address. Ask an admin to change it."


class Proof(StrEnum):
    """The first factor of a sign-in."""

    PASSWORD = "password"  # noqa: S105  # also one chosen by an invitation
    MAIL = "mail"
    SETUP_LINK = "setup link"  # which `bin/atrium setup` printed
    PROVIDER = "provider"  # of the service
    OWN_PROVIDER = "own provider"  # of the account, which sets its own policy
    OWN_PROVIDER_MFA = "own provider with a second factor"
    PASSKEY = "passkey"  # alone, which verified its user


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


def check(user: User | LoginUser, proof: Proof, passed: Challenge | None = None) -> bool:
    """Whether the new session has passed a second factor; `passed` is the challenge of ours.

    Raises Unauthorized `password_sign_in_off` if the account does not let this user sign in by this
    kind of proof, MfaRequired or EnrolmentRequired if it is not enough.
    """
    require_allowed(user, proof)
    if passed is not None:
        return True
    if proof in (Proof.OWN_PROVIDER, Proof.OWN_PROVIDER_MFA, Proof.PASSKEY):
        return proof is not Proof.OWN_PROVIDER
    if needs_factor(user):
        raise factor_required(user, proof=proof)
    required_from = sign_in_settings.required_from(
        user.account.settings, user.role.name, user.created_at
    )
    if required_from and required_from <= clock.now():
        token = challenges.issue(Step.ENROLMENT, user, proof)
        raise EnrolmentRequired(mfa_token=token, methods=list(KINDS))
    return False


def proof_of(passed: Challenge) -> Proof:
    """The first factor of a sign-in that waits for the second."""
    return Proof(passed.proof or Proof.PASSWORD)  # of an older release: the strictest


def allows(user: User | LoginUser, proof: Proof) -> bool:
    """Whether the account lets this user sign in by this kind of proof; services by none."""
    if user.is_service:
        return False
    known = user.sso_only if isinstance(user, LoginUser) else None
    return allows_address(user.account, user.email, proof, sso_only=known)


def allows_address(
    account: Account | AccountRow, email: str, proof: Proof, *, sso_only: bool | None = None
) -> bool:
    """The same for an address, of a user or of whoever is about to become one.

    `sso_only` is whether its domain signs in with providers only; None: look it up.
    """
    # Superadmins must get in when the provider does not.
    is_system = account.id == SYSTEM_ACCOUNT_ID
    if proof is Proof.SETUP_LINK:
        return is_system
    if proof is Proof.MAIL:
        is_on = sign_in_settings.allows_magic_links(account.settings)
    elif proof is Proof.PASSWORD:
        is_on = is_system or sign_in_settings.allows_passwords(account.settings)
    else:
        return True
    if not is_on or is_system:
        return is_on
    return not (domains.is_sso_only(account.id, email) if sso_only is None else sso_only)


def require_allowed(user: User | LoginUser, proof: Proof) -> None:
    """Raise Unauthorized `password_sign_in_off` unless the user may sign in by this proof."""
    if not allows(user, proof):
        raise Unauthorized(PROVIDER_ONLY, error="password_sign_in_off")


def require_password(account: Account, email: str) -> None:
    """Raise Forbidden `password_sign_in_off` where an address may have no password."""
    if not allows_address(account, email, Proof.PASSWORD):
        raise Forbidden(PROVIDER_ONLY, error="password_sign_in_off")


def has_password(user: User) -> bool:
    """Whether the user has a password and may use it."""
    return user.password_hash is not None and allows(user, Proof.PASSWORD)


def is_address_managed(user: User) -> bool:
    """Whether only admins and the directory change the user's address.

    Where the provider decides who signs in: under another address it would not any more.
    """
    is_system = user.account_id == SYSTEM_ACCOUNT_ID
    return not is_system and domains.is_sso_only(user.account_id, user.email)


def check_own_address(user: User, restored: str | None = None) -> None:
    """Check that users may change their own address, or restore this one.

    Raises Forbidden `address_managed`.
    """
    stays_managed = restored is not None and domains.is_sso_only(user.account_id, restored)
    if is_address_managed(user) and not stays_managed:
        raise Forbidden(ADDRESS_MANAGED, error="address_managed")


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
    if sign_in_settings.mode(user.account.settings) == MfaMode.OFF:
        return False
    if isinstance(user, LoginUser):
        return user.has_second_factor
    return bool(factors_of(user))


def factor_required(
    user: User | LoginUser,
    step: Step = Step.SIGN_IN,
    message: str | None = None,
    *,
    proof: Proof | None = None,
) -> MfaRequired:
    """The error that asks for a second factor of the user, with a token of this step."""
    factors, token = factors_of(user), challenges.issue(step, user, proof or "")
    methods = [kind for kind in KINDS if any(factor.kind == kind for factor in factors)]
    has_codes = sa.exists().where(
        RecoveryCode.account_id == user.account_id, RecoveryCode.user_id == user.id
    )
    if db.db.session.scalar(sa.select(has_codes)):
        methods.append(Method.RECOVERY_CODE)
    extra: JSONObject = {}
    if Method.PASSKEY in methods:
        try:
            extra["passkey_options"] = passkeys.request_options(
                token, [factor for factor in factors if factor.kind == Method.PASSKEY]
            )
        except BadRequest:  # no host name: the other methods remain
            methods.remove(Method.PASSKEY)
    return MfaRequired(message, mfa_token=token, methods=methods, **extra)
