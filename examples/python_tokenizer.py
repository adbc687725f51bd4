"""Splits text into tokens, and asks the application what each is worth."""

import re

import snakepit_bridge


def tokens(text):
    for found in re.finditer(r"\w+|[^\w\s]", text):
        token = found.group()
        yield {"token": token, "worth": snakepit_bridge.call("worth", token)}
