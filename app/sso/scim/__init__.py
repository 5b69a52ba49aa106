"""Provisioning of users and groups by an account's directory: SCIM 2.0 (RFC 7643, RFC 7644)."""
