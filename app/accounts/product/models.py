"""The brand of an account and its texts of mails, where it may have them."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base
from app.db.policy import Audited, Bundled, Noun, TablePolicy
from app.db.types import Id, Json, Text, UtcDateTime, created_at_default
from app.ids import new_id
from app.types import JSONObject
from app.web.languages import lazy_gettext


class AccountBrand(Base):
    """The name, logo, colour and links of an account's own; absent until it sets any."""

    __tablename__ = "account_brands"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.UniqueConstraint("account_id"),
    )
    __policy__ = TablePolicy(
        audit=Audited(digested=("logo",)),
        bundle=Bundled(order=230),
        noun=Noun(
            lazy_gettext("Brand"),
            lazy_gettext("Brands"),
            named_by="name",
            order=195,
            page="console.show_brand",
        ),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    name: Mapped[str | None] = mapped_column(Text)
    logo: Mapped[str | None] = mapped_column(Text)
    accent_color: Mapped[str | None] = mapped_column(Text)
    links: Mapped[JSONObject] = mapped_column(Json, default=dict)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=created_at_default, onupdate=clock.now
    )


class MailTemplate(Base):
    """An account's own text of a kind of mails in a language."""

    __tablename__ = "mail_templates"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.UniqueConstraint("account_id", "kind", "language"),
    )
    __policy__ = TablePolicy(
        audit=Audited(),
        bundle=Bundled(order=240),
        noun=Noun(
            lazy_gettext("Text of a mail"),
            lazy_gettext("Texts of mails"),
            named_by="kind",
            order=196,
            list_page="console.show_mail_templates",
        ),
        sample={"kind": "invitation", "language": "en", "reply_to": "{mark}@mail.example"},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(Text)
    language: Mapped[str] = mapped_column(Text)
    subject_line: Mapped[str] = mapped_column(Text)
    body_text: Mapped[str | None] = mapped_column(Text)
    body_html: Mapped[str | None] = mapped_column(Text)
    reply_to: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=created_at_default, onupdate=clock.now
    )
