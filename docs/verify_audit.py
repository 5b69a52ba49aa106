#!/usr/bin/env python3
"""Verify an export of Atrium's audit log: one file, Python 3.9 or newer, nothing else needed.

    python3 verify_audit.py EXPORT [--checkpoints FILE] [--key PUBLIC_KEY] [--account ID]

EXPORT is what `GET /api/v1/audit-logs/export` gave (.jsonl, .json or .csv), filtered by account at
most: by ID, if FILE tells of more. It holds checkpoints, one in each line, signed by a given key.
Of a log that was cut, FILE or a .json export has the signed start, which needs --key.
docs/audit.md says in words what is done here. The exit status is 1 where anything is wrong.
"""

import argparse
import csv
import hashlib
import json
import sys

ACTOR = ("user_email", "user_name", "ip_address", "user_agent", "es_username", "es_reason")
CHAINED = ("account_id", "actor_digest", "column_name", "es_timestamp", "extra_metadata", "user_id")
CHAINED += ("occurred_at", "operation", "record_id", "request_id", "table_name", "values_digest")
ACTOR, CHAINED = (*ACTOR, "actor_name"), (*CHAINED, "actor_id", "actor_kind", "digest_version")
COVERED = {1: (6, 12), 2: (7, 15)}  # by version: so many of ACTOR, and of CHAINED
SIGNED = ("account_id", "checksum", "created_at", "entry_id")


def h(data):
    """SHA-256 in lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def j(value):
    """Canonical JSON."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


class Chain:
    """The chain of one account, while its entries are read in order."""

    def __init__(self, account_id):
        self.account_id, self.last_id, self.last = account_id, 0, "0" * 64
        self.checked = self.masked = self.erased = 0
        self.fault, self.open, self.checkpoints = None, {}, {}

    def begin(self, start, key):
        """Begin after the signed start of a log that was cut."""
        self.last_id, self.last = start["entry_id"], start["checksum"]
        if not key or key != start["public_key"] or not signed(start):
            self.fault = "the signature of the start is wrong, or --key is missing"
        if self.checkpoints.get(self.last_id, self.last) != self.last:
            self.fault = "a checkpoint contradicts the start"
        self.checkpoints = {i: c for i, c in self.checkpoints.items() if i > self.last_id}

    def take(self, entry):
        """Check the next entry; after the first fault nothing more is looked at."""
        if self.fault:
            return
        try:
            actor, chained = COVERED[entry.get("digest_version") or 1]
            why = self._chained(entry, CHAINED[:chained]) or self._kept(entry, ACTOR[:actor])
        except (KeyError, TypeError, ValueError, AttributeError):
            why = "is no entry"
        self.fault = f"entry {entry.get('id')} {why}" if why else None
        if not why:
            self.last_id, self.last, self.checked = entry["id"], entry["checksum"], self.checked + 1

    def close(self):
        """What is still open at the end is a fault."""
        if self.open and not self.fault:
            self.fault = f"entry {min(self.open.values())} was emptied, and no erasure names it"
        if self.checkpoints and not self.fault:
            self.fault = f"entry {min(self.checkpoints)} of a checkpoint is missing"

    def _chained(self, e, names):
        link, found = f"{self.last}:{e['id']}:{e['entry_digest']}", e["checksum"]
        rules = (
            (type(e["id"]) is int and e["id"] > self.last_id, "is not above the one before"),
            (e["account_id"] == self.account_id, "is of another account"),
            (e["previous_hash"] == self.last, "does not follow the one before"),
            (e["entry_digest"] == h(j({name: e[name] for name in names})), "was changed"),
            (found == h(link.encode()), "has a wrong checksum"),
            (self.checkpoints.pop(e["id"], found) == found, "is not what a checkpoint tells"),
        )
        return next((why for holds, why in rules if not holds), None)

    def _kept(self, e, names):
        if e["operation"] == "UPDATE" and e["table_name"] == "audit_log":
            self.open.pop((e["column_name"], e["record_id"]), None)
        self.masked += e.get("masked") is True
        self.erased += e.get("masked") is not True and e["salt"] is None
        if e.get("masked") is not True and self._differs(e, "salt", ("old_value", "new_value")):
            return "has other values"
        named = {name: e.get("actor_" + name) for name in ("kind", "id", "name")}
        named = named if any(named.values()) else None
        wrong = (named and "actor_name" not in names) or e.get("actor", named) != named
        return "has another actor" if self._differs(e, "actor_salt", names) or wrong else None

    def _differs(self, e, salt, names):
        values = [e[name] for name in names]
        if e[salt] is None:
            self.open[salt, str(e["id"])] = e["id"]
            return any(value is not None for value in values)
        expected = e["values_digest" if salt == "salt" else "actor_digest"]
        return h(e[salt].encode() + b"\n" + j(values)) != expected


