"""Settings that no run can train with on this machine, told before PyTorch is imported, which takes seconds."""

from __future__ import annotations

from importlib.metadata import version

from attentune.config import Config
from attentune.errors import ConfigError
from attentune.models.encoder_list import check_at_hand, check_length


def check_feasible(config: Config) -> None:
    """Check precision and encoder, as far as PyTorch and the encoder's weights are not needed for it.

    Raises:
        ConfigError: fp16 on a CPU.
        UnsupportedEncoderError: the encoder is missing, or does not accept texts of `data.max_length` tokens.
    """
    training, data = config.training, config.data
    if training.precision == "fp16" and (training.use_cpu or version("torch").endswith("+cpu")):
        reason = "--use_cpu is given" if training.use_cpu else "the installed PyTorch is built for CPUs only"
        raise ConfigError(f"training.precision: fp16 needs a GPU, but {reason}; expected auto, bf16 or fp32.")
    if config.baseline is None:
        check_at_hand(config.model.name_or_path)
        if data.long_texts == "cut" and data.max_length is not None:
            check_length(config.model.name_or_path, data.max_length)
