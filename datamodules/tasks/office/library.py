"""The nine functions a Python program may call. They are given to the sandbox as source and run nowhere else."""

SOURCE = """
from datetime import date, timedelta


def _text(value):
    if type(value) is not str:
        raise TypeError("needs a text")
    return value


def _number(value):
    if type(value) is not int:
        raise TypeError("needs a whole number")
    return value


def _part(text, first, last):
    if not 1 <= _number(first) <= _number(last) <= len(_text(text)):
        raise ValueError("outside the text")
    return text[first - 1 : last]


def strip_hyphens(text):
    return _text(text).replace("-", "")


def reverse(text):
    return _text(text)[::-1]


def take_prefix(text, n):
    return _part(text, 1, n)


def take_suffix(text, n):
    return _part(text, len(_text(text)) - _number(n) + 1, len(text))


def slice1(text, first, last):
    return _part(text, first, last)


def add(a, b):
    return _number(a) + _number(b)


def mul(a, b):
    return _number(a) * _number(b)


def lookup(table, key):
    if type(table) is not dict:
        raise TypeError("needs a table")
    return table[key]


def date_add(day, days=0, weeks=0):
    return (date.fromisoformat(_text(day)) + timedelta(days=_number(days) + 7 * _number(weeks))).isoformat()
"""

FUNCTIONS: dict[str, str] = {
    "strip_hyphens(text)": "the text without its hyphens",
    "reverse(text)": "the text backwards",
    "take_prefix(text, n)": "the first n characters",
    "take_suffix(text, n)": "the last n characters",
    "slice1(text, a, b)": "characters a to b, counted from 1, both included",
    "add(a, b)": "the sum of two numbers",
    "mul(a, b)": "the product of two numbers",
    "lookup(table, key)": "the value of a key of a dict",
    "date_add(iso, days=n)": "the date n days later",
    "date_add(iso, weeks=n)": "the date n weeks later",
}
"""How each function is called and what it returns, for the list in a prompt."""
