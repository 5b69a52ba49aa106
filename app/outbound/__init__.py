"""Requests and mails to others: targets checked, time and bytes bounded."""
