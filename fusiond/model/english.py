"""Words for people."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 kernel`, `2 kernels`, `0 kernels`; `2 processes` where the plural is given."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


LONGEST_LINE = 600
_END = 120


def shown(text: str) -> str:
    """A text as one line that does to a terminal or a log nothing but show it: control characters (line breaks, too),
    bidirectional and other invisible ones, and halves of characters are written as escapes, as `repr` does."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shortened(text: str, most: int = LONGEST_LINE) -> str:
    """A line cut to about `most` characters: its beginning and its end are kept, and how much is missing is said."""
    if len(text) <= most:
        return text
    missing = len(text) - most
    return f"{text[: most - _END]} ... ({missing:,} more characters) ... {text[-_END:]}"
