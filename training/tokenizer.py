"""The byte-level BPE tokenizer of clover-nano and its chat template.

    python tokenizer.py ../models/clover-nano-hf       write tokenizer.json, tokenizer_config.json
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from data.mixture import training_sample
from data.words import NOUNS

VOCAB = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
THINK = ["<think>", "</think>"]
SAMPLES = 60_000

# Thinking is off unless asked for: a model of this size answers most prompts better directly.
# Reasoning of earlier turns is left out of the prompt.
TEMPLATE = (
    "{%- for message in messages %}"
    "{%- set content = message['content'] %}"
    "{%- if message['role'] == 'assistant' and '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}"
    "{%- endif %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking %}"
    "{{- '<think>\\n' }}"
    "{%- else %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{%- endif %}"
)


def render(messages: list[dict], thinking: bool) -> str:
    """The prompt text; equal to TEMPLATE with add_generation_prompt (checked by the tests)."""
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return turns + "<|im_start|>assistant\n" + ("<think>\n" if thinking else "<think>\n\n</think>\n\n")


def response(answer: str, think: str | None) -> str:
    """The text the model has to write, without the final `<|im_end|>`."""
    return answer if think is None else f"{think}\n</think>\n\n{answer}"


def corpus():
    rng = random.Random(1)
    for _ in range(SAMPLES):
        sample = training_sample(rng)
        yield from (m["content"] for m in sample.messages)
        yield response(sample.answer, sample.think)
    for noun in NOUNS:                         # so that every known word is a single token
        yield from [f"the {noun}, {noun}"] * 20
    yield from ["system\nuser\nassistant\n\n"] * 2000


def train() -> Tokenizer:
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),          # arithmetic needs single digits
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    tok.decoder = decoders.ByteLevel()
    added = len(SPECIAL) + len(THINK)
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=VOCAB - added, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in THINK])
    return tok


def tokenizer_config(tok: Tokenizer) -> dict:
    """The `tokenizer_config.json` of the checkpoint."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "mask_token": "<|mask|>",
        "model_max_length": 4096, "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(tok.token_to_id(t)): {"content": t, "special": t in SPECIAL, "lstrip": False,
                                      "rstrip": False, "normalized": False, "single_word": False}
            for t in SPECIAL + THINK},
    }


def write(folder: Path) -> Tokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    tok = train()
    tok.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(tok), indent=2) + "\n")
    return tok


if __name__ == "__main__":
    tokenizer = write(Path(sys.argv[1]))
    print(f"{tokenizer.get_vocab_size()} entries")
