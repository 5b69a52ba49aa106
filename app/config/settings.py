"""Settings: read once from the environment into one frozen object."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa
from flask import Flask
from flask.globals import _cv_app

from app.config import dev_keys, parsing

PROJECT = Path(__file__).resolve().parent.parent.parent
SHORTEST_TOKEN = 16
OF_EXTENSIONS = "SERVICE_X_"
SHORTEST_SECRET = 32


class ConfigError(Exception):
    """Raised with one line per invalid setting."""


def _setting(parse: Callable[[str], object], default: object, help: str, **options: object) -> Any:
    return field(metadata={"parse": parse, "default": default, "help": help, **options})


@dataclass(frozen=True)
class Config:
    """Every setting; `SERVICE_` and the upper-case name is its environment variable."""

    env: str = _setting(
        parsing.choice("development", "test", "production"),
        "development",
        "production requires strong secrets",
    )
    log_format: str = _setting(
        parsing.choice("auto", "json", "text"), "auto", "auto: text in development, else JSON"
    )
    instance_dir: Path = _setting(  # noqa: RUF009 - metadata, not a default
        Path,
        PROJECT / "instance",
        "folder of the default SQLite database, and of keys and mails in development",
    )
    # How many connections a process has: `app/db/pool.py`.
    database_url: str = _setting(
        parsing.database, "", "default: SQLite in the instance folder", unprefixed=True, secret=True
    )
    database_replica_url: str = _setting(
        parsing.postgres,
        "",
        "a replica of PostgreSQL, for reads whose caller accepts its lag",
        secret=True,
    )
    redis_url: str = _setting(
        parsing.redis,
        "",
        "default: none; the embedded worker runs jobs",
        unprefixed=True,
        secret=True,
    )
    secret_key: str = _setting(str, "", "signs tokens; generated once in development", secret=True)
    secret_key_previous: tuple[str, ...] = _setting(
        parsing.comma_separated(), (), "older keys that still verify, comma-separated", secret=True
    )
    encryption_key: tuple[str, ...] = _setting(
        parsing.comma_separated(), (), "Fernet keys for stored secrets, newest first", secret=True
    )
    base_url: str = _setting(
        parsing.root_url, "http://127.0.0.1:8000", "the public URL of this service"
    )
    base_domain: str = _setting(
        parsing.host, "", "selects the account by host name: <slug>.<this domain>"
    )
    access_token_expire_minutes: int = _setting(
        parsing.integer(1, 1440), 60, "access token lifetime"
    )
    refresh_token_expire_days: int = _setting(parsing.integer(1, 365), 7, "refresh token lifetime")
    session_max_days: int = _setting(
        parsing.integer(1, 3650), 30, "days until a session ends and the user must sign in again"
    )
    single_tenant: bool = _setting(
        parsing.boolean, False, "serve one account only; requests need not name it"
    )
    single_tenant_account: str = _setting(
        parsing.account_slug, "default", "the slug of the one account"
    )
    single_tenant_account_name: str = _setting(
        parsing.single_line, "Default", "the name of the one account"
    )
    registration: str = _setting(
        parsing.choice("open", "invite", "off"),
        "open",
        "who may register: anyone, invited users, nobody",
    )
    cors_origins: tuple[str, ...] = _setting(parsing.origins, (), "origins of browser applications")
    login_rate_limit: str = _setting(
        parsing.choice("on", "off"), "on", "lock-out after failed sign-ins"
    )
    login_tries: int = _setting(
        parsing.integer(1, 10_000), 10, "failed sign-ins per user and address, in 15 min"
    )
    login_tries_per_address: int = _setting(
        parsing.integer(1, 10_000), 50, "failed sign-ins per address, in 15 min"
    )
    login_tries_per_user: int = _setting(
        parsing.integer(1, 10_000), 100, "failed sign-ins per user, in 15 min"
    )
    mail_tries: int = _setting(
        parsing.integer(1, 10_000), 10, "requested mails per account and mailbox, in 1 hour"
    )
    mail_tries_per_mailbox: int = _setting(
        parsing.integer(1, 10_000),
        50,
        "the same per mailbox over all accounts, except password resets",
    )
    mail_tries_per_address: int = _setting(
        parsing.integer(1, 100_000), 500, "registrations and requested mails per address, in 1 hour"
    )
    mails_per_account: int = _setting(
        parsing.integer(0, 1_000_000),
        500,
        "invitations and other mails to unverified addresses, per account and day",
    )
    mails_per_new_account: int = _setting(
        parsing.integer(0, 1_000_000), 50, "the same in the first week of an account"
    )
    sign_in_starts_per_address: int = _setting(
        parsing.integer(1, 100_000), 200, "single sign-ons started per address, in 15 min"
    )
    rate_limit: str = _setting(
        parsing.rate, "off", "requests per user or key, or per address if anonymous"
    )
    quotas: tuple[tuple[str, int], ...] = _setting(
        parsing.quotas, (), "hard limits of accounts without their own, such as requests=100000"
    )
    dns_servers: tuple[str, ...] = _setting(
        parsing.dns_servers, (), "DNS servers that prove domains; default: the system's"
    )
    password_min_length: int = _setting(parsing.integer(8, 128), 12, "minimum password length")
    password_require: tuple[str, ...] = _setting(
        parsing.comma_separated("upper", "lower", "digit", "special"),
        ("upper", "lower", "digit", "special"),
        "character classes required in passwords",
    )
    superadmin_email: str = _setting(
        parsing.email, "", "e-mail of the first superadmin, created if none exists"
    )
    superadmin_password: str = _setting(str, "", "the first superadmin's password", secret=True)
    mail_url: str = _setting(
        parsing.mail_url,
        "console:",
        "console: writes .eml files; smtp://user:pass@host:port?starttls=1; smtps://",
        secret=True,
    )
    mail_from: str = _setting(parsing.sender, "Atrium <atrium@localhost>", "sender of mails")
    mail_spf: tuple[str, ...] = _setting(
        parsing.spf_mechanisms,
        (),
        "terms of SPF records that name this service as a sender, such as include:spf.example.com",
    )
    mail_dkim: str = _setting(
        parsing.dkim_record, "", "its DKIM record, such as s1._domainkey.example.com"
    )
    abuse_email: str = _setting(
        parsing.email,
        "",
        "where recipients report abuse; default: the address of SERVICE_MAIL_FROM",
    )
    audit_logging_enabled: bool = _setting(parsing.boolean, True, "record changes in the audit log")
    feed_retention_days: int = _setting(
        parsing.integer(1, 36500), 30, "days that changes stay in the change feed without auditing"
    )
    event_retention_days: int = _setting(
        parsing.integer(1, 36500), 30, "days that events of all accounts are kept for the operator"
    )
    audit_retention_min_days: int = _setting(
        parsing.integer(1, 36500), 365, "fewest days that an account may keep its audit log"
    )
    security_retention_min_days: int = _setting(
        parsing.integer(1, 36500), 365, "fewest days that an account may keep its security log"
    )
    row_security_enabled: bool = _setting(
        parsing.boolean, True, "row-level security: PostgreSQL isolates accounts, too"
    )
    audit_checkpoint_key: tuple[str, ...] = _setting(
        parsing.comma_separated(), (), "keys that sign audit checkpoints, newest first", secret=True
    )
    audit_checkpoint_email: str = _setting(parsing.email, "", "recipient of audit checkpoints")
    webhooks_per_account: int = _setting(parsing.integer(1, 1000), 20, "webhooks per account")
    webhook_timeout_seconds: int = _setting(
        parsing.integer(1, 120), 30, "timeout of one delivery attempt"
    )
    webhook_log_bytes: int = _setting(
        parsing.integer(1024, 2**40),
        2**30,
        "bytes of stored delivery payloads per account",
    )
    webhook_retry_delays: tuple[int, ...] = _setting(
        parsing.seconds, (60, 300, 1800, 7200, 43200), "seconds before each retry, comma-separated"
    )
    webhook_allow_private: bool | None = _setting(
        parsing.boolean,
        None,
        "allow webhooks to private addresses; default: not in production",
    )
    workflows_per_account: int = _setting(
        parsing.integer(1, 1000), 50, "workflows per account, and as many hooks"
    )
    workflow_concurrency: int = _setting(
        parsing.integer(1, 1000), 20, "workflow instances per account that run at once"
    )
    workflow_lease_seconds: int = _setting(
        parsing.integer(1, 600),
        20,
        "seconds until another worker takes over the steps of a lost one",
    )
    workflow_retention_days: int = _setting(
        parsing.integer(1, 3650), 30, "days until finished workflow instances are deleted"
    )
    workflow_pending_max: int = _setting(
        parsing.integer(1, 1_000_000), 10_000, "pending workflow instances per account"
    )
    workflow_waiting_max: int = _setting(
        parsing.integer(1, 1_000_000),
        50_000,
        "waiting workflow instances per account; no more start beyond it",
    )
    workflow_mail_recipients: str = _setting(
        parsing.choice("members", "fields", "anyone"),
        "members",
        "recipients of workflow mails: verified members of the account, also address fields of"
        " records, or anyone",
    )
    workflow_mails_per_day: int = _setting(
        parsing.integer(0, 1_000_000), 500, "workflow mails per account and day"
    )
    workflow_mails_per_mailbox: int = _setting(
        parsing.integer(0, 10_000), 30, "workflow mails per mailbox, in 1 hour"
    )
    max_body_bytes: int = _setting(parsing.integer(1024, 2**30), 10 * 2**20, "largest request body")
    max_anonymous_body_bytes: int = _setting(
        parsing.integer(1024, 2**30), 2**18, "largest body of anonymous requests for records"
    )
    files_url: str = _setting(
        parsing.bucket,
        "",
        "s3://bucket/prefix?region=&endpoint=; default: a folder in the instance folder",
        secret=True,
    )
    files_redirect: bool = _setting(
        parsing.boolean, False, "let nginx or the S3 service send the bytes of files"
    )
    file_max_bytes: int = _setting(parsing.integer(1024, 2**40), 100 * 2**20, "largest file")
    file_history_days: int = _setting(
        parsing.integer(1, 36500), 30, "days that files of changed and deleted records are kept"
    )
    backup_target: str = _setting(
        parsing.backup_target,
        "",
        "folder of scheduled backups, or s3://bucket/prefix?region=&endpoint=; default: none",
        secret=True,
    )
    backup_interval_hours: int = _setting(
        parsing.integer(1, 720), 24, "hours between scheduled backups"
    )
    backup_daily: int = _setting(
        parsing.integer(0, 3660), 7, "days of which the newest scheduled backup is kept"
    )
    backup_weekly: int = _setting(
        parsing.integer(0, 530), 4, "weeks of which the newest scheduled backup is kept"
    )
    batch_max: int = _setting(parsing.integer(1, 10_000), 1000, "records in one batch")
    import_max_rows: int = _setting(
        parsing.integer(1, 1_000_000), 50_000, "records in one imported file"
    )
    statement_seconds: int = _setting(
        parsing.integer(1, 3600),
        10,
        "how long a statement of a request may run; on SQLite also how long one may write",
    )
    otel_exporter_otlp_endpoint: str = _setting(
        parsing.base_url,
        "",
        "collector of traces, by OTLP over HTTP, such as http://127.0.0.1:4318",
        unprefixed=True,
    )
    metrics_token: str = _setting(
        parsing.token, "", "Bearer token for /metrics, which is off without one", secret=True
    )
    worker_metrics_url: str = _setting(
        parsing.url("http"), "", "address of /metrics in a worker, such as http://127.0.0.1:9101"
    )
    extensions: tuple[str, ...] = _setting(
        parsing.extensions, (), "extensions to load, comma-separated"
    )
    trusted_proxies: int = _setting(
        parsing.integer(0, 10), 0, "reverse proxies in front of the service"
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Read and validate all settings. Raises ConfigError with every invalid one."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        problems: list[str] = []
        for name, meta in _settings():
            variable, text = _lookup(environ, name, meta)
            try:
                values[name] = meta["parse"](parsing.utf8(text)) if text else meta["default"]
            except ValueError as error:
                problems.append(f"{variable} {error}")
                values[name] = meta["default"]
        config = cls(**values)
        problems += [*_unknown(environ), *_unsafe(config)]
        if problems:
            raise ConfigError("\n".join(dict.fromkeys(problems)))
        return _with_local_defaults(config)

    @property
    def production(self) -> bool:
        """Whether this is production, which requires secure settings."""
        return self.env == "production"

    @property
    def logs_as_text(self) -> bool:
        """Whether log lines are text for people instead of JSON."""
        if self.log_format == "auto":
            return self.env == "development"
        return self.log_format == "text"

    @property
    def private_targets(self) -> bool:
        """Whether outgoing requests may reach private addresses."""
        allowed = self.webhook_allow_private
        return not self.production if allowed is None else allowed

    def listing(self) -> list[tuple[str, str, str]]:
        """Return (variable, value without secrets, help) of every setting."""
        rows = []
        for name, meta in _settings():
            value = getattr(self, name)
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            if meta.get("secret"):
                text = "(set)" if value else ""
            rows.append((f"SERVICE_{name.upper()}", text, meta["help"]))
        return rows


def metrics_folder() -> str | None:
    """Return the folder in which processes share metrics; None if there is only one."""
    return os.environ.get("PROMETHEUS_MULTIPROC_DIR")


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment for a child process."""
    return {**os.environ, **more}


