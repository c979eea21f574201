"""Text from files and addresses, made safe to show: without control codes, and without passwords."""

import re

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control codes of terminals, characters that change the order of the text, and halves of characters."""
_USER = re.compile(
    r"(://(?=[^\s/'\"]+@)|:/(?=[^\s/'\"]+:[^\s/'\"]*@))[^\s/'\"]+@"
    # A password with a slash or a quote, as keys of S3 have them; digits after the colon are a port.
    r"|(:/{1,2})[^\s/:'\"@]*:(?!\d*(?:[/\s?#'\"]|$))\S*@"
)
"""The user of a URL; also of one that lost a slash as a path."""
_SECRET = re.compile(
    r"([?&;][\w-]*(?:pass|passphrase|password|passwd|pwd|secret|token|sig|signature|key|credential|auth)=)[^&;\s'\"]+",
    re.IGNORECASE,
)


def printable(text: str) -> str:
    r"""Return the text with escapes, such as `\x1b`, in place of control codes. Line breaks and tabs are kept."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def without_passwords(text: str) -> str:
    """Return the text without the user names, passwords and tokens of the URLs in it."""
    return _SECRET.sub(r"\1***", _USER.sub(lambda found: f"{found[1] or found[2]}***@", text))
