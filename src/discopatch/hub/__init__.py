"""Detectors on the Hugging Face hub, hf://owner/name, and in folders with the same layout, hub:///path.

detector.safetensors    what `Detector.save` writes
detector.json, ...      or an export for ONNX or OpenVINO
README.md               the model card

Nothing else of a repository is read, and nothing is downloaded unless an hf:// address is given.
"""

from discopatch.hub.address import HubAddress, is_address
from discopatch.hub.card import write_card
from discopatch.hub.layout import Located, locate
from discopatch.hub.push import push

__all__ = ["HubAddress", "Located", "is_address", "locate", "push", "write_card"]
