"""Settings and commands."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet
from flask import Flask

from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.auth import bootstrap
from app.config import Config, ConfigError
from app.db import db, sqlite_driver
from app.outbound import mail
from tests.builders import PASSWORD, Caller, make_account, make_user
from tests.parallel import at_once

SAFE = {
    "SERVICE_ENV": "production",
    "SERVICE_SECRET_KEY": "0123456789abcdefghijklmnopqrstuvwxyz",
    "SERVICE_ENCRYPTION_KEY": Fernet.generate_key().decode(),
    "SERVICE_BASE_URL": "https://api.example.com",
    "SERVICE_DATABASE_URL": "postgresql://somebody:dbpass@db.example/atrium",
}

KEPT = ["audit_checkpoint_key", "encryption_key", "secret_key"]


def read(folder: Path, **environ: str) -> Config:
    return Config.from_env({"SERVICE_INSTANCE_DIR": str(folder), **environ})


def told(folder: Path, **environ: str) -> list[str]:
    """The lines of the refusal."""
    with pytest.raises(ConfigError) as caught:
        read(folder, **environ)
    return str(caught.value).splitlines()


MALFORMED = {
    "SERVICE_ENV": ["prod", "Production", "development,test"],
    "SERVICE_DATABASE_URL": [
        "mysql://x/y",
        "atrium.db",
        "postgresql",
        "postgresql://a:b@h:notaport/x",
        "postgresql://a:b@h:99999/x",
        "postgresql://a:b@[::1/x",
        "postgresql://a:b@h/x?foo=bar",
        "sqlite://a/b/c.db",
        "sqlite:////a/c.db?timeout=x",
        "sqlite:////a/c.db?mode=ro",
        "sqlite:////a/c.db?foo=bar",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x?mode=memory&uri=true",
    ],
    "SERVICE_REDIS_URL": [
        "http://x",
        "redis",
        "redis://",
        "redis://host:port",
        "redis://h/name",
        "redis://h/0?foo=bar",
        "redis://h/0?socket_timeout=x",
        "redis://h/0?socket_timeout=nan",
        "redis://h/0?protocol=9",
        "redis://h/0?decode_responses=yes",
        "redis://h/0?db=-1",
        "unix:",
        "unix:///",
    ],
    "SERVICE_ENCRYPTION_KEY": ["x", "a" * 44, "x" * 43 + "=,short"],
    "SERVICE_AUDIT_LOGGING_ENABLED": ["maybe", "2"],
    "SERVICE_AUDIT_CHECKPOINT_KEY": ["x", "a" * 44, "ä" * 43],
    "SERVICE_AUDIT_CHECKPOINT_EMAIL": ["admin"],
    "SERVICE_BASE_URL": [
        "example.com",
        "ftp://example.com",
        "http://",
        "http:///path",
        "http://x:99999",
        "http://x:port",
        "https://x.example?y=1",
        "https://x.example/#y",
        "https://user:pass@x.example",
        "https://x .example",
        "https://x.example/atrium",
    ],
    "SERVICE_BASE_DOMAIN": [
        "https://example.com",
        "example.com/",
        ".example.com",
        "example.com.",
        "absurd value",
        "a@b",
        ",",
        "a..b",
        "a:80",
    ],
    "SERVICE_ACCESS_TOKEN_EXPIRE_MINUTES": ["0", "-1", "1.5", "an hour", "1441", "\u0661", "1e2"],
    "SERVICE_REFRESH_TOKEN_EXPIRE_DAYS": ["0", "366", "7 days"],
    "SERVICE_PASSWORD_MIN_LENGTH": ["7", "129", "twelve"],
    "SERVICE_CORS_ORIGINS": ["*", "https://*.example.com", "https://example.com/", "example.com"],
    "SERVICE_PASSWORD_REQUIRE": ["upper,lowercase", "all"],
    "SERVICE_SUPERADMIN_EMAIL": ["admin", "a@b", "a@b@c", "a@b.example\nBcc: x"],
    "SERVICE_SINGLE_TENANT_ACCOUNT": ["system", "AB1234", "ab1234", "ab", "a b", "1st", "x" * 33],
    "SERVICE_SINGLE_TENANT_ACCOUNT_NAME": ["two\nlines", "x" * 201],
    "SERVICE_METRICS_TOKEN": ["sécret-of-the-metrics", "of two words", "of two\nlines"],
    "SERVICE_RATE_LIMIT": [
        "600",
        "0/minute",
        "on",
        "600/week",
        "600 per minute",
        "-1/hour",
        "1.5/day",
    ],
    "SERVICE_BACKUP_TARGET": ["backups", "./backups", "s3://", "s3://b?x=1", "http://b/backups"],
    "SERVICE_BACKUP_INTERVAL_HOURS": ["0", "721", "daily"],
    "SERVICE_BACKUP_DAILY": ["-1", "3661"],
    "SERVICE_BACKUP_WEEKLY": ["-1", "531"],
    "SERVICE_DNS_SERVERS": [
        *("dns.example", "9.9.9.9:0", "9.9.9.9:x", "9.9.9.9/24", "2620:fe::fe"),
        *("https://9.9.9.9", "a@9.9.9.9", "9.9.9.9,dns.example", "9.9.9.9:70000"),
    ],
    "SERVICE_MAIL_URL": [
        "mail.example",
        "smtp://",
        "smtp:mail.example",
        "http://mail.example",
        "smtp://mail.example:port",
        "smtp://mail.example?starttls=yes",
        "smtp://mail.example?tls=1",
        "smtp://mail..example",
        f"smtp://{'x' * 64}.example",
        "smtp://user:p%C3%A4ss@mail.example",
    ],
    "SERVICE_MAIL_FROM": [
        "Atrium",
        "Atrium <>",
        "a@b.example\nBcc: x",
        "Atrium <a@b@c>",
        "a@b.example, c@d.example",
    ],
    "SERVICE_MAX_BODY_BYTES": ["10MB", "1023", "9999999999999"],
    "SERVICE_TRUSTED_PROXIES": ["-1", "11", "yes", "\u0661", "9" * 5000],
    "SERVICE_SECRET_KEY": ["x" * 40 + "\udcff"],
    "SERVICE_SUPERADMIN_PASSWORD": [f"{PASSWORD}\udcff"],
}


@pytest.mark.parametrize(
    ("variable", "value"),
    [(variable, value) for variable, values in MALFORMED.items() for value in values],
)
def test_setting_that_is_malformed_is_named(tmp_path: Path, variable: str, value: str) -> None:
    pair = {"SERVICE_SUPERADMIN_PASSWORD": PASSWORD} if "SUPERADMIN" in variable else {}
    lines = told(tmp_path, **{**pair, variable: value})
    assert any(variable in line for line in lines)
    assert all(variable in line or "go together" in line for line in lines)
    assert not any("str_digits" in line for line in lines)


def test_settings_that_are_malformed_are_named_at_once(tmp_path: Path) -> None:
    text = "\n".join(told(tmp_path, **{name: values[0] for name, values in MALFORMED.items()}))
    assert [name for name in MALFORMED if name not in text] == []
    assert list(tmp_path.iterdir()) == [], "a refused start leaves no keys behind"


@pytest.mark.parametrize(("slug", "why"), [("system", "superadmins"), ("AB1234", "32 characters")])
def test_single_tenant_account_setting_refuses_system_account(
    tmp_path: Path, slug: str, why: str
) -> None:
    (line,) = told(tmp_path, SERVICE_SINGLE_TENANT_ACCOUNT=slug)
    assert line.startswith("SERVICE_SINGLE_TENANT_ACCOUNT must be the slug of an account.")
    assert why in line


def test_settings_malformed_and_unsafe_are_named_together(tmp_path: Path) -> None:
    environ = {**SAFE, "SERVICE_SECRET_KEY": "short", "SERVICE_TRUSTED_PROXIES": "x"}
    text = "\n".join(told(tmp_path, **environ))
    assert "SERVICE_SECRET_KEY" in text
    assert "SERVICE_TRUSTED_PROXIES" in text


@pytest.mark.parametrize("alone", ["SERVICE_SUPERADMIN_EMAIL", "SERVICE_SUPERADMIN_PASSWORD"])
def test_superadmin_settings_must_be_set_together(tmp_path: Path, alone: str) -> None:
    assert "go together" in told(tmp_path, **{alone: "root@system.example"})[0]


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("DATABASE_URL", "postgres://u@h/d", "postgresql+psycopg2://u@h/d"),
        ("SERVICE_DATABASE_URL", "postgresql://u@h/d", "postgresql+psycopg2://u@h/d"),
        ("DATABASE_URL", "sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
        ("REDIS_URL", "redis://h:6379/0", "redis://h:6379/0"),
        ("SERVICE_REDIS_URL", "unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("REDIS_URL", *["rediss://:p@[::1]:1/3?ssl_cert_reqs=none"] * 2),
        ("DATABASE_URL", *["postgresql+psycopg2://u:p%40@[::1]:1/d?sslmode=require"] * 2),
        ("SERVICE_BASE_URL", "https://x.example/", "https://x.example"),
        ("SERVICE_DNS_SERVERS", "9.9.9.9, [2620:fe::fe]:53", ("9.9.9.9", "[2620:fe::fe]:53")),
        ("SERVICE_BASE_DOMAIN", "Example.COM", "example.com"),
        ("SERVICE_PASSWORD_REQUIRE", " upper , digit ", ("upper", "digit")),
        ("SERVICE_SECRET_KEY_PREVIOUS", "a,b", ("a", "b")),
        ("SERVICE_MAIL_URL", "smtp://u:p@h:2525?starttls=1", "smtp://u:p@h:2525?starttls=1"),
        ("SERVICE_MAIL_FROM", "Ätrium <a@b.example>", "Ätrium <a@b.example>"),
        ("SERVICE_SINGLE_TENANT_ACCOUNT", "my-company", "my-company"),
        ("SERVICE_RATE_LIMIT", "600/minute", "600/minute"),
        ("SERVICE_RATE_LIMIT", "off", "off"),
        ("SERVICE_TRUSTED_PROXIES", " 2 ", 2),
        ("SERVICE_TRUSTED_PROXIES", "", 0),
    ],
)
def test_setting_is_parsed_from_environment(
    tmp_path: Path, name: str, given: str, value: Any
) -> None:
    field = name.removeprefix("SERVICE_").lower()
    assert getattr(read(tmp_path, **{name: given}), field) == value


def test_setting_with_prefix_wins_unless_empty(tmp_path: Path) -> None:
    both = {"DATABASE_URL": "sqlite:///other", "SERVICE_DATABASE_URL": "sqlite:///own"}
    assert read(tmp_path, **both).database_url == "sqlite:///own"
    both["SERVICE_DATABASE_URL"] = ""
    assert read(tmp_path, **both).database_url == "sqlite:///other"


def test_settings_defaults_work_in_development(tmp_path: Path) -> None:
    settings = read(tmp_path)
    assert settings.env == "development"
    assert settings.database_url == f"sqlite:///{tmp_path}/atrium.db"
    assert (settings.access_token_expire_minutes, settings.refresh_token_expire_days) == (60, 7)
    assert (settings.password_min_length, settings.mail_url) == (12, "console:")
    assert settings.base_url == "http://127.0.0.1:8000"


@pytest.mark.parametrize("name", ["what?", "100%25", "a#b", "ü ñ"])
def test_instance_folder_with_special_characters(tmp_path: Path, name: str) -> None:
    url = sa.make_url(read(tmp_path / name).database_url)
    assert (url.database, dict(url.query)) == (f"{tmp_path}/{name}/atrium.db", {})


def test_generated_keys_are_kept_with_mode_600(tmp_path: Path) -> None:
    first, second = read(tmp_path), read(tmp_path)
    assert (first.secret_key, first.encryption_key) == (second.secret_key, second.encryption_key)
    assert len(first.secret_key) >= 48
    assert sorted(path.name for path in tmp_path.iterdir()) == KEPT
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert read(tmp_path / "another").secret_key != first.secret_key


def test_instance_folder_that_is_not_writable_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    (line,) = told(file)
    assert line == f"SERVICE_INSTANCE_DIR must be a writable folder ({file}: File exists)"
    (line,) = told(file / "below")
    assert "Not a directory" in line


@pytest.mark.parametrize(
    ("name", "held"),
    [
        *((name, held) for name in KEPT for held in (b"", b"\n", b"\xff\xfe")),
        ("encryption_key", b"cut off"),
        ("audit_checkpoint_key", b"cut off"),
    ],
)
def test_key_file_that_is_damaged_is_refused(tmp_path: Path, name: str, held: bytes) -> None:
    read(tmp_path)
    (tmp_path / name).write_bytes(held)
    (line,) = told(tmp_path)
    assert line.startswith(f"{tmp_path}/{name} holds no valid key. ")
    (tmp_path / name).unlink()
    assert read(tmp_path) == read(tmp_path)


def test_generated_keys_of_concurrent_starts_agree(tmp_path: Path) -> None:
    settings = at_once(16, lambda _: read(tmp_path))
    assert len({(one.secret_key, one.encryption_key) for one in settings}) == 1
    assert len(list(tmp_path.iterdir())) == 3


def test_production_settings_that_are_safe_generate_no_keys(tmp_path: Path) -> None:
    assert read(tmp_path, **SAFE).production
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"SERVICE_SECRET_KEY": ""}, "SERVICE_SECRET_KEY"),
        ({"SERVICE_SECRET_KEY": "short"}, "SERVICE_SECRET_KEY"),
        ({"SERVICE_SECRET_KEY": "x" * 64}, "SERVICE_SECRET_KEY"),
        ({"SERVICE_SECRET_KEY": "changeme" * 8}, "SERVICE_SECRET_KEY"),
        ({"SERVICE_SECRET_KEY_PREVIOUS": "short,short"}, "SERVICE_SECRET_KEY"),
        ({"SERVICE_ENCRYPTION_KEY": ""}, "SERVICE_ENCRYPTION_KEY"),
        ({"SERVICE_BASE_URL": "http://api.example.com"}, "SERVICE_BASE_URL"),
        ({"SERVICE_BASE_URL": ""}, "SERVICE_BASE_URL"),
    ],
)
def test_production_settings_that_are_unsafe_are_refused(
    tmp_path: Path, changes: dict[str, str], named: str
) -> None:
    (line,) = told(tmp_path, **{**SAFE, **changes})
    assert named in line


def test_database_and_mail_files_are_private(tmp_path: Path, app: Flask) -> None:
    with closing(sqlite_driver.Driver(str(tmp_path / "atrium.db"))) as made:
        made.execute("CREATE TABLE it (is_there)")
        beside = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert beside == {0o600}
    folder = tmp_path / "instance"
    settings = replace(app.extensions["atrium.config"], instance_dir=folder)
    with pytest.MonkeyPatch.context() as patch, app.test_request_context():
        patch.setitem(app.extensions, "atrium.config", settings)
        mail.send("ann@acme.example", "verify_email", link="https://atrium.test/x")
    (written,) = folder.glob("outbox/*.eml")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, written.parent, written)]
    assert modes == [0o700, 0o700, 0o600]


def test_settings_errors_quote_no_secret(tmp_path: Path) -> None:
    environ = {
        **SAFE,
        "SERVICE_SECRET_KEY": "tooshort-secret",
        "SERVICE_ENCRYPTION_KEY": "notfernet-secret",
        "SERVICE_MAIL_URL": "smpt://user:mail-secret@h",
        "SERVICE_DATABASE_URL": "mysql://user:db-secret@h/d",
        "SERVICE_REDIS_URL": "reddis://:redis-secret@h",
    }
    lines = told(tmp_path, **environ)
    assert len(lines) == 5
    assert "secret" not in "\n".join(lines)
    for address in ("smtp://user:secret℀@h", "smtp://user:sec[ret@h"):
        assert "sec" not in "".join(told(tmp_path, SERVICE_MAIL_URL=address))


def test_setting_that_is_unknown_is_refused_with_suggestion(tmp_path: Path) -> None:
    (line,) = told(tmp_path, **SAFE, SERVICE_BASE_ULR="https://x.example", SERVICE_OTHER=" ")
    assert line == "SERVICE_BASE_ULR is not a setting. Did you mean SERVICE_BASE_URL?"
    (line,) = told(tmp_path, **SAFE, SERVICE_="x")
    assert line.startswith("SERVICE_ is not a setting.")


def superadmins(app: Flask) -> list[User]:
    with app.app_context():
        mine = sa.select(User).where(User.account_id == SYSTEM_ACCOUNT_ID).order_by(User.id)
        return list(db.session.scalars(mine))


def with_settings(app: Flask, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    settings = replace(app.extensions["atrium.config"], **changes)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)


def run(app: Flask, *command: str, **options: Any) -> Any:
    return app.test_cli_runner().invoke(args=command, **options)


def login(app: Flask, email: str, password: str) -> Any:
    body = {"account": "system", "email": email, "password": password}
    return Caller(app).post("auth/login", body)


def test_settings_command_lists_all_and_hides_secrets(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Config.from_env(
        {
            **SAFE,
            "SERVICE_SECRET_KEY_PREVIOUS": "previous-0123456789-abcdefghijklmnop",
            "SERVICE_REDIS_URL": "redis://:redispass@r.example",
            "SERVICE_MAIL_URL": "smtp://u:mailpass@m.example",
            "SERVICE_SUPERADMIN_EMAIL": "root@system.example",
            "SERVICE_SUPERADMIN_PASSWORD": PASSWORD,
        }
    )
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    done = run(app, "settings")
    assert done.exit_code == 0
    lines = {line.split()[0]: line for line in done.output.splitlines()}
    assert set(lines) == {row[0] for row in settings.listing()}
    assert "https://api.example.com" in lines["SERVICE_BASE_URL"]
    secrets = (
        settings.secret_key,
        *settings.secret_key_previous,
        *settings.encryption_key,
        "dbpass",
        "redispass",
        "mailpass",
        PASSWORD,
    )
    assert not any(secret in done.output for secret in secrets)
    assert "(set)" in lines["SERVICE_SECRET_KEY"]


def test_setup_command_creates_superadmin_once(app: Flask) -> None:
    first = run(app, "setup")
    assert first.exit_code == 0
    shown = dict(line.split()[:2] for line in first.output.splitlines() if len(line.split()) == 2)
    assert shown["account"] == "system"
    assert login(app, shown["email"], shown["password"]).status_code == 200
    saved = app.extensions["atrium.config"].instance_dir / bootstrap.CREDENTIALS
    assert shown["password"] in saved.read_text()
    assert os.path.relpath(saved) in first.output
    assert saved.stat().st_mode & 0o777 == 0o600
    second = run(app, "setup")
    assert second.exit_code == 0
    assert "password" not in second.output
    assert shown["password"] not in second.output
    assert len(superadmins(app)) == 1
    assert "/console" in second.output
    assert "/docs" in second.output


def test_setup_command_in_production_creates_no_superadmin(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_settings(app, monkeypatch, env="production")
    done = run(app, "setup")
    assert done.exit_code == 0
    assert "password" not in done.output
    assert "sign-in-link" not in done.output
    assert superadmins(app) == []


def test_superadmin_setting_with_weak_password_in_production_is_refused(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = {"superadmin_email": "root@system.example", "superadmin_password": "weak"}
    with_settings(app, monkeypatch, env="production", **weak)
    refused = pytest.raises(ConfigError, match="SERVICE_SUPERADMIN_PASSWORD is too weak")
    with app.app_context(), refused:
        bootstrap.create_from_settings()
    assert superadmins(app) == []


def test_superadmin_of_settings_is_created_at_start(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_settings(
        app, monkeypatch, superadmin_email="root@system.example", superadmin_password=PASSWORD
    )

    def start(_: int) -> None:
        with app.app_context():
            bootstrap.create_from_settings()

    at_once(4, start)
    (made,) = superadmins(app)
    assert (made.email, made.email_verified, made.is_active) == ("root@system.example", True, True)
    assert PASSWORD not in str(made.password_hash)
    done = run(app, "setup")
    assert PASSWORD not in done.output
    assert login(app, "root@system.example", PASSWORD).json["user"]["role"] == "admin"


def test_superadmin_settings_change_no_existing_superadmin(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_user(app, SYSTEM_ACCOUNT_ID, "old@system.example", "admin")
    with_settings(
        app, monkeypatch, superadmin_email="old@system.example", superadmin_password="Another-1-x"
    )
    with app.app_context():
        bootstrap.create_from_settings()
    (only,) = superadmins(app)
    assert login(app, only.email, PASSWORD).status_code == 200


def test_superadmin_of_settings_is_created_by_migration(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_settings(
        app, monkeypatch, superadmin_email="root@system.example", superadmin_password=PASSWORD
    )
    assert run(app, "db", "current").exit_code == 0
    assert superadmins(app) == []
    assert run(app, "db", "upgrade").exit_code == 0
    assert [one.email for one in superadmins(app)] == ["root@system.example"]


def test_start_without_superadmin_settings_creates_nobody(app: Flask) -> None:
    with app.app_context():
        bootstrap.create_from_settings()
    assert superadmins(app) == []


@pytest.mark.parametrize(("option", "groups"), [([], []), (["--pii-access"], ["pii_access"])])
def test_create_superadmin_command_creates_another(
    app: Flask, option: list[str], groups: list[str]
) -> None:
    make_user(app, SYSTEM_ACCOUNT_ID, "root@system.example", "admin")
    command = ["create-superadmin", "two@system.example", "--password", PASSWORD, *option]
    done = run(app, *command)
    assert (done.exit_code, PASSWORD in done.output) == (0, False)
    user = login(app, "two@system.example", PASSWORD).json["user"]
    assert (user["role"], user["groups"], user["account_code"]) == ("admin", groups, "SY0000")


def test_create_superadmin_command_prompts_for_password(app: Flask) -> None:
    done = run(app, "create-superadmin", "a@system.example", input=f"{PASSWORD}\n{PASSWORD}\n")
    assert (done.exit_code, PASSWORD in done.output) == (0, False)
    assert login(app, "a@system.example", PASSWORD).status_code == 200


@pytest.mark.parametrize(
    ("email", "password", "sentence"),
    [
        ("nobody", PASSWORD, "email address"),
        ("a@system.example", "Short-1", "at least 12 characters"),
        ("a@system.example", "correct-horse-1", "upper-case"),
        ("ROOT@system.example", PASSWORD, "taken"),
    ],
)
def test_create_superadmin_command_with_invalid_values_fails(
    app: Flask, email: str, password: str, sentence: str
) -> None:
    make_user(app, SYSTEM_ACCOUNT_ID, "root@system.example", "admin")
    done = run(app, "create-superadmin", email, "--password", password)
    assert done.exit_code == 1
    assert sentence in done.output
    assert "Traceback" not in done.output
    assert len(superadmins(app)) == 1


def test_superadmins_are_members_of_system_account_only(app: Flask) -> None:
    make_user(app, make_account(app, "acme"), "root@system.example", "admin")
    with app.app_context():
        assert bootstrap.create_for_development() is not None
