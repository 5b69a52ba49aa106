"""Setting second factors up, proving them, and removing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app import clock, crypto, db, events, jobs
from app.accounts import service as accounts
from app.accounts import sign_in_settings
from app.accounts.models import User
from app.accounts.product import mails
from app.accounts.sign_in_settings import MfaMode
from app.accounts.types import Condition
from app.auth import lockout
from app.auth.mfa import challenges, gate, passkeys, recovery_codes, totp
from app.auth.mfa.challenges import Challenge, Step
from app.auth.mfa.models import Method, RecoveryCode, SecondFactor
from app.errors import Conflict, Forbidden, InvalidValues, NotFound, Unauthorized, problem
from app.types import JSONMapping, JSONObject
from app.web import rate_limits

MAX_FACTORS = 10


@dataclass(frozen=True)
class Answer:
    """A user's answer: a code of a method, or a passkey's assertion with its token."""

    method: str
    code: str = ""
    assertion: JSONMapping | None = None
    token: str = ""
    """The token whose digest is the assertion's challenge."""


@dataclass(frozen=True)
class Enrolling:
    """A user who sets up a factor: in a sign-in that needs one, or in a session."""

    user: User
    challenge: Challenge | None = None
    session_id: str | None = None


@dataclass(frozen=True)
class Enrolled:
    """A new factor, and with the first one the recovery codes, which are shown once."""

    factor: SecondFactor
    recovery_codes: list[str] | None


def verify_sign_in(token: str, answer: Answer) -> tuple[User, Challenge]:
    """The user who completes a sign-in. Raises Unauthorized or TooManyRequests."""
    challenge = challenges.read(token, Step.SIGN_IN)
    user = challenges.user_of(challenge)
    prove(user, answer, challenge)
    return user, challenge


def verify_passkey(token: str, assertion: JSONMapping) -> User:
    """The user who signs in by a passkey alone. Raises Unauthorized or TooManyRequests."""
    challenge = challenges.read(token, Step.PASSKEY_SIGN_IN)
    key = passkeys.user_key(assertion)
    user = db.db.session.get(User, key) if key else None
    if user is None or not user.may_sign_in or not user.email_verified:
        raise _wrong()
    if sign_in_settings.mode(user.account.settings) == MfaMode.OFF:
        raise _wrong()
    with db.transaction():
        is_right = passkeys.accept(user, token, assertion, alone=True) is not None
        if is_right:
            challenges.use(challenge, user.account_id)
    if not is_right:
        lockout.publish_failure(user, "invalid_passkey")
        raise _wrong()
    return user


def prove(
    user: User, answer: Answer, challenge: Challenge | None = None, tries_of: str = ""
) -> None:
    """Check a second factor of the user, and use up its code and the challenge.

    `tries_of` is a purpose whose wrong ones count for themselves.
    Raises Unauthorized `invalid_code`, or TooManyRequests after too many wrong ones.
    """
    limits = lockout.second_factor_limits(user, tries_of)
    with lockout.publishing_failures(user.account_id, user.id, user.email):
        rate_limits.check(*limits)
    with db.transaction():
        match Method(answer.method):
            case Method.TOTP:
                is_confirmed = SecondFactor.confirmed_at.is_not(None)
                right = totp.accept(user, answer.code, is_confirmed) is not None
            case Method.PASSKEY:
                right = passkeys.accept(user, answer.token, answer.assertion or {}) is not None
            case Method.RECOVERY_CODE:
                right = recovery_codes.accept(user, answer.code)
        if right and challenge is not None:
            challenges.use(challenge, user.account_id)
        if right and answer.method == Method.RECOVERY_CODE:
            _notify(user, "recovery_code_used")
    if not right:
        lockout.publish_failure(user, "invalid_code")
    lockout.record_guess(limits, right=right)
    if not right:
        raise _wrong()


def prove_again(user: User, answer: Answer, step: Step) -> None:
    """Check a second factor of a signed-in user; an assertion needs a token of this step."""
    challenge = None
    if answer.method == Method.PASSKEY:
        challenge = challenges.read(answer.token, step)
        if challenges.user_of(challenge).id != user.id:
            raise _wrong()
    # The link to undo a change is in a mailbox that may be somebody else's by now.
    prove(user, answer, challenge, step if step is Step.EMAIL_UNDO else "")


