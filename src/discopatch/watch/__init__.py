"""Folders that are watched: images are scored as they arrive, once each, and alarms are told."""

from discopatch.watch.arrivals import Arrival, Arrivals, Stamp
from discopatch.watch.notify import Command, Delivery, Receiver, Webhook
from discopatch.watch.parts import PartWriter
from discopatch.watch.places import check_places, default_database, resume_monitor
from discopatch.watch.watcher import Watcher, WatchOptions

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
    "check_places",
    "default_database",
    "resume_monitor",
]
