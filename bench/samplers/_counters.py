"""Counters of a kernel or a driver, as rates between readings and as what was added since the first one."""

from bench.sampling import Readings

RESET = "the counter went back: it was reset"


class Counters:
    """Remembers counters between readings. A counter that goes back was reset: what it counted is not known."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self._reasons = reasons
        self._last: dict[tuple[str, str], tuple[float, float]] = {}
        self._seen: dict[tuple[str, str], tuple[float, float] | None] = {}

    def rate(self, values: Readings, key: tuple[str, str], count: float, now_s: float) -> None:
        """Put what was added a second since the last reading; nothing at the first one."""
        before = self._last.get(key)
        self._last[key] = (now_s, count)
        if before is None or now_s <= before[0]:
            return
        values[key] = (count - before[1]) / (now_s - before[0]) if count >= before[1] else None
        if count < before[1]:
            self._reasons.setdefault("/".join(key), RESET)

    def added(self, values: Readings, key: tuple[str, str], count: float | None) -> None:
        """Put what was added since the first reading; null where there is no count, and for good after a reset."""
        values[key] = None
        if count is None:
            return
        seen = self._seen.get(key, (count, count))
        if seen is None or count < seen[1]:
            self._seen[key] = None
            self._reasons.setdefault("/".join(key), RESET)
        else:
            self._seen[key] = (seen[0], count)
            values[key] = count - seen[0]
