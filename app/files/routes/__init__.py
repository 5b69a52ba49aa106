"""Uploads and downloads of files, and the records that come with them."""
