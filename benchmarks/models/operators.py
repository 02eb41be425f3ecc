"""Which operators of whole models end in a region of `torch.compile(..., backend="fusiond")`.

    python -m benchmarks.models.operators [--only resnet18 ...] [--fallback eager] [--missing]

The training step of 40 models (torchvision, timm, transformers; small, without weights; in training mode) is traced by
Dynamo and AOTAutograd, with Inductor's passes or (`--fallback eager`) without, and each graph is cut as the backend
cuts it. Nothing is compiled. Counted are the operators that are not a library's: all but products, convolutions,
attention kernels, random draws, mutations, views and empty tensors, which cost nothing. An operator that a region has
too little beside counts as left out. A library that is not installed is named, and its models are skipped.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks import commands
from fusiond.torch.graphs import FxGraph

SIDE = 64
"""Pixels of a picture's side, where the model does not demand another."""
TOKENS = 48

LIBRARY = frozenset(
    """mm addmm bmm baddbmm _int_mm _scaled_mm convolution convolution_backward empty empty_like device_put _unsafe_view
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    inductor_seeds inductor_seed inductor_lookup_seed inductor_random inductor_randint""".split()  # noqa: SIM905
)


def _vision(name: str, side: int = SIDE, **more: Any) -> Any:
    return importlib.import_module("torchvision.models").get_model(name, weights=None, **more), (_picture(side),)


def _segmentation(name: str) -> Any:
    made = importlib.import_module("torchvision.models.segmentation")
    return getattr(made, name)(weights=None, weights_backbone=None, num_classes=5), (_picture(SIDE),)


def _timm(name: str, side: int = SIDE, **more: Any) -> Any:
    return importlib.import_module("timm").create_model(name, pretrained=False, **more), (_picture(side),)


def _picture(side: int) -> Any:
    return importlib.import_module("torch").randn(2, 3, side, side)


def _text(name: str, model: str = "Model", *, both: bool = False, **sizes: Any) -> Any:
    """Of transformers' configuration `name`, made small."""
    library = importlib.import_module("transformers")
    torch = importlib.import_module("torch")
    config = getattr(library, f"{name}Config")(**{"vocab_size": 320, **sizes})
    config._attn_implementation = "eager" if name == "Mamba" else "sdpa"
    tokens = torch.randint(5, 300, (2, TOKENS))
    given = {"input_ids": tokens} | ({"decoder_input_ids": tokens} if both else {})
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return getattr(library, name + model)(config), given


_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_LLAMA = {**_SMALL, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
_BART = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}  # fmt: skip
_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}