def start_totp(user: User, name: str) -> tuple[SecondFactor, str]:
    """A new authenticator app and its secret; it counts once a code has confirmed it.

    Raises InvalidValues, Forbidden or Conflict.
    """
    check_may_enrol(user)
    name = accounts.label(name)
    secret = totp.new_secret()
    with db.transaction() as session:
        _lock(user)
        _check_room(user)
        # Nobody can confirm an older secret any more: its page may be in somebody else's hands.
        session.execute(sa.delete(SecondFactor).where(*_unconfirmed(user)))
        factor = SecondFactor(
            account_id=user.account_id,
            user_id=user.id,
            kind=Method.TOTP,
            name=name,
            secret=crypto.encrypt(secret),
        )
        session.add(factor)
    return factor, secret


def pending_totp(user: User, factor_id: str) -> tuple[SecondFactor, str]:
    """This authenticator app and its secret if a code has yet to confirm it, else a new one.

    Only the page that showed its secret has its id: another may be in somebody else's hands.
    """
    same = SecondFactor.id == factor_id
    factor = db.db.session.scalar(sa.select(SecondFactor).where(*_unconfirmed(user), same))
    if factor is None:
        return start_totp(user, "Authenticator app")
    return factor, crypto.decrypt(factor.secret or "")


def confirm_totp(by: Enrolling, code: str) -> Enrolled:
    """Confirm the new authenticator app by a code. Raises InvalidValues or TooManyRequests."""
    user = by.user
    limits = lockout.second_factor_limits(user)
    rate_limits.check(*limits)
    with db.transaction():
        _lock(user)
        factor = totp.accept(user, code, SecondFactor.confirmed_at.is_(None))
        enrolled = _enrol(by, factor) if factor else None
    lockout.record_guess(limits, right=enrolled is not None)
    if enrolled is None:
        message = "The code is wrong. Check the clock of your phone, and type the newest code."
        raise InvalidValues([problem("code", "invalid_code", message)])
    return enrolled


def start_passkey(user: User) -> tuple[str, JSONObject]:
    """A token, and the options for the browser. Raises Forbidden, Conflict or BadRequest."""
    check_may_enrol(user)
    existing = gate.factors_of(user)
    if len(existing) >= MAX_FACTORS:
        raise _too_many()
    token = challenges.issue(Step.REGISTRATION, user)
    return token, passkeys.registration_options(user, token, existing)


def add_passkey(by: Enrolling, token: str, name: str, credential: JSONMapping) -> Enrolled:
    """Store a new passkey. Raises InvalidValues, Unauthorized, Forbidden or Conflict."""
    user = by.user
    check_may_enrol(user)
    registration = challenges.read(token, Step.REGISTRATION)
    factor = passkeys.register(user, token, accounts.label(name), credential)
    if factor is None or challenges.user_of(registration).id != user.id:
        raise InvalidValues([problem("credential", "invalid_credential", "Not a valid passkey.")])
    try:
        with db.transaction() as session:
            _lock(user)
            _check_room(user)
            challenges.use(registration, user.account_id)
            session.add(factor)
            session.flush()
            return _enrol(by, factor)
    except IntegrityError as error:
        raise Conflict("This passkey is registered already.") from error


def renew_recovery_codes(user: User) -> list[str]:
    """Ten new recovery codes; older ones stop working. Raises Conflict without a factor."""
    with db.transaction():
        _lock(user)
        if not gate.factors_of(user):
            raise Conflict("Set up an authenticator app or a passkey first.")
        codes = recovery_codes.replace(user)
        _notify(user, "recovery_codes_renewed")
    return codes


def rename(user: User, factor_id: str, name: str) -> SecondFactor:
    """Rename a factor. Raises NotFound or InvalidValues."""
    with db.transaction():
        factor = _find(user, factor_id)
        factor.name = accounts.label(name)
    return factor


def remove(user: User, factor_id: str) -> None:
    """Remove a factor; with the last one, the recovery codes. Raises NotFound or Conflict."""
    with db.transaction() as session:
        _lock(user)
        factor = _find(user, factor_id)
        account = (user.account.settings, user.role.name, user.created_at)
        is_required = sign_in_settings.required_from(*account) is not None
        if is_required and len(gate.factors_of(user)) == 1:
            raise Conflict("Your account requires a second factor: set up another one first.")
        session.delete(factor)
        session.flush()
        if not gate.factors_of(user):
            recovery_codes.delete(user)
        _notify(user, "factor_removed", factor.name)


def reset(user: User) -> None:
    """Remove all factors of a user, who gets a mail; all their sessions end."""
    with db.transaction():
        _lock(user)
        remove_all(user)
        events.publish(events.UserLostAccess(user.account_id, user.id))
        _notify(user, "factors_reset")


