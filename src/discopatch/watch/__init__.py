"""Watching a folder: images are scored as they arrive, once each, and alarms are sent to a webhook or a command."""
