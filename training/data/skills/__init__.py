"""Importing this package registers every skill."""

from . import arithmetic, chat, code, dates, dialogue, facts, lists, reading, stories, text, think

__all__ = ["arithmetic", "chat", "code", "dates", "dialogue", "facts", "lists", "reading",
           "stories", "text", "think"]
