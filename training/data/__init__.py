"""Generated chat data with checkable answers."""
