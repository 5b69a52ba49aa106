"""Uploaded files: where their bytes are, whose they are, and when they go.

The row in `files` is the truth. The bytes are written before the commit that names them, and
removed by a job after the commit that lets go of them; a sweep removes what a crash left over.
"""
