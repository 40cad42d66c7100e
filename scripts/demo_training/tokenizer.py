"""The byte-level BPE tokenizer and its chat template."""

import re
from collections.abc import Iterable

from demo_corpus.document import BOS, END, END_OF_TEXT, PAD, SPECIAL_TOKENS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 2048

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'tool' %}{%- set role = 'user' %}{%- else %}{%- set role = message['role'] %}{%- endif %}"
    "{%- if role not in ['system', 'user', 'assistant'] %}{{- raise_exception('Unknown role: ' + role) }}{%- endif %}"
    "{{- '<|' + role + '|>' }}"
    "{%- if message['content'] is string %}{{- message['content'] | trim }}"
    "{%- elif message['content'] %}"
    "{%- for part in message['content'] %}{%- if part['type'] == 'text' %}{{- part['text'] | trim }}{%- endif %}{%- endfor %}"
    "{%- endif %}"
    "{{- '<|end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
"""Chat template. A message's content is a string, a list of parts of which only text is used, or nothing."""


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train a tokenizer with `VOCABULARY` tokens, special tokens first. It has all 256 bytes, so it can encode any UTF-8 text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    between = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    tokenizer.train_from_iterator((piece for text in texts for piece in between.split(text)), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"the text gives only {tokenizer.get_vocab_size()} tokens of {VOCABULARY}")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, token_id(BOS))]),
        ]
    )
    return tokenizer


def tokenizer_config(window: int) -> dict[str, object]:
    """Contents of tokenizer_config.json for a model with `window` positions."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END_OF_TEXT,
        "pad_token": PAD,
        "additional_special_tokens": [token for token in SPECIAL_TOKENS if token not in (BOS, END_OF_TEXT, PAD)],
        "model_max_length": window,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def token_id(token: str) -> int:
    """Id of a special token."""
    return SPECIAL_TOKENS.index(token)


STOP_IDS = [token_id(END), token_id(END_OF_TEXT)]
"""Ids of the tokens that end an answer or a text."""
