"""Errors that a user can correct."""

from __future__ import annotations


class UserError(Exception):
    """Something that the user gave cannot be used; the text names it and says what to do.

    The command line prints it as one line and exits with 2; a node logs it and continues.
    """
