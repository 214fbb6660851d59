"""The dropout of blocks is really applied, in training only, and is the same when computed again."""

from __future__ import annotations

from typing import Any

import torch
from oft_twins import IDS, OTHER_IDS, gap, gradients, logits_of, loss_of, twins

from train.adapters.oft_layer import rotations_of


def dropping(share: float = 0.5, **settings: Any) -> Any:
    return twins(module_dropout=share, std=0.3, **settings)[1]


def seeded_gradients(model: Any, seed: int = 3) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(seed)
    (loss_of(model) + loss_of(model, OTHER_IDS)).backward()
    return gradients(model)


def test_training_differs_from_evaluation_and_the_next_step_from_this_one() -> None:
    model = dropping()
    model.eval()
    whole = loss_of(model)
    model.train()
    first = loss_of(model)
    first.backward()
    second = loss_of(model)
    assert len({round(loss.item(), 5) for loss in (whole, first, second)}) == 3


def test_evaluation_is_that_of_an_adapter_without_dropout() -> None:
    plain, _ = twins(std=0.3)
    model = dropping()
    loss_of(model).backward()
    assert (logits_of(model.eval()) - logits_of(plain.eval())).abs().max() < 1e-5


def test_blocks_that_are_left_out_get_no_gradient_and_the_others_do() -> None:
    model = dropping()
    loss_of(model).backward()
    (family,) = rotations_of(model).families
    turned = torch.cat([module.weight.grad.abs().sum(-1) > 0 for module in family.modules])
    assert torch.equal(turned, family.state.kept.flatten())
    assert 0.3 < turned.float().mean().item() < 0.7


def test_the_seed_of_the_cpu_generator_decides() -> None:
    model = dropping()
    assert gap(seeded_gradients(model, 3), seeded_gradients(model, 3)) == 0
    assert gap(seeded_gradients(model, 3), seeded_gradients(model, 4)) > 1e-3


def test_checkpointing_computes_the_same_blocks_again() -> None:
    model = dropping()
    expected = seeded_gradients(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert gap(expected, seeded_gradients(model)) < 1e-6


def test_the_gradient_is_that_of_the_loss_that_was_computed() -> None:
    """By a finite difference along one direction, the same blocks left out."""
    model = dropping()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    found = seeded_gradients(model)
    name, gradient = max(found.items(), key=lambda item: item[1].abs().max().item())
    place = gradient.abs().argmax()
    parameter = dict(model.named_parameters())[name]
    losses = []
    for change in (1e-2, -1e-2):
        torch.manual_seed(3)
        parameter.data.view(-1)[place] += change
        with torch.no_grad():
            model.zero_grad()
        torch.manual_seed(3)
        losses.append(fresh_loss(model))
        parameter.data.view(-1)[place] -= change
    slope = (losses[0] - losses[1]) / 2e-2
    assert abs(slope - gradient.view(-1)[place].item()) < 0.02 * abs(slope) + 1e-3


def fresh_loss(model: Any) -> float:
    loss = loss_of(model) + loss_of(model, OTHER_IDS)
    loss.backward()  # so that the next call draws anew
    return loss.item()


def test_generation_of_a_model_in_training_mode_still_works() -> None:
    model = dropping()
    answer = model.generate(input_ids=IDS[:, :4], max_new_tokens=4, do_sample=False)
    assert answer.shape == (2, 8)
