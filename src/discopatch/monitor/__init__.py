"""An alarm when a stream of images as a whole has changed, with a guaranteed rate of false alarms."""

from discopatch.monitor.change import ChangePoint
from discopatch.monitor.monitor import ExampleImage, Monitor, MonitorStatus

__all__ = ["ChangePoint", "ExampleImage", "Monitor", "MonitorStatus"]
