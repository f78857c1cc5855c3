"""The grammar of answers, for decodes in which every answer is an action."""

from __future__ import annotations

from ..errors import UserError
from .action import every_action
from .answer import DELIMITER

GRAMMARS = ("none", "action")
REASON_TOKENS = 32  # of a reason, so that the action comes soon where the reason comes first

_CLAUSES = {
    "action first": 'start: action (" " reason)?',
    "reason first": 'start: reason " " action',
}


def answer_grammar(name: str, order: str) -> str:
    """The text of this grammar, for ``SamplingPolicy``; empty for ``none``.

    ``action``: an answer is the clauses that ``read_answer`` reads, in the order that was asked
    for. A reason is printable ASCII, and may be left out where it comes last. Raises UserError.
    """
    if name not in GRAMMARS:
        raise UserError(f"the grammar {name!r} is unknown: use one of {', '.join(GRAMMARS)}")
    if name == "none":
        return ""
    if order not in _CLAUSES:
        raise UserError(f"the order {order!r} is unknown: use one of {', '.join(_CLAUSES)}")
    return "\n".join(
        (
            _CLAUSES[order],
            f'action: "action: " ACTION "{DELIMITER}"',
            f'reason: "reason: " text "{DELIMITER}"',
            f"ACTION: /{'|'.join(map(str, every_action()))}/",
            f"text[max_tokens={REASON_TOKENS}]: /[!-:<-~][ -:<-~]*/",
        )
    )
