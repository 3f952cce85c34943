"""Text -> token tensors, and what a language model is scored on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clcurv.errors import DataError, MismatchError, UsageError
from clcurv.inputs.loaded import LoadedModel

IGNORED = -100
_MASKED_SHARE = 0.15
_DEFAULT_LENGTH = 512
_SPECIAL = ("pad", "bos", "eos", "cls", "sep", "unk", "mask")
_CHARACTERS = 2000  # per token; what is behind them in a text would be cut off anyway
_UNLIMITED = 1 << 20  # tokenizers without a maximum state 1e30

_TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "spiece*", "*.model", "*.tiktoken")


@dataclass(frozen=True)
class Vocabulary:
    """The token ids of a model.

    Attributes:
        size: Ids are below this.
        special: Ids that are no words.
        mask: Id of the mask token, None without one.
        pad: Id of the padding token, None without one.
    """

    size: int
    special: frozenset[int]
    mask: int | None
    pad: int | None

    def words(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """All ids that are words, sorted."""
        return np.setdiff1d(np.arange(self.size), np.array(sorted(self.special), dtype=np.int64))


def vocabulary(loaded: LoadedModel, tokenizer: Any | None = None) -> Vocabulary:
    """Token ids from the tokenizer where there is one, else from the model's config.

    The size is never larger than the model's embedding.

    Raises:
        DataError: Nothing states the size of the vocabulary.
    """
    config = getattr(loaded.model, "config", None)
    rows = [m.num_embeddings for m in loaded.model.modules() if isinstance(m, nn.Embedding)]
    size = getattr(config, "vocab_size", None) or (rows[0] if rows else None)
    if tokenizer is not None:
        size = min(len(tokenizer), int(size)) if size else len(tokenizer)
        special = frozenset(int(i) for i in tokenizer.all_special_ids)
        return Vocabulary(size, special, tokenizer.mask_token_id, tokenizer.pad_token_id)
    if not size:
        raise DataError(
            "the size of the model's vocabulary is not known",
            hint="give a checkpoint folder with config.json and tokenizer",
        )
    ids = {name: getattr(config, f"{name}_token_id", None) for name in _SPECIAL}
    special = frozenset(i for i in ids.values() if isinstance(i, int) and 0 <= i < int(size))
    return Vocabulary(int(size), special, ids["mask"], ids["pad"])


def load_tokenizer(loaded: LoadedModel) -> Any | None:
    """The checkpoint's own tokenizer (local files only, none of its code run), or None.

    Raises:
        DataError: It is there but cannot be loaded.
    """
    folder = loaded.preprocess.get("tokenizer")
    if folder is None:
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a damaged tokenizer surfaces as any type
        if not any(next(Path(folder).glob(name), None) for name in _TOKENIZER_FILES):
            return None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{folder}: its tokenizer cannot be loaded ({reason})") from error
    files = {*tokenizer.vocab_files_names.values(), "tokenizer.json"}
    if tokenizer.vocab_files_names and not any((Path(folder) / n).is_file() for n in files):
        # transformers makes one without words, which reads every text as empty.
        return None
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token  # masked out, so any token serves
    # Left padding would shift the positions of models that count them from the left.
    tokenizer.padding_side = "right"
    return tokenizer


def max_tokens(loaded: LoadedModel, tokenizer: Any | None, wanted: int | None = None) -> int:
    """Longest input in tokens: the wanted length, but never beyond the model's own limit."""
    config = getattr(loaded.model, "config", None)
    limits = [wanted] if wanted else []
    stated = getattr(tokenizer, "model_max_length", None)
    if stated is not None and stated < _UNLIMITED:
        limits.append(int(stated))
    positions = getattr(config, "max_position_embeddings", None)
    if positions:
        # RoBERTa-type models start counting positions after the padding index.
        offset = (getattr(config, "pad_token_id", None) or 0) + 1
        roberta = getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert")
        limits.append(int(positions) - (offset if roberta else 0))
    return min(limits) if limits else _DEFAULT_LENGTH


def encode_text(
    texts: Sequence[str | tuple[str, str]], loaded: LoadedModel, *, max_length: int | None = None
) -> dict[str, Tensor]:
    """Tokenise, pad to the longest, cut at the model's limit.

    Args:
        texts: Texts, or pairs of texts.
        loaded: The model, with its tokenizer's folder in ``preprocess``.
        max_length: Cut earlier than the model asks for.

    Returns:
        int64 tensors ``(n, t)``: ``input_ids``, ``attention_mask``, and ``token_type_ids``
        where the tokenizer gives them.

    Raises:
        DataError: No tokenizer, or it has nothing to pad with.
        UsageError: `max_length` leaves no room for a word.
    """
    tokenizer = load_tokenizer(loaded)
    if tokenizer is None:
        raise DataError(
            "the checkpoint has no tokenizer to read text with",
            hint="give a Hugging Face folder with its tokenizer files, or token ids as npz",
        )
    if tokenizer.pad_token_id is None:
        raise DataError("the checkpoint's tokenizer has neither a padding nor an end token")
    pairs = isinstance(texts[0], tuple)
    longest = max_tokens(loaded, tokenizer, max_length)
    added = tokenizer.num_special_tokens_to_add(pairs)
    if longest <= added:
        raise UsageError(
            f"texts cut at {longest} tokens: the tokenizer alone adds {added}",
            hint=f"--max-length {added + 1} or more",
        )
    most = _CHARACTERS * longest
    encoded = tokenizer(
        [(text[0] if pairs else text)[:most] for text in texts],
        [text[1][:most] for text in texts] if pairs else None,
        padding="longest",
        truncation=True,
        max_length=longest,
        return_attention_mask=True,
    )
    names = [n for n in ("input_ids", "attention_mask", "token_type_ids") if n in encoded]
    return {name: torch.tensor(encoded[name], dtype=torch.int64) for name in names}


