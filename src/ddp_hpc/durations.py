"""Seconds in words, the same everywhere."""


def duration(seconds: float) -> str:
    """Return e.g. `8 s`, `2 min 45 s`, `3 h 10 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
