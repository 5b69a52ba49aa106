"""The security log: sign-ins, credentials and reads of personal data, in a chain per account."""