def uncell(name, cell):
    """What a cell of the CSV form stands for."""
    cell = cell[1:] if cell.startswith("'") else cell or None
    is_json = cell and name in ("id", "extra_metadata", "digest_version", "masked")
    return json.loads(cell) if is_json else cell


def read(path):
    """The entries of an export, or the checkpoints of a file."""
    with open(path, encoding="utf-8", newline="" if path.endswith(".csv") else "\n") as file:
        if path.endswith(".csv"):
            csv.field_size_limit(sys.maxsize)
            yield from ({n: uncell(n, cell) for n, cell in r.items()} for r in csv.DictReader(file))
        elif path.endswith(".json"):
            export = json.load(file)
            yield from (*export.get("starts", ()), *export["items"])
        else:
            yield from (json.loads(line) for line in file if line.strip())


P, Q = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493  # Ed25519: RFC 8032
D = -121665 * pow(121666, P - 2, P) % P


def _add(a, b):
    (x, y, z, t), (u, v, w, s) = a, b
    e, f, g, k = (y - x) * (v - u), (y + x) * (v + u), 2 * t * s * D, 2 * z * w
    p, q, r, m = f - e, k - g, k + g, f + e
    return (p * q % P, r * m % P, q * r % P, p * m % P)


def _times(n, point):
    rest = _times(n >> 1, _add(point, point)) if n else (0, 1, 1, 0)
    return _add(rest, point) if n & 1 else rest


def _point(data):
    sign, y = divmod(int.from_bytes(data, "little"), 2**255)
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if (x * x - square) % P == 0 else x * pow(2, (P - 1) // 4, P) % P
    if len(data) != 32 or y >= P or (x * x - square) % P or (x == 0 and sign):
        raise ValueError("no point of the curve")
    return (x, y, 1, x * y % P) if x & 1 == sign else (P - x, y, 1, -x * y % P)


def signed(checkpoint, names=SIGNED):
    """Whether a checkpoint bears the signature, of these values, of the key that it names."""
    try:
        key, signature = (bytes.fromhex(checkpoint[n]) for n in ("public_key", "signature"))
        a, r, s = _point(key), _point(signature[:32]), int.from_bytes(signature[32:], "little")
    except ValueError:
        return False
    names = (*SIGNED, "kind", "removed") if checkpoint.get("kind") == "start" else names
    text = signature[:32] + key + j({name: checkpoint[name] for name in names})
    k = int.from_bytes(hashlib.sha512(text).digest(), "little") % Q
    base = _point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
    left, right = _times(s, base), _add(r, _times(k, a))
    return s < Q and all((left[i] * right[2] - right[i] * left[2]) % P == 0 for i in (0, 1))


def verify(entries, checkpoints=(), key=None, account=None):
    """The chains by account, each with its fault, if any."""
    chains = {}
    starts = [c for c in checkpoints if c.get("kind") == "start"]
    for one in (c for c in checkpoints if c not in starts and account in (None, c["account_id"])):
        chain = chains.setdefault(one["account_id"], Chain(one["account_id"]))
        if not signed(one) or key not in (None, one["public_key"]):
            chain.fault = "the signature of a checkpoint is wrong"
        if chain.checkpoints.setdefault(one["entry_id"], one["checksum"]) != one["checksum"]:
            chain.fault = "checkpoints contradict each other"
    for entry in (e for p in (starts, entries) for e in p if account in (None, e["account_id"])):
        chain = chains.setdefault(entry["account_id"], Chain(entry["account_id"]))
        chain.begin(entry, key) if entry.get("kind") == "start" else chain.take(entry)
    for chain in chains.values():
        chain.close()
    return chains


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Verify an export of Atrium's audit log.")
    for name in ("export", "--checkpoints", "--key", "--account"):
        parser.add_argument(name)
    given = parser.parse_args()
    try:
        kept = list(read(given.checkpoints)) if given.checkpoints else ()
        chains = verify(read(given.export), kept, given.key, given.account)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit(f"no export, or no checkpoints: {error!r}")
    for chain in chains.values():
        print(f"{chain.account_id}: {chain.checked} checked, {chain.masked} masked,", end=" ")
        print(f"{chain.erased} erased;", chain.fault or f"valid up to entry {chain.last_id}")
    sys.exit(any(c.fault for c in chains.values()) or (given.account and not chains and "no entry"))
