"""The HTTP service: detectors behind an API with a bounded queue, a monitor, a history, metrics and a page."""
