"""Figures of this server's processes for `/metrics`, summed over them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from app import config, web


class ProcessesCollector(Collector):
    """The figures of prometheus-client's ProcessCollector, which knows one process only."""

    def collect(self) -> Iterator[Metric]:
        """Yield the sums over all processes, and their number."""
        processes = [_figures(pid) for pid in _pids()]
        found = [figures for figures in processes if figures]
        yield GaugeMetricFamily("atrium_processes", "Processes of this server.", value=len(found))
        for name, total in (found[0] if found else {}).items():
            values = [figures[name].samples[0].value for figures in found if name in figures]
            # The start of the server is that of its first process, and each has its own limit.
            is_sum = not name.startswith(("process_start_time", "process_max_fds"))
            sample = total.samples[0]
            total.samples = [sample._replace(value=sum(values) if is_sum else min(values))]
            yield total


class BuildCollector(Collector):
    """The running version."""

    def collect(self) -> Iterable[Metric]:
        """Yield a gauge that is 1, with the versions as labels."""
        labels = {"version": web.VERSION, "python": platform.python_version()}
        build = GaugeMetricFamily("atrium_build_info", "Running version.", labels=list(labels))
        build.add_metric(list(labels.values()), 1)
        return [build]


def _figures(pid: int) -> dict[str, Metric]:
    collector = ProcessCollector(pid=lambda: pid, registry=None)
    return {metric.name: metric for metric in collector.collect()}


def _pids() -> set[int]:
    """The processes that have counted something, and this one; some may have ended."""
    folder = config.metrics_folder()
    names = (file.stem.rpartition("_")[2] for file in Path(folder).glob("*.db")) if folder else ()
    return {os.getpid(), *(int(name) for name in names if name.isdecimal())}
