"""Network interfaces from /proc/net/dev and InfiniBand ports from /sys: bytes a second, errors, drops.

RDMA passes by the kernel: what NCCL sends over InfiniBand or RoCE is in the port's counters only.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.samplers._counters import Counters
from bench.samplers._files import Files
from bench.sampling import Readings, Sampler, Watch

WORD_BYTES = 4  # the unit of a port's data counters (InfiniBand specification, PortCounters)
FULL = 2**32 - 1  # where a counter of 32 bits stops


class NetworkReader:
    """Reads every interface that ever carried anything, and every port."""

    def __init__(self, watch: Watch, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self.reasons: dict[str, str] = {}
        self._counters = Counters(self.reasons)
        self._proc, self._sys = Files(proc), Files(sys)
        self._ports = [_port(path.relative_to(sys), path) for path in _port_folders(sys)]

    def read(self, now_s: float) -> Readings:
        """All measures at once. Rates appear from the second reading on."""
        values: Readings = {}
        self._try(values, ("network", "rx_bytes_per_s"), self._interfaces, now_s)
        for subject, folder, data in self._ports:
            for way, name in (("rx", "rcv"), ("tx", "xmit")):
                self._try(values, (subject, f"{way}_bytes_per_s"), self._data, data.format(name), now_s)
            for measure, name in (("errors", "port_rcv_errors"), ("drops", "port_xmit_discards")):
                self._try(values, (subject, measure), self._events, f"{folder}/counters/{name}")
        return values

    def _try(self, values: Readings, key: tuple[str, str], source: Callable[..., None], *where: Any) -> None:
        try:
            source(values, key, *where)
        except (OSError, ValueError, IndexError) as error:
            values[key] = None
            self.reasons.setdefault("/".join(key), f"{type(error).__name__}: {error}")

    def _interfaces(self, values: Readings, _key: tuple[str, str], now_s: float) -> None:
        for line in self._proc.whole_text("net/dev").splitlines()[2:]:
            name, _, fields = line.partition(b":")
            subject, counts = name.strip().decode(), [int(field) for field in fields.split()]
            received, errors_in, drops_in, sent, errors_out, drops_out = (
                counts[i] for i in (0, 2, 3, 8, 10, 11)
            )
            if received + sent:
                self._counters.rate(values, (subject, "rx_bytes_per_s"), received, now_s)
                self._counters.rate(values, (subject, "tx_bytes_per_s"), sent, now_s)
                self._counters.added(values, (subject, "errors"), errors_in + errors_out)
                self._counters.added(values, (subject, "drops"), drops_in + drops_out)

    def _data(self, values: Readings, key: tuple[str, str], name: str, now_s: float) -> None:
        words = self._count(name)
        if words == FULL and not name.endswith("_64"):
            raise ValueError("the counter is full: it has 32 bits")
        self._counters.rate(values, key, WORD_BYTES * words, now_s)

    def _events(self, values: Readings, key: tuple[str, str], name: str) -> None:
        self._counters.added(values, key, self._count(name))

    def _count(self, name: str) -> int:
        return int(self._sys.text(name))


def _port_folders(sys: Path) -> list[Path]:
    return sorted(sys.glob("class/infiniband/*/ports/*"))


def _port(name: Path, path: Path) -> tuple[str, str, str]:
    """Subject, folder below /sys, and the pattern of its data counters: those of 64 bits where there are two."""
    wide = (path / "counters_ext/port_rcv_data_64").exists()
    data = f"{name}/counters_ext/port_{{}}_data_64" if wide else f"{name}/counters/port_{{}}_data"
    return f"{path.parent.parent.name} port {path.name}", str(name), data


PLUGIN = Sampler(
    summary="Network interfaces and InfiniBand ports: bytes a second, errors, drops", open=NetworkReader
)
