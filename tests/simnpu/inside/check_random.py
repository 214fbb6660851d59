"""Random numbers: each device has a generator of its own, which is seeded, saved and put back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "randn": lambda: torch.randn(8, device="npu"),
    "rand": lambda: torch.rand(8, device="npu"),
    "randint": lambda: torch.randint(0, 1000, (8,), device="npu"),
    "randperm": lambda: torch.randperm(50, device="npu"),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(64, device="npu"), 0.5),
    "bernoulli": lambda: torch.full((64,), 0.5, device="npu").bernoulli(),
    "normal_": lambda: torch.empty(8, device="npu").normal_(),
    "multinomial": lambda: torch.ones(50, device="npu").multinomial(10),
}


@pytest.mark.parametrize("name", DRAWS)
def check_a_seed_decides_what_is_drawn_and_the_host_s_generator_is_left_alone(name: str) -> None:
    torch.manual_seed(5)
    host = torch.get_rng_state()
    first, second = DRAWS[name](), DRAWS[name]()
    assert torch.equal(torch.get_rng_state(), host)
    torch.manual_seed(5)
    assert torch.equal(DRAWS[name](), first)
    assert not torch.equal(first, second)


def check_a_saved_state_brings_the_same_numbers_again() -> None:
    state = torch.npu.get_rng_state()
    assert state.device.type == "cpu"
    first = torch.randn(5, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.randn(5, device="npu"), first)


def check_a_generator_of_the_device_draws_for_it_alone() -> None:
    generator = torch.Generator(device="npu").manual_seed(1)
    first = torch.randn(4, device="npu", generator=generator)
    assert torch.equal(torch.randn(4, device="npu", generator=generator.manual_seed(1)), first)
    with pytest.raises(RuntimeError, match=r"Expected a .* device type for generator"):
        torch.randn(4, device="npu", generator=torch.Generator())


def check_gradient_checkpointing_drops_the_same_elements_again() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * x

    x = torch.ones(200, device="npu", requires_grad=True)
    result = checkpoint(forward, x, use_reentrant=False)
    result.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, result.detach() * 2)


def check_dropout_scales_what_it_keeps() -> None:
    x = torch.ones(4000, device="npu", requires_grad=True)
    dropped = torch.nn.functional.dropout(x, 0.25)
    dropped.sum().backward()
    assert set(dropped.tolist()) == {0.0, float(torch.tensor(1 / 0.75))}
    assert 0.70 < float((dropped > 0).float().mean()) < 0.80
    assert x.grad is not None
    assert torch.equal(x.grad, dropped.detach())
