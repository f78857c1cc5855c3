"""Errors that a user can correct, and how a command ends with one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

CANNOT_START = 2  # exit status of a program that a UserError ends; another start would not help


class UserError(Exception):
    """Something that the user gave cannot be used; the text names it and says what to do.

    The command line prints it as one line and exits with 2; a node logs it and continues.
    """


def exit_status(run: Callable[[], int]) -> int:
    """The exit status of a command: a UserError is one sentence on stderr and 2."""
    try:
        return run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return CANNOT_START
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
