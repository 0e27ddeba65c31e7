"""Folders that are watched: images are scored as they arrive, once each, and alarms are told."""

from discopatch.watch.arrivals import Arrival, Arrivals, Stamp
from discopatch.watch.notify import Command, Delivery, Receiver, Webhook
from discopatch.watch.parts import PartWriter
from discopatch.watch.watcher import Watcher, WatchOptions, only_watcher

__all__ = [
    "Arrival",
    "Arrivals",
    "Command",
    "Delivery",
    "PartWriter",
    "Receiver",
    "Stamp",
    "WatchOptions",
    "Watcher",
    "Webhook",
    "only_watcher",
]
