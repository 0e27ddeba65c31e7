"""Networks of `transformers` from a local folder, without their classifiers. Nothing is downloaded."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from discopatch.encoders.network import Layers, NetworkInput, OutsideNetwork, as_map, check_network_digest, read_json
from discopatch.errors import WeightsError
from discopatch.schema import shorten
from discopatch.utils import file_digest, require

# Model types whose hidden states are maps or tokens of the image, without random masks.
CHECKPOINT_KINDS = (
    "beit",
    "bit",
    "clip_vision_model",
    "convnext",
    "convnextv2",
    "data2vec-vision",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_convnext",
    "dinov3_vit",
    "efficientnet",
    "focalnet",
    "ijepa",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilevit",
    "mobilevitv2",
    "poolformer",
    "pvt",
    "pvt_v2",
    "regnet",
    "resnet",
    "segformer",
    "siglip_vision_model",
    "swin",
    "swinv2",
    "vit",
    "vit_msn",
)
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
REFUSED = ("auto_map", "backbone", "backbone_config", "quantization_config")  # they load code or other weights
QUARTERS = (1, 2, 3)  # of a network of one resolution, after which statistics are taken


class CheckpointNetwork(OutsideNetwork):
    """A network of `transformers`, with statistics of early and middle hidden states.

    These are the last state of each resolution except the lowest, or, in a network of one resolution, the states after
    a quarter, a half and three quarters of the blocks. Tokens that belong to no patch are left out. Pooled features are
    the last state, averaged over the image.
    """

    def __init__(self, name: str, folder: Path, digest: str) -> None:
        self._input = NetworkInput.read(folder / PREPROCESSOR)
        if self._input.side is None:
            raise WeightsError(f"{folder / PREPROCESSOR} has no size: use the file that belongs to the weights")
        super().__init__(name, digest, side=self._input.side, any_side=True)
        self._model = load_model(folder)
        self._chosen: tuple[int, ...] = ()

    def layers(self, x: Tensor) -> Layers:
        output = self._model(pixel_values=self._input.normalise(x), output_hidden_states=True, return_dict=True)
        states = output.hidden_states
        if not self._chosen:
            self._chosen = chosen_states([tuple(state.shape) for state in states], side=x.shape[-1])
            self.any_side = all(states[number].ndim == 4 for number in self._chosen)
        return Layers(
            [as_map(states[number]) for number in self._chosen], as_map(output.last_hidden_state).mean(dim=(2, 3))
        )

    def on_device(self, device: torch.device) -> Self:
        if next(self._model.parameters()).device == device:
            return self
        found = deepcopy(self)
        found._model = found._model.to(device)
        return found


def chosen_states(shapes: Sequence[tuple[int, ...]], *, side: int) -> tuple[int, ...]:
    """The numbers of the hidden states, (B, C, H, W) or (B, N, C), with statistics; never the last."""
    resolution = [shape[-1] if len(shape) == 4 else shape[1] for shape in shapes]
    inner = [number for number, shape in enumerate(shapes) if not (len(shape) == 4 and shape[-1] == side)]
    last = {resolution[number]: number for number in inner}
    if len(last) > 1:
        return tuple(sorted(last.values()))[:-1]
    blocks = inner[1:] or inner  # the first is the embedding
    return tuple(sorted({blocks[max(len(blocks) * quarter // 4, 1) - 1] for quarter in QUARTERS}))


def load_checkpoint(kind: str, name: str, folder: Path, *, digest: str | None = None) -> CheckpointNetwork:
    """The network in a folder that `save_pretrained` wrote: config, safetensors, preprocessor_config.

    A given digest is compared before anything else is read.
    """
    if not folder.is_dir():
        raise WeightsError(f"no folder at {folder}: {kind}=FOLDER is one with {CONFIG}, {PREPROCESSOR} and {WEIGHTS}")
    files = weight_files(folder)
    found = folder_digest(folder, files)
    check_network_digest(name, digest, found)
    check_config(kind, folder)
    return CheckpointNetwork(name, folder, found).check()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the network, all in the folder itself."""
    if (folder / WEIGHTS).is_file():
        files = [folder / WEIGHTS]
    elif (folder / INDEX).is_file():
        parts = read_json(folder / INDEX).get("weight_map")
        names = set(parts.values()) if isinstance(parts, dict) else set()
        files = sorted(folder / str(name) for name in names)
        if not files or any(path.parent != folder or not path.is_file() for path in files):
            raise WeightsError(f"{folder / INDEX} names files that are not in its folder: copy the whole folder again")
    else:
        raise WeightsError(f"no {WEIGHTS} in {folder}: weights are read from safetensors only, save them so")
    return files


def folder_digest(folder: Path, files: Iterable[Path]) -> str:
    """16 hex digits of everything that features depend on: config, preprocessing and weights."""
    total = hashlib.sha256()
    for path in (folder / CONFIG, folder / PREPROCESSOR, *files):
        if not path.is_file():
            raise WeightsError(f"no {path.name} in {folder}: copy it from where the weights came from")
        total.update(f"{path.name} {file_digest(path)}\n".encode())
    return total.hexdigest()[:16]


def check_config(kind: str, folder: Path) -> None:
    """Raises WeightsError unless the config is of that kind, without code or weights from elsewhere."""
    config = read_json(folder / CONFIG)
    if (found := config.get("model_type")) != kind:
        remedy = f"give it as {found}=FOLDER" if found in CHECKPOINT_KINDS else f"take a folder with a {kind}"
        raise WeightsError(f"{folder} holds a model of type {shorten.repr(found)}, not {kind}: {remedy}")
    if named := [field for field in REFUSED if config.get(field)]:
        raise WeightsError(f"{folder / CONFIG} has {named[0]}, which is not read: take a plain {kind}, in float32")
    if (folder / "adapter_config.json").exists():
        raise WeightsError(f"{folder} has an adapter, which is not read: merge it, and save the network as a whole")


def load_model(folder: Path, loader: str = "AutoModel") -> Any:
    """The model in the folder, with every weight from its safetensors; the pooler may be missing, as it is not used."""
    require("transformers", "transformers")
    transformers = import_module("transformers")
    with quiet(transformers.utils.logging):
        try:
            model, loading = getattr(transformers, loader).from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                attn_implementation="eager",  # other kernels named in the config would be downloaded
            )
        except Exception as error:  # anything that transformers raises for a damaged folder
            raise WeightsError(f"{folder} cannot be loaded: use one with {WEIGHTS} ({error})") from error
    if missing := sorted(key for key in loading["missing_keys"] if not key.startswith("pooler")):
        raise WeightsError(f"the weights in {folder} lack {missing[0]} and {len(missing) - 1} more: use all of them")
    return model.float().eval().requires_grad_(False)


@contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Without the progress bar and the warnings about missing weights, which are checked here."""
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
