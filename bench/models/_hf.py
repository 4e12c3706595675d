"""transformers' model types as workloads: what each is trained for, on which samples, with which loss.

A type is trained for the first of these that it has a class for; its data are token ids or images.

- encoder and decoder: the decoder is given what the encoder is given, and predicts the next ids;
- masked language model: one position in seven is masked, and predicted;
- causal language model: every position predicts the next id;
- image classification.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.case import Case
from bench.errors import UsageError
from bench.models._library import check_known, library, name_of
from bench.options import option
from bench.plugins import clip
from bench.workload import Sample, Workload, classification_loss, token_loss

MASKED_EVERY = 7  # about the 15 % of BERT, and never none
IGNORED = -100
LONGEST = 512
COUNTS = (
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "vocab_size",
    "num_labels",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
)


class Logits(nn.Module):
    """A model of transformers as a function of one tensor, which DataParallel can scatter, to its logits."""

    def __init__(self, model: nn.Module, decodes: bool = False) -> None:
        super().__init__()
        self.model = model
        self.decodes = decodes

    def forward(self, inputs: Tensor) -> Tensor:
        given = {"decoder_input_ids": inputs} if self.decodes else {}
        logits: Tensor = self.model(inputs, **given).logits
        return logits


class MaskedLoss:
    """Cross entropy at the masked positions; `mask_id` stands in their place in the input."""

    def __init__(self, mask_id: int) -> None:
        self.mask_id = mask_id

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        ids, _ = batch
        masked = torch.arange(ids.shape[1], device=ids.device) % MASKED_EVERY == 0
        logits = model(ids.masked_fill(masked, self.mask_id))
        labels = ids.masked_fill(~masked, IGNORED)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def hf_workload(case: Case, options: Mapping[str, Any]) -> Workload:
    """The workload of `hf:TYPE`. Raises UsageError for what transformers does not have or cannot build."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = library(case, "transformers")
    config = _config(case, transformers, options)
    goal = _goal(case, config)
    if goal == "ImageClassification":
        return _image_workload(case, transformers, config, options)
    return _token_workload(case, transformers, config, options, goal)


def _config(case: Case, transformers: Any, options: Mapping[str, Any]) -> Any:
    """The default configuration of the type, with the case's fields in it."""
    check_known(case, "model type of transformers", transformers.CONFIG_MAPPING.keys())
    config = transformers.AutoConfig.for_model(name_of(case))
    fields = {key: value for key, value in case.model_args.items() if key not in options}
    image_size = option(case.model_args, options, "image_size")
    if image_size and hasattr(config, "image_size"):
        fields["image_size"] = image_size
    if not fields:
        return config
    allowed = [key for key, value in config.to_dict().items() if not isinstance(value, dict | list)]
    for field in fields:
        check_known(
            case,
            "option or field of its configuration",
            {*options, *allowed, *config.attribute_map, "num_labels"},
            field,
        )
    _check_counts(case, config, fields)
    return transformers.AutoConfig.for_model(name_of(case), **fields)


def _check_counts(case: Case, config: Any, fields: Mapping[str, Any]) -> None:
    """Raise UsageError for a count below 1 under any name: some types are built without a layer, and train nothing."""
    names = {config.attribute_map.get(name, name) for name in COUNTS} | set(COUNTS)
    for field in sorted(names & fields.keys()):
        value = fields[field]
        if isinstance(value, int) and value < 1:
            raise UsageError(f"model_args of {clip(case.model)!r}: {field} = {value}: needs at least 1")


def _goal(case: Case, config: Any) -> str:
    """The end of the name of the AutoModelFor class that the type is built with."""
    tables = library(case, "transformers.models.auto.modeling_auto")
    if config.is_encoder_decoder:
        tried = {"Seq2SeqLM": tables.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
    else:
        tried = {
            "MaskedLM": tables.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
            "CausalLM": tables.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            "ImageClassification": tables.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        }
    for goal, names in tried.items():
        if name_of(case) in names and (goal == "ImageClassification" or hasattr(config, "vocab_size")):
            return goal
    raise UsageError(
        f"model {clip(case.model)!r}: transformers trains it for neither language modelling nor image classification"
        " alone: write a factory, docs/bring-your-own.md"
    )


def _token_workload(
    case: Case, transformers: Any, config: Any, options: Mapping[str, Any], goal: str
) -> Workload:
    positions = getattr(config, "max_position_embeddings", None)
    positions = positions if isinstance(positions, int) and positions > 0 else None
    sequence = option(case.model_args, options, "sequence") or min(LONGEST, (positions or 2 * LONGEST) // 2)
    if positions is not None and sequence > positions:
        raise UsageError(
            f"model_args of {clip(case.model)!r}: sequence = {sequence}, and the model has {positions} positions:"
            " lower sequence or raise max_position_embeddings"
        )
    if "use_cache" not in case.model_args:
        config.use_cache = False  # keys and values are kept for generating, not for training
    model = getattr(transformers, f"AutoModelFor{goal}").from_config(config)
    loss: Callable[[nn.Module, Any], Tensor] = token_loss
    if goal == "MaskedLM":
        loss = MaskedLoss(getattr(config, "mask_token_id", None) or config.vocab_size - 1)
    sample = Sample((sequence,), config.vocab_size, tokens=True)
    return Workload(Logits(model, decodes=goal == "Seq2SeqLM"), loss=loss, sample=sample)


def _image_workload(case: Case, transformers: Any, config: Any, options: Mapping[str, Any]) -> Workload:
    size = option(case.model_args, options, "image_size") or _image_size(config)
    config.architectures = config.architectures or []  # with None, types of two classes (deit) raise
    model = transformers.AutoModelForImageClassification.from_config(config)
    return Workload(
        Logits(model), loss=classification_loss, sample=Sample((3, size, size), config.num_labels)
    )


def _image_size(config: Any) -> int:
    """The side of the images that a model is made for; 224 where it takes any."""
    vision = getattr(config, "vision_config", None)
    size: Any = getattr(config, "image_size", None) or getattr(vision, "image_size", 224)
    return int(size if isinstance(size, int) else size[0])
