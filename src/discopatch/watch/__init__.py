"""Watching a folder: images are scored as they arrive, once each, and alarms are sent to a webhook or a command."""

from discopatch.watch.arrivals import Arrival, Arrivals
from discopatch.watch.notify import Command, Delivery, Webhook
from discopatch.watch.watcher import Watcher, check_places, default_database, resume_monitor

__all__ = [
    "Arrival",
    "Arrivals",
    "Command",
    "Delivery",
    "Watcher",
    "Webhook",
    "check_places",
    "default_database",
    "resume_monitor",
]