def remove_all(user: User) -> None:
    """Delete all factors and recovery codes of a user, in the open transaction."""
    session = db.db.session
    mine = (SecondFactor.account_id == user.account_id, SecondFactor.user_id == user.id)
    session.execute(sa.delete(SecondFactor).where(*mine))
    recovery_codes.delete(user)


def has_factor_from_before(user: User, moment: datetime) -> bool:
    """Whether a factor that the account asks for was confirmed before this moment."""
    return gate.needs_factor(user) and any(
        factor.confirmed_at and factor.confirmed_at < moment for factor in gate.factors_of(user)
    )


def enrolling(token: str) -> Enrolling:
    """The user of a sign-in that needs a first factor. Raises Unauthorized."""
    challenge = challenges.read(token, Step.ENROLMENT)
    user = challenges.user_of(challenge)
    if gate.factors_of(user):  # set up meanwhile: another could be somebody else's
        raise _wrong()
    return Enrolling(user, challenge)


def check_may_enrol(user: User) -> None:
    """Raise Forbidden where the account has second factors switched off."""
    if sign_in_settings.mode(user.account.settings) == MfaMode.OFF:
        message = "Second factors are switched off in this account."
        raise Forbidden(message, error="mfa_off")


@events.subscribe(events.AddressVerified)
def _on_address_proved(event: events.AddressVerified) -> None:
    # Whoever used the address before may have set up factors; older ones are their owner's.
    user = db.db.session.get_one(User, (event.account_id, event.user_id))
    foreign: list[Condition] = [
        SecondFactor.confirmed_at.is_(None),
        SecondFactor.on_verified_address.is_not(sa.true()),
    ]
    if event.since is not None:
        foreign.append(SecondFactor.confirmed_at >= event.since)
        recovery_codes.delete(user, RecoveryCode.created_at >= event.since)
    mine = (SecondFactor.account_id == user.account_id, SecondFactor.user_id == user.id)
    db.db.session.execute(sa.delete(SecondFactor).where(*mine, sa.or_(*foreign)))
    if not gate.factors_of(user):
        recovery_codes.delete(user)


def _enrol(by: Enrolling, factor: SecondFactor) -> Enrolled:
    user, challenge = by.user, by.challenge
    factor.confirmed_at = clock.now()
    factor.on_verified_address = user.email_verified
    if challenge is not None:
        challenges.use(challenge, user.account_id)
    db.db.session.flush()
    if challenge is not None and len(gate.factors_of(user)) > 1:  # another sign-in was faster
        raise _wrong()
    is_first = recovery_codes.count(user) == 0 and len(gate.factors_of(user)) == 1
    codes = recovery_codes.replace(user) if is_first else None
    if is_first:
        events.publish(events.FirstFactorAdded(user.account_id, user.id, by.session_id))
    _notify(user, "factor_added", factor.name)
    return Enrolled(factor, codes)


def _find(user: User, factor_id: str) -> SecondFactor:
    factor = db.db.session.get(SecondFactor, (user.account_id, factor_id.lower()))
    if factor is None or factor.user_id != user.id or factor.confirmed_at is None:
        raise NotFound("There is no such second factor.")
    return factor


def _unconfirmed(user: User) -> tuple[Any, ...]:
    return (
        SecondFactor.account_id == user.account_id,
        SecondFactor.user_id == user.id,
        SecondFactor.confirmed_at.is_(None),
    )


def _lock(user: User) -> None:
    # One change of a user's factors at a time; their order is that of all changes to users.
    accounts.bump_version(user)
    db.db.session.flush()


def _check_room(user: User) -> None:
    if len(gate.factors_of(user)) >= MAX_FACTORS:
        raise _too_many()


def _too_many() -> Conflict:
    return Conflict(f"You may have {MAX_FACTORS} second factors. Remove one first.")


def _wrong() -> Unauthorized:
    return Unauthorized("The code or passkey is not accepted.", error="invalid_code")


def _notify(user: User, what: str, factor: str = "") -> None:
    payload = {"user_id": user.id, "what": what, "factor": factor}
    jobs.enqueue("auth.tell_mfa_change", payload, account_id=user.account_id)


@jobs.job("auth.tell_mfa_change", mails=True)
def _mail_change(payload: Mapping[str, str]) -> None:
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if user is None or not user.email_verified:
        return
    details: JSONObject = {"account": user.account.name}
    details |= {"what": payload["what"], "factor": payload["factor"]}
    mails.send("mfa_changed", user.email, user.account_id, user=user, **details)
