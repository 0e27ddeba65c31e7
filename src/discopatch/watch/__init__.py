"""Watching a folder or a stream: images are scored as they arrive, and alarms are sent to other programs."""