MODELS: Mapping[str, tuple[str, Callable[[], Any]]] = {
    **{name: ("torchvision", functools.partial(_vision, name, **more)) for name, more in {
        "resnet18": {}, "mobilenet_v3_small": {}, "efficientnet_b0": {}, "shufflenet_v2_x0_5": {},
        "squeezenet1_1": {}, "convnext_tiny": {}, "vit_b_32": {"image_size": SIDE}, "swin_t": {}, "regnet_y_400mf": {},
        "googlenet": {"aux_logits": False, "init_weights": False}, "mnasnet0_5": {}, "vgg11_bn": {},
        "alexnet": {}}.items()},
    "lraspp": ("torchvision", functools.partial(_segmentation, "lraspp_mobilenet_v3_large")),
    **{name: ("timm", functools.partial(_timm, name, **more)) for name, more in {
        "mixer_s32_224": {"side": 224}, "resmlp_12_224": {"side": 224}, "levit_128s": {"side": 224},
        "edgenext_xx_small": {},
        "ghostnet_050": {}, "poolformer_s12": {}, "deit_tiny_patch16_224": {"side": 224}, "mobilevit_xxs": {},
        "gmlp_s16_224": {"side": 224}, "nf_resnet26": {}, "xcit_nano_12_p16_224": {"side": 224},
        "tiny_vit_5m_224": {"side": 224}}.items()},
    **{name.lower(): ("transformers", functools.partial(_text, name, **more)) for name, more in {
        "GPT2": _GPT, "Llama": _LLAMA, "Bert": _SMALL, "T5": {**_T5, "both": True},
        "DistilBert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}, "Roberta": _SMALL,
        "Albert": {**_SMALL, "embedding_size": 32}, "Electra": {**_SMALL, "embedding_size": 32},
        "GPTNeoX": _SMALL, "Qwen2": _LLAMA, "Gemma": _LLAMA, "Phi": _SMALL, "Bart": {**_BART, "both": True},
        "Mamba": {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}}.items()},
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.models.operators",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands.only(made, MODELS)
    made.add_argument("--fallback", choices=("inductor", "eager"), default="inductor", help="whose graphs are cut")
    made.add_argument("--missing", action="store_true", help="list what is left out, and why")
    return commands.status(functools.partial(_run, made.parse_args(argv)))


def _run(given: Any) -> None:
    commands.check_only(given, list(MODELS), "model")
    inside, outside, reasons = 0, 0, collections.Counter[str]()
    for name in given.only or MODELS:
        library, build = MODELS[name]
        try:
            importlib.import_module(library)
        except ImportError as why:
            print(f"{name:24} skipped: {why}; pip install {library}")
            continue
        counted = [count(graph, module) for graph, module in graphs(*build(), eager=given.fallback == "eager")]
        fused, left = sum(each for each, _ in counted), collections.Counter(each for _, out in counted for each in out)
        inside, outside, reasons = inside + fused, outside + left.total(), reasons + left
        every = fused + left.total()
        print(f"{name:24} {fused:6} of {every:6}  {fused / max(1, every):7.1%}", flush=True)
    print(f"{'all':24} {inside:6} of {inside + outside:6}  {inside / max(1, inside + outside):7.1%}")
    for reason, times in reasons.most_common() if given.missing else ():
        print(f"{times:6}  {reason}")


def graphs(model: Any, given: Any, *, eager: bool) -> list[tuple[FxGraph, Any]]:
    """The forward and backward graphs of a step, as the backend has them, beside FX's."""
    import torch

    from fusiond.torch import recording

    backend = importlib.import_module("fusiond.torch.backend")

    found = []

    def kept(module: Any, part: str, default: Any, inner: Any) -> Any:
        found.append((recording.recorded(module.graph), module))

        def run(inputs: list[Any]) -> Any:
            return module.forward(*inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    cut = functools.partial(backend._eager if eager else backend._by_inductor, compiling=kept)
    torch._dynamo.reset()
    torch.manual_seed(0)
    compiled = torch.compile(model.train(), backend=lambda graph, inputs: cut(graph, inputs), dynamic=False)
    result = compiled(**given) if isinstance(given, dict) else compiled(*given)
    sum(each.float().mean() for each in _floats(result)).backward()
    return found


def _floats(result: Any) -> Iterable[Any]:
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, tuple | list):
        for each in result:
            yield from _floats(each)
    elif getattr(result, "requires_grad", False):
        yield result


def count(graph: FxGraph, module: Any) -> tuple[int, list[str]]:
    """(operators in regions, those that are not: each with the reason)."""
    from fusiond.torch import importer, regions

    of_libraries = {each.name for each in module.graph.nodes if _library(each)}
    fused, left, tensors = 0, [], graph.tensors()
    for segment in regions.cut(graph):
        own = [each for each in segment.nodes if each.name not in of_libraries]
        fused += len(own) if segment.fusable else 0
        if not segment.fusable:
            left += [f"{each.operator}: {importer.problem(each, tensors) or segment.reason}" for each in own]
    return fused, left


def _library(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return True
    views = any(each.alias_info is not None for each in schema.returns)
    draws = any("nondeterministic_seeded" in str(each) for each in node.target.tags)
    return schema.is_mutable or views or draws or schema.name.split("::")[1] in LIBRARY


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
