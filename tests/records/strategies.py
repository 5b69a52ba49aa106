"""Values of every type of field, for laws about whatever is written."""

from datetime import UTC, date, datetime

from hypothesis import strategies as st

from app.rules import composed

TAGS = ["a", "=1", "'x", 'say "b"', ",", "é"]
SCHEMA = [
    {"name": "title", "type": "text", "required": True, "default": "none"},
    {"name": "note", "type": "text", "default": "a default"},
    {"name": "views", "type": "number"},
    {"name": "amount", "type": "decimal", "options": {"precision": 38, "scale": 6}},
    {"name": "done", "type": "boolean", "default": True},
    {"name": "at", "type": "datetime"},
    {"name": "day", "type": "date"},
    {"name": "mail", "type": "email"},
    {"name": "site", "type": "url"},
    {"name": "extra", "type": "json"},
    {"name": "state", "type": "select", "options": {"choices": ["a", "b"]}, "default": "b"},
    {"name": "tags", "type": "multi_select", "options": {"choices": TAGS}, "default": ["=1"]},
    {"name": "labels", "type": "text_list"},
    {"name": "parent", "type": "reference", "collection": "things"},
    {"name": "loud", "type": "computed", "expression": "upper(title)", "return_type": "text"},
]
DISARMED = {
    "": "'",
    "'": "''",
    "=1+1": "'=1+1",
    "+1": "'+1",
    "-1": "'-1",
    "@x": "'@x",
    "\tx": "'\tx",
    "\rx": "'\rx",
    "'=1": "''=1",
    "'quoted'": "'quoted'",
    "plain": "plain",
    "a=b": "a=b",
}
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
RISKY = st.sampled_from([*DISARMED, "'\n", "\r\n", '"', ",", " ", "'''-", "null", "NaN", "1e5"])
WHOLE = st.sampled_from([2**63 - 1, -(2**63), 0, -1])
NUMBERS = (
    WHOLE | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
AMOUNTS = st.decimals(-(10**31), 10**31, places=6).map(lambda exact: format(exact, "f"))
LABELS = (TEXTS | RISKY).map(composed).filter(str.strip)
INNER = st.recursive(
    st.none() | st.booleans() | TEXTS | WHOLE | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
RECORD = st.fixed_dictionaries(
    {
        "title": (TEXTS | RISKY).filter(bool),
        "note": st.none() | TEXTS | RISKY,
        "views": st.none() | NUMBERS,
        "amount": st.none() | AMOUNTS,
        "done": st.none() | st.booleans(),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
        "day": st.none() | st.dates().map(date.isoformat),
        "mail": st.sampled_from([None, "a@b.example", "+x@b.example"]),
        "site": st.sampled_from([None, "https://a.example/?q=%20,\"'".replace('"', "")]),
        "extra": st.none()
        | st.lists(INNER, max_size=3)
        | st.dictionaries(TEXTS, INNER, max_size=3),
        "state": st.sampled_from([None, "a", "b"]),
        "labels": st.none() | st.lists(LABELS, unique=True, max_size=5),
        "tags": st.none() | st.lists(st.sampled_from(TAGS), unique=True),
    }
)
