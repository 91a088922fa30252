"""Seconds in words, the same everywhere."""


def duration(seconds: float) -> str:
    """Return e.g. `8 s`, `2 min 45 s`, `3 h 10 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def rank_time(seconds: float) -> str:
    """Return seconds times ranks, what an allocation is charged for, e.g. `6.6 rank-minutes`, `1.9 rank-hours`."""
    if seconds < 60:
        return f"{seconds:.0f} rank-seconds"
    return f"{seconds / 60:.1f} rank-minutes" if seconds < 3600 else f"{seconds / 3600:,.1f} rank-hours"
