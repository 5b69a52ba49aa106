"""Second factors: authenticator apps (TOTP), passkeys and recovery codes (contract section 18)."""
