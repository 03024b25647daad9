"""CMF container -> checkpoint in Hugging Face layout, bfloat16.

    python unpack.py ../models/clover-nano.cmf ../models/clover-nano-hf

Gives `shamrock convert`, or a further training run (`train.py --resume`), its input.  The values
are those of the container; the last phase of training computed with experts on the q4tp grid, so
these are the weights it was trained to use, without the finer ones behind them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent / "reference"))
import cmf  # noqa: E402

from checkpoint import config_for  # noqa: E402
from tokenizer import tokenizer_config  # noqa: E402


def unpack(path: Path, out: Path) -> None:
    container = cmf.load(str(path))
    out.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    parts: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
    for entry in container.entries:
        value = container.tensor(entry.name)
        if ".experts." in entry.name:
            stem, rest = entry.name.split(".experts.")
            number, kind = rest.split(".")[:2]
            parts.setdefault(stem, {}).setdefault(int(number), {})[kind] = value
        else:
            tensors[entry.name] = value
    for stem, experts in parts.items():
        ordered = [experts[e] for e in range(len(experts))]
        tensors[f"{stem}.experts.gate_up_proj"] = torch.stack(
            [torch.cat([e["gate_proj"], e["up_proj"]]) for e in ordered])
        tensors[f"{stem}.experts.down_proj"] = torch.stack([e["down_proj"] for e in ordered])
    save_file({k: v.bfloat16().contiguous() for k, v in tensors.items()},
              out / "model.safetensors", metadata={"format": "pt"})

    vocabulary = container.section("vocab")
    (out / "tokenizer.json").write_bytes(vocabulary)
    tok = Tokenizer.from_str(vocabulary.decode("utf-8"))
    diffusion = container.header["arch"]["block_diffusion"]
    config = config_for(tok, coreset=diffusion["coreset_enabled"],
                        coreset_top_p=diffusion["coreset_top_p"],
                        threshold=diffusion["threshold"])
    for name, value in (("config.json", config.to_hf()),
                        ("generation_config.json", config.generation()),
                        ("tokenizer_config.json", tokenizer_config(tok))):
        (out / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("file", type=Path)
    ap.add_argument("out", type=Path)
    a = ap.parse_args()
    unpack(a.file, a.out)


if __name__ == "__main__":
    main()