@contextmanager
def with_extension_settings(values: Mapping[str, str]) -> Iterator[None]:
    """Add those of these variables that are settings of extensions to the environment, in tests."""
    before = dict(os.environ)
    os.environ.update({n: text for n, text in values.items() if n.startswith(OF_EXTENSIONS)})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def names_extensions() -> bool:
    """Whether the environment names extensions to load."""
    return bool(os.environ.get("SERVICE_EXTENSIONS", "").strip())


def of_extensions() -> Mapping[str, str]:
    """Return the settings of extensions that the environment has, by variable."""
    found = {name: text.strip() for name, text in os.environ.items()}
    return {name: text for name, text in found.items() if text and name.startswith(OF_EXTENSIONS)}


def is_under_process_manager() -> bool:
    """Whether honcho or foreman started this process beside others of the Procfile."""
    names = ("HONCHO_PROCESS_NAME", "PS")
    return "DYNO" not in os.environ and any(name in os.environ for name in names)


def current() -> Config:
    """Return the running application's settings."""
    config: Config = context().app.extensions["atrium.config"]
    return config


# Without Flask's proxies, which cost more than the lookup (see app/web/app.py).
context = _cv_app.get
"""Returns the current app context; raises LookupError outside of one."""


def running() -> Flask:
    """Return `flask.current_app` without its proxy."""
    return context().app


