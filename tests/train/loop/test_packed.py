"""Samples of one row are as if alone: proved on the model itself, else they are padded, and it is said."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from train.data.collate import pack
from train.data.template import Sample
from train.errors import EXIT_UNAVAILABLE, UserError
from train.loop import attention, packed
from train.loop.loss import target_loss
from train.loop.packed import attending, choose_packing, forward_context, probe, split_batch

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
WAYS = [("sdpa", "by sample"), ("sdpa", "by mask"), ("eager", "by mask")]


def adapted(family: str, kind: str, attn_implementation: str = "sdpa", **more: Any) -> Any:
    """A random tiny model of a family with an adapter that does something."""
    import transformers
    from peft import LoraConfig, OFTConfig, get_peft_model

    from train.adapters import attach

    torch.manual_seed(0)
    extra = {"head_dim": 16} if family == "Qwen3" else {}
    config = getattr(transformers, f"{family}Config")(**SHAPE, **extra, **more)
    config._attn_implementation = attn_implementation
    base = getattr(transformers, f"{family}ForCausalLM")(config)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"]
    settings = {"target_modules": names, "task_type": "CAUSAL_LM"}
    adapter = LoraConfig(**settings) if kind == "lora" else OFTConfig(r=0, oft_block_size=16, **settings)
    model: Any = attach.batched(get_peft_model(base, adapter))
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in attach.trainable(model).values():
            parameter.normal_(std=0.05, generator=draw)
    return model.train()


def loss_and_gradients(model: Any, samples: list[Sample], method: str) -> tuple[float, torch.Tensor]:
    inputs, labels = split_batch(pack(samples, 0), method)
    with forward_context(method):
        total = target_loss(model, model, inputs, labels).total
    model.zero_grad()
    total.backward()
    learns = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    return float(total), torch.cat([one.flatten() for one in learns if one is not None])


def samples() -> list[Sample]:
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(0, 300, (length,), generator=draw).tolist() for length in (11, 1, 6, 19)]
    return [Sample(row, row, "test") for row in rows]


@pytest.mark.parametrize("kind", ["lora", "oft"])
@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
@pytest.mark.parametrize(("attn_implementation", "method"), WAYS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_packed_row_has_the_loss_and_gradients_of_its_samples(
    family: str, kind: str, attn_implementation: str, method: str, checkpointing: bool
) -> None:
    model = adapted(family, kind, attn_implementation)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    with attending(model, method, attn_implementation):
        alone = [loss_and_gradients(model, [one], method) for one in samples()]
        total, gradients = loss_and_gradients(model, samples(), method)
    assert total == pytest.approx(sum(loss for loss, _ in alone), rel=1e-5)
    wanted = torch.stack([one for _, one in alone]).sum(0)
    assert float((gradients - wanted).abs().max() / wanted.abs().max()) < 1e-5


def test_a_sliding_window_is_kept_within_each_sample() -> None:
    more = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    model = adapted("Qwen2", "lora", **more)
    found = {}
    for method in ("by sample", "by mask"):
        with attending(model, method, "sdpa"):
            found[method] = loss_and_gradients(model, samples(), method)
    assert found["by sample"][0] == pytest.approx(found["by mask"][0], rel=1e-6)
    assert torch.allclose(found["by sample"][1], found["by mask"][1], atol=1e-4)
    whole = adapted("Qwen2", "lora")
    assert loss_and_gradients(whole, samples(), "by mask")[0] != pytest.approx(found["by mask"][0], rel=1e-4)


def test_by_sample_builds_no_mask_and_multiplies_no_pair_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost is the sum of the squares: no attention sees more tokens than its sample has."""
    model, seen = adapted("Qwen2", "lora"), []
    original = attention.scaled_dot_product_attention

    def noting(query: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        assert named["attn_mask"] is None
        seen.append(query.shape[2])
        return original(query, *rest, **named)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", noting)
    monkeypatch.setattr(attention, "sdpa_mask", lambda *_, **__: pytest.fail("a mask was built"))
    with attending(model, "by sample", "sdpa"):
        loss_and_gradients(model, samples(), "by sample")
    assert seen == [11, 1, 6, 19] * 2


def test_generation_is_that_of_sdpa_while_a_model_attends_by_sample() -> None:
    model = adapted("Qwen2", "lora").eval()
    ids = torch.tensor([[0, 0, 5, 6, 7], [3, 4, 5, 6, 7]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    more = {
        "input_ids": ids,
        "attention_mask": mask,
        "max_new_tokens": 5,
        "do_sample": False,
        "pad_token_id": 0,
    }
    wanted = model.generate(**more)
    with attending(model, "by sample", "sdpa"):
        assert model.generate(**more).tolist() == wanted.tolist()


@contextlib.contextmanager
def leaking() -> Iterator[str]:
    """A registered attention that sees the whole row."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("leaking", sdpa_attention_forward)
    AttentionMaskInterface.register("leaking", lambda *_, **__: None)
    yield "leaking"


def choose(model: Any, asked: str, attn_implementation: str) -> Any:
    return choose_packing(asked, model, attn_implementation, lambda yes: yes, contextlib.nullcontext)


def test_a_tensor_that_some_samples_give_no_gradient_does_not_end_the_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the adapter of an expert, where each has layers of its own."""
    model = adapted("Qwen2", "lora")
    model.expert = torch.nn.Parameter(torch.zeros(3))

    def with_expert(*given: Any) -> Any:
        found = target_loss(*given)
        took = [length > 3 for length in given[2]["sample_lengths"]]
        return replace(found, total=found.total + sum(took) * model.expert.sum()) if any(took) else found

    monkeypatch.setattr(packed, "target_loss", with_expert)
    passed, said = probe(model, "by sample", contextlib.nullcontext)
    assert passed, said


def test_the_probe_passes_what_keeps_samples_apart_and_fails_what_does_not() -> None:
    model = adapted("Qwen2", "oft")
    state = torch.random.get_rng_state()
    assert choose(model, "auto", "sdpa").value == "by sample"
    assert choose(model, "on", "eager").value == "by mask"
    assert choose(model, "off", "sdpa").value == "padded"
    with leaking() as name:
        choice = choose(model, "auto", name)
        assert choice.value == "padded"
        assert "fail the probe: by mask: logits" in choice.reason
        with pytest.raises(
            UserError, match="samples of one row are not kept apart: by mask: logits"
        ) as caught:
            choose(model, "on", name)
    assert caught.value.exit_code == EXIT_UNAVAILABLE
    assert torch.equal(state, torch.random.get_rng_state())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_attention_that_raises_is_passed_over_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapted("Qwen2", "lora")

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel for this\nmore")

    monkeypatch.setattr(attention, "scaled_dot_product_attention", broken)
    assert choose(model, "auto", "sdpa").value == "by mask"
    with attending(model, "by sample", "sdpa"):
        assert probe(model, "by sample", contextlib.nullcontext) == (
            False,
            "RuntimeError: no kernel for this",
        )


def test_a_leak_of_gradients_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an attention whose backward forgets the borders."""
    model = adapted("Qwen2", "lora")
    original = packed._run

    def tainted(core: Any, given: list[Sample], *rest: Any) -> Any:
        logits, gradient = original(core, given, *rest)
        return logits, gradient * (1.001 if len(given) > 1 else 1.0)

    monkeypatch.setattr(packed, "_run", tainted)
    choice = choose(model, "auto", "sdpa")
    assert choice.value == "padded"


def test_half_precision_passes_and_a_leak_in_it_does_not() -> None:
    model = adapted("Qwen2", "lora")
    with leaking() as name:
        for dtype in (torch.bfloat16, torch.float16):
            for parameter in model.parameters():
                if not parameter.requires_grad:
                    parameter.data = parameter.data.to(dtype)
            ask = (lambda yes: yes, lambda dtype=dtype: torch.autocast("cpu", dtype))
            assert choose_packing("auto", model, "sdpa", *ask).value == "by sample"
            assert choose_packing("auto", model, name, *ask).value == "padded"


def test_the_auxiliary_loss_of_experts_is_the_models_own() -> None:
    import transformers

    torch.manual_seed(0)
    shape = SHAPE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    config = transformers.Qwen3MoeConfig(**shape, output_router_logits=True, router_aux_loss_coef=0.5)
    model = transformers.Qwen3MoeForCausalLM(config)
    ids = torch.randint(0, 300, (1, 12), generator=torch.Generator().manual_seed(1))
    wanted = model(input_ids=ids, labels=ids).loss
    found = target_loss(model, model, {"input_ids": ids}, ids)
    assert found.auxiliary is not None
    assert float(found.total / 11 + found.auxiliary) == pytest.approx(float(wanted), rel=1e-5)
    assert float(found.auxiliary) > 0


def test_a_row_of_one_sample_keeps_its_sliding_window() -> None:
    more = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    model, alone = adapted("Qwen2", "lora", **more), samples()[-1:]
    found = {}
    for method in ("by sample", "by mask"):
        with attending(model, method, "sdpa"):
            found[method] = loss_and_gradients(model, alone, method)
    assert found["by sample"][0] == pytest.approx(found["by mask"][0], rel=1e-6)
    assert torch.allclose(found["by sample"][1], found["by mask"][1], atol=1e-4)
