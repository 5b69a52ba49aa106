#!/usr/bin/env python3
"""Verify a certificate of deletion: Python 3.9 or newer, and verify_audit.py beside it.

    python3 verify_deletion.py CERTIFICATE [--key PUBLIC_KEY]

CERTIFICATE is what `atrium account certificate` printed. PUBLIC_KEY is the key of the instance, if
you have it from elsewhere: without it you learn only that nothing was changed since it was signed.
The exit status is 1 where anything is wrong.
"""

import argparse
import json
import sys

import verify_audit


def fault(certificate, key=None):
    """What is wrong with a certificate, or None."""
    if certificate.get("purpose") != "deletion":
        return "this is no certificate of deletion"
    if key is not None and certificate.get("public_key") != key:
        return "it is signed with another key"
    names = [name for name in certificate if name not in ("public_key", "signature")]
    if not verify_audit.signed(certificate, names):
        return "its signature is invalid"
    checkpoint = certificate["checkpoint"]
    if checkpoint and not verify_audit.signed(checkpoint):
        return "the signature of its checkpoint is invalid"
    if checkpoint and checkpoint["account_id"] != certificate["account_id"]:
        return "its checkpoint is of another account"
    return None


def main(arguments=None):
    """The command."""
    parser = argparse.ArgumentParser(description="Verify a certificate of deletion.")
    parser.add_argument("certificate")
    parser.add_argument("--key")
    options = parser.parse_args(arguments)
    with open(options.certificate, encoding="utf-8") as file:
        certificate = json.load(file)
    wrong = fault(certificate, options.key)
    if wrong:
        print(f"INVALID: {wrong}")
        return 1
    print(f"valid: account {certificate['account_id']}, deleted by {certificate['verified_at']}")
    for table, count in sorted(certificate["counts"].items()):
        if count:
            print(f"  {table} {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