def _settings() -> list[tuple[str, Mapping[str, Any]]]:
    return [(f.name, f.metadata) for f in fields(Config)]


def _lookup(environ: Mapping[str, str], name: str, meta: Mapping[str, object]) -> tuple[str, str]:
    variable = f"SERVICE_{name.upper()}"
    if not environ.get(variable) and meta.get("unprefixed"):
        variable = name.upper()
    return variable, environ.get(variable, "").strip()


def _unknown(environ: Mapping[str, str]) -> Iterator[str]:
    """Variables that look like settings, such as misspelt ones: ignored, they would mislead."""
    known = [f"SERVICE_{name.upper()}" for name, _ in _settings()]
    # Those of extensions are known once these are loaded (app/extensions/settings.py).
    others = OF_EXTENSIONS if environ.get("SERVICE_EXTENSIONS", "").strip() else "\0"
    for variable in sorted(environ):
        is_set = variable.startswith("SERVICE_") and environ[variable].strip()
        if is_set and variable not in known and not variable.startswith(others):
            near = difflib.get_close_matches(variable, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            yield f"{variable} is not a setting.{hint}"


def _with_local_defaults(config: Config) -> Config:
    folder = config.instance_dir
    changes: dict[str, Any] = {}
    if not config.database_url:
        _make_folder(folder)
        own = sa.URL.create("sqlite", database=str(folder.resolve() / "atrium.db"))
        changes["database_url"] = own.render_as_string()
    if not config.production:
        try:
            changes |= _dev_keys(config, folder)
        except OSError as error:
            raise _not_writable(error) from error
        except dev_keys.InvalidKeyFile as error:
            raise ConfigError(str(error)) from error
    return replace(config, **changes)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(error) from error


def _not_writable(error: OSError) -> ConfigError:
    reason = f"{error.filename}: {error.strerror}"
    return ConfigError(f"SERVICE_INSTANCE_DIR must be a writable folder ({reason})")


def _dev_keys(config: Config, folder: Path) -> dict[str, object]:
    keys: dict[str, object] = {}
    if not config.secret_key:
        keys["secret_key"] = dev_keys.load_or_create(
            folder / "secret_key", dev_keys.random_secret, bool
        )
    for name, is_key in (
        ("encryption_key", parsing.is_32_bytes),
        ("audit_checkpoint_key", parsing.is_32_bytes),
    ):
        if not getattr(config, name):
            keys[name] = (dev_keys.load_or_create(folder / name, dev_keys.fernet_key, is_key),)
    return keys


def _unsafe(config: Config) -> list[str]:
    problems = []
    if not all(map(parsing.is_32_bytes, config.encryption_key)):
        problems.append("SERVICE_ENCRYPTION_KEY must list Fernet keys (32 bytes in base64)")
    if not all(map(parsing.is_32_bytes, config.audit_checkpoint_key)):
        problems.append("SERVICE_AUDIT_CHECKPOINT_KEY must list keys of 32 bytes in base64")
    if bool(config.superadmin_email) != bool(config.superadmin_password):
        problems.append("SERVICE_SUPERADMIN_EMAIL and SERVICE_SUPERADMIN_PASSWORD go together")
    if config.database_replica_url and not config.database_url.startswith("postgresql"):
        problems.append("SERVICE_DATABASE_REPLICA_URL needs PostgreSQL as SERVICE_DATABASE_URL")
    return problems + (_unfit_for_production(config) if config.production else [])


def _unfit_for_production(config: Config) -> list[str]:
    problems = []
    if not all(map(_is_strong, (config.secret_key, *config.secret_key_previous))):
        problems.append(
            f"SERVICE_SECRET_KEY and its predecessors need {SHORTEST_SECRET} or more"
            " random characters each in production"
        )
    if config.metrics_token and len(config.metrics_token) < SHORTEST_TOKEN:
        problems.append(
            f"SERVICE_METRICS_TOKEN needs {SHORTEST_TOKEN} or more characters in production"
        )
    if not config.encryption_key:
        problems.append("SERVICE_ENCRYPTION_KEY is required in production")
    if urlsplit(config.base_url).scheme != "https":
        problems.append("SERVICE_BASE_URL must be an https:// address in production")
    return problems


def _is_strong(secret: str) -> bool:
    return len(secret) >= SHORTEST_SECRET and len(set(secret)) >= 10
