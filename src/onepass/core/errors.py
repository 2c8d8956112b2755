"""The two kinds of failure: the user's model or call is wrong, or onepass is.

A `UserError` reads as four short lines: what happened, where in the user's model, why, and
what to do. An `InternalError` names the compiler step that failed.
"""

from __future__ import annotations


class OnepassError(Exception):
    """Base of every error that onepass raises on purpose."""


class UserError(OnepassError):
    """Something outside onepass must change; says what, where, why, and the remedy."""

    def __init__(self, what: str, *, where: str = "", why: str = "", remedy: str = "") -> None:
        self.what, self.where, self.why, self.remedy = what, where, why, remedy
        rows = (("", what), ("where: ", where), ("why: ", why), ("remedy: ", remedy))
        super().__init__("\n".join(label + text for label, text in rows if text))


class ModelError(UserError):
    """The model file cannot be imported (malformed, unsupported, unsafe)."""


class ShapeError(UserError):
    """A shape or dtype does not match what the model declares."""


class OptionError(UserError):
    """A command-line or API option has a value that makes no sense."""


class InternalError(OnepassError):
    """A compiler step broke an invariant: a bug in onepass, not in the user's model."""

    def __init__(self, step: str, detail: str) -> None:
        self.step, self.detail = step, detail
        super().__init__(f"internal error in step '{step}': {detail}")
