"""The error of a user's input: the command line prints it as one sentence and exits with status 2."""


class UsageError(Exception):
    """Something the user gave cannot be used; the message is one sentence that says what to change."""
