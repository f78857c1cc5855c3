"""Requests that get no answer, in the API's form."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A request that gets no answer: HTTP status, text, and the field and code for programs.

    retry_s: seconds after which it may be sent again; 0: unknown.
    """

    def __init__(
        self, text: str, param: str = "", status: int = 400, code: str = "", retry_s: float = 0.0
    ) -> None:
        super().__init__(text)
        self.param, self.status, self.code, self.retry_s = param, status, code, retry_s

    @property
    def body(self) -> dict[str, Any]:
        """The error in the API's form."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        about = {"type": kind, "param": self.param or None, "code": self.code or None}
        return {"error": {"message": str(self), **about}}


class Unserved(ApiError):
    """A request that split decoding does not answer, and another server may."""