def token_inputs(
    rows: Sequence[np.ndarray[Any, Any]], loaded: LoadedModel
) -> Tensor | dict[str, Tensor]:
    """Token ids given as numbers -> a tensor, or a dict with a mask for HF models.

    Raises:
        DataError: Not whole numbers of one dimension, or ids outside the vocabulary.
    """
    vocab = vocabulary(loaded, load_tokenizer(loaded))
    longest = max(np.size(row) for row in rows)
    pad = vocab.pad if vocab.pad is not None else 0
    ids = np.full((len(rows), longest), pad, dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    for index, row in enumerate(rows):
        if row.ndim != 1 or row.dtype.kind not in "iu":
            raise DataError(
                f"token ids must be whole numbers in one row per sample, not {row.dtype} of "
                f"shape {row.shape}"
            )
        ids[index, : row.size] = row
        mask[index, : row.size] = 1 if vocab.pad is None else row != vocab.pad
    if ids.min() < 0 or ids.max() >= vocab.size:
        raise DataError(
            f"token ids from {ids.min()} to {ids.max()} do not fit a vocabulary of {vocab.size}",
            hint="tokenise with this checkpoint's own tokenizer",
        )
    tokens = torch.from_numpy(ids)
    if not is_hugging_face(loaded):
        return tokens
    return {"input_ids": tokens, "attention_mask": torch.from_numpy(mask)}


def is_hugging_face(loaded: LoadedModel) -> bool:
    """Whether the model is called with keywords (``model(input_ids=...)``)."""
    bases = {base.__name__ for base in type(loaded.model).__mro__}
    return loaded.arch.startswith("hf:") or "PreTrainedModel" in bases


def causal_targets(inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
    """The tokens themselves ``(n, t)``, -100 at padding; not shifted."""
    if isinstance(inputs, Tensor):
        return inputs.clone()
    ids = inputs["input_ids"].clone()
    mask = inputs.get("attention_mask")
    return ids if mask is None else ids.masked_fill(mask == 0, IGNORED)


def is_token_row(value: Any) -> bool:
    """Whether a label is one number a token."""
    return isinstance(value, list | tuple | np.ndarray) and len(np.shape(value)) == 1


def token_targets(
    labels: Sequence[Sequence[int]], ids: Tensor, size: int, names: Sequence[str]
) -> Tensor:
    """Labels of tokens as Hugging Face takes them: unshifted, -100 where not scored.

    Args:
        labels: One row a sample.
        ids: The inputs ``(n, t)``; shorter rows of labels are padded with -100, rows of inputs
            that were cut at `t` tokens cut them, too.
        size: Of the vocabulary.
        names: What to call the rows in a message.

    Returns:
        int64 ``(n, t)``.

    Raises:
        DataError: Nothing to score.
        MismatchError: A label that is no token.
    """
    width = ids.shape[1]
    targets = torch.full(ids.shape, IGNORED, dtype=torch.int64)
    for i, row in enumerate(labels):
        given = torch.as_tensor(np.asarray(row, dtype=np.int64))[:width]
        targets[i, : len(given)] = given
        wrong = given[(given != IGNORED) & ((given < 0) | (given >= size))]
        if len(wrong):
            raise MismatchError(
                f"{names[i]}: label {int(wrong[0])} is no token of {size}",
                hint="-100 marks tokens that are not scored",
            )
    if not bool((targets != IGNORED).any()):
        raise DataError("all labels are -100: no token is scored")
    return targets


def mask_tokens(
    inputs: Tensor | Mapping[str, Tensor], vocab: Vocabulary, *, seed: int
) -> tuple[Tensor | dict[str, Tensor], Tensor]:
    """BERT's masking: 15 % of the words are scored; of these 80 % become the mask token,
    10 % a random word, 10 % stay (Devlin et al. 2019, section 3.1).

    Every row with a word gets at least one scored token.

    Returns:
        Inputs with the mask in place, and targets ``(n, t)``, -100 where not scored.

    Raises:
        DataError: The vocabulary has no mask token.
    """
    if vocab.mask is None:
        raise DataError(
            "the checkpoint names no mask token", hint="give its folder with the tokenizer files"
        )
    ids = inputs if isinstance(inputs, Tensor) else inputs["input_ids"]
    array = ids.numpy().copy()
    word = ~np.isin(array, sorted(vocab.special))
    if not isinstance(inputs, Tensor) and "attention_mask" in inputs:
        word &= inputs["attention_mask"].numpy() != 0
    rng = np.random.default_rng([seed, 15])
    rank = np.where(word, rng.random(array.shape), np.inf)
    scored = (rank < _MASKED_SHARE) | (word & (rank == rank.min(axis=1, keepdims=True)))
    kind = rng.random(array.shape)
    random_words = rng.choice(vocab.words(), size=array.shape)
    targets = np.where(scored, array, IGNORED)
    array = np.where(scored & (kind < 0.8), vocab.mask, array)
    array = np.where(scored & (kind >= 0.8) & (kind < 0.9), random_words, array)
    masked = torch.from_numpy(array)
    if isinstance(inputs, Tensor):
        return masked, torch.from_numpy(targets)
    return {**inputs, "input_ids": masked}, torch.from_numpy(targets)
