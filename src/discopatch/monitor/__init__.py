"""An alarm when a stream of images as a whole has changed, whose rate of false alarms is guaranteed for all times."""

from discopatch.monitor.change import ChangePoint
from discopatch.monitor.monitor import Monitor, MonitorStatus
from discopatch.monitor.state import Telling

__all__ = ["ChangePoint", "Monitor", "MonitorStatus", "Telling"]
