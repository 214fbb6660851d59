"""Block sizes that are never adjusted in silence, and the change from one Cayley map to the other."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from oft_twins import (
    TARGETS,
    base_model,
    fill,
    logits_of,
    loss_of,
    trained,
    twins,
)
from peft import PeftModel
from peft.tuners.oft.layer import Linear

from train.adapters import attach, oft
from train.adapters.oft_layer import BatchedLinear, rotations_of
from train.config import RunConfig
from train.errors import EXIT_TRAINING, UserError


def config(**settings: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"adapter": "oft", "model": "m", "data": "d", "output": "o", "oft": settings}
    )


def attached(model: Any, **settings: Any) -> Any:
    return attach.attach(model, config(**settings), attach.find_targets(model, config(**settings)))


def target(inputs: int, kind: str = "x_proj") -> attach.Target:
    return attach.Target(kind, inputs, 8, (f"a.{kind}",))


def peft_choice(inputs: int, wanted: int = 32) -> int:
    layer = Linear.__new__(Linear)
    return wanted if inputs % wanted == 0 else layer.adjust_oft_parameters(inputs, wanted)


def test_auto_is_what_peft_adjusts_to_for_every_width_that_is_not_prime() -> None:
    # A large prime has no block but itself: PEFT takes blocks of one, which turn nothing.
    for inputs in [*range(2, 700), 896, 1536, 3420, 3584, 4864, 8960, 18_944, 29_568]:
        if oft.divisors(inputs) != [inputs] or inputs < 64:
            assert oft.block_of(config(oft_block_size="auto"), inputs) == peft_choice(inputs), inputs


def test_a_layer_of_prime_width_is_refused_where_peft_would_turn_nothing() -> None:
    model = base_model(intermediate_size=67)
    with pytest.raises(UserError) as caught:
        attached(model, oft_block_size="auto")
    assert "down_proj got blocks of 1, 67 is due" in caught.value.message
    assert caught.value.exit_code == EXIT_TRAINING


@pytest.mark.parametrize(("inputs", "block"), [(3420, 30), (64, 32), (48, 24), (20, 20), (36, 36), (90, 30)])
def test_auto_takes_the_nearest_size_that_divides(inputs: int, block: int) -> None:
    assert oft.block_of(config(oft_block_size="auto"), inputs) == block
    assert oft.faults(config(oft_block_size="auto"), [target(inputs)]) == []


def test_a_size_that_does_not_divide_is_refused_with_its_neighbours() -> None:
    faults = oft.faults(config(oft_block_size=32), [target(3420), target(64, "y_proj"), target(20, "z_proj")])
    assert faults == [
        "oft.oft_block_size: 32 does not divide the 3420 inputs of x_proj; near it: 19, 20, 30, 36, 38, 45",
        "oft.oft_block_size: 32 does not divide the 20 inputs of z_proj; near it: 5, 10, 20",
    ]
    hint = oft.hint(config(oft_block_size=32), [target(3420), target(64)])
    assert (
        hint == "--set oft.oft_block_size=N, that divide all of them: 2, 4; or --set oft.oft_block_size=auto"
    )


def test_a_number_of_blocks_that_does_not_divide_is_refused_with_its_neighbours() -> None:
    faults = oft.faults(config(oft_num_blocks=7), [target(64), target(70, "y_proj")])
    assert faults == [
        "oft.oft_num_blocks: 7 does not divide the 64 inputs of x_proj into blocks of 2 or more; "
        "near it: 1, 2, 4, 8, 16, 32"
    ]
    assert "divide all of them: 1, 2;" in oft.hint(config(oft_num_blocks=7), [target(64), target(70)])
    assert oft.faults(config(oft_num_blocks=64), [target(64)])  # blocks of one turn nothing


def test_common_sizes_may_be_none() -> None:
    assert "divide all of them: none" in oft.hint(config(), [target(9), target(64)])


def test_a_number_of_blocks_attaches_as_it_was_asked_for() -> None:
    model = base_model()
    settings = config(oft_num_blocks=4)
    targets = attach.find_targets(model, settings)
    adapted = attach.attach(model, settings, targets)
    rows = {row.kind: row for row in attach.target_table(adapted, targets)}
    assert rows["q_proj"].settings == {"oft_block_size": 16, "oft_num_blocks": 4}
    assert rows["down_proj"].settings == {"oft_block_size": 24, "oft_num_blocks": 4}
    assert rows["down_proj"].num_parameters == 2 * 4 * (24 * 23 // 2)


def test_shared_blocks_have_one_blocks_parameters() -> None:
    model = base_model()
    settings = config(oft_block_size=16, block_share=True)
    targets = attach.find_targets(model, settings)
    rows = attach.target_table(attach.attach(model, settings, targets), targets)
    assert {row.num_parameters for row in rows} == {2 * 120}


def test_the_config_says_every_setting_to_peft() -> None:
    asked = {
        "oft_block_size": 16,
        "cayley": "series",
        "num_cayley_neumann_terms": 7,
        "coft": True,
        "eps": 0.25,
        "block_share": True,
        "module_dropout": 0.125,
    }
    made = oft.peft_config(config(**asked), ["q_proj"])
    names = {"cayley": "use_cayley_neumann"}
    for name, value in asked.items():
        assert getattr(made, names.get(name, name)) == (True if name == "cayley" else value)
    assert (made.r, made.target_modules) == (0, {"q_proj"})
    assert not oft.peft_config(config(), ["q_proj"]).use_cayley_neumann
    counted = oft.peft_config(config(oft_num_blocks=4), ["q_proj"])
    assert (counted.r, counted.oft_block_size) == (4, 0)


@pytest.mark.parametrize(
    "setting",
    [{"block_share": True}, {"coft": True, "eps": 1e-3}, {"module_dropout": 0.5}, {"cayley": "series"}],
    ids=str,
)
def test_every_setting_changes_the_result(setting: dict[str, Any]) -> None:
    """With weights that are the same for every block, all else being equal."""
    losses = []
    for settings in ({}, setting):
        adapted = attached(base_model(), oft_block_size=16, **settings).train()
        generator = torch.Generator().manual_seed(0)
        rows = {
            p.shape[1]: torch.randn(6, p.shape[1], generator=generator) / 5 for p in trained(adapted).values()
        }
        for parameter in trained(adapted).values():
            parameter.data.copy_(rows[parameter.shape[1]][: len(parameter)])
        losses.append(loss_of(adapted).item())
    assert abs(losses[0] - losses[1]) > 1e-4


def test_what_is_attached_is_batched() -> None:
    adapted = attached(base_model(), oft_block_size=16)
    assert sum(isinstance(module, BatchedLinear) for module in adapted.modules()) == 2 * len(TARGETS)
    assert rotations_of(adapted) is not None


def optimizer_of(model: Any, kind: str = "adamw") -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(trained(model).values(), lr=1e-2, momentum=0.9)
    return torch.optim.AdamW(trained(model).values(), lr=1e-3, eps=1e-4, amsgrad=kind == "amsgrad")


def step(model: Any, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("kind", ["adamw", "amsgrad", "sgd"])
def test_converting_negates_weights_gradients_and_first_moments(kind: str) -> None:
    _, ours = twins(use_cayley_neumann=True, std=0.01)
    optimizer = optimizer_of(ours, kind)
    step(ours, optimizer)
    parameter = next(iter(trained(ours).values()))
    before, gradient = parameter.detach().clone(), parameter.grad.clone()
    state = {key: value.clone() for key, value in optimizer.state[parameter].items()}
    oft.convert_cayley(ours, exact=True, optimizer=optimizer)
    assert torch.equal(parameter, -before) and torch.equal(parameter.grad, -gradient)
    for key, value in optimizer.state[parameter].items():
        sign = -1 if key in ("exp_avg", "momentum_buffer") else 1
        assert torch.equal(value, sign * state[key]) and (key == "step" or value.abs().max() > 0)
    assert oft.is_exact(ours)
    oft.convert_cayley(ours, exact=True, optimizer=optimizer)
    assert torch.equal(parameter, -before)


def test_converting_leaves_other_adapters_as_they_are() -> None:
    _, ours = twins(use_cayley_neumann=True)
    ours.add_adapter("other", copy.deepcopy(ours.peft_config["default"]))
    other = [parameter for name, parameter in ours.named_parameters() if ".oft_R.other." in name]
    for parameter in other:
        parameter.data.fill_(0.1)
    oft.convert_cayley(ours, exact=True)
    assert all((parameter == 0.1).all() for parameter in other)
    assert ours.peft_config["other"].use_cayley_neumann


def test_an_optimizer_that_cannot_be_converted_is_refused_before_anything_changes() -> None:
    _, ours = twins(use_cayley_neumann=True)
    optimizer = torch.optim.RMSprop(trained(ours).values(), lr=1e-3)
    step(ours, optimizer)
    before = next(iter(trained(ours).values())).detach().clone()
    with pytest.raises(UserError, match="square_avg, which cannot be converted") as caught:
        oft.convert_cayley(ours, exact=True, optimizer=optimizer)
    assert caught.value.exit_code == EXIT_TRAINING
    assert torch.equal(next(iter(trained(ours).values())), before) and not oft.is_exact(ours)


@pytest.mark.parametrize("exact", [True, False])
def test_outputs_stay_what_they_were_while_rotations_are_small(exact: bool) -> None:
    _, ours = twins(use_cayley_neumann=exact, std=0.005)
    before, base = logits_of(ours), logits_of(base_model())
    oft.convert_cayley(ours, exact=exact)
    after = logits_of(ours)
    assert oft.is_exact(ours) is exact
    assert (base - before).abs().max() > 1e-2
    assert (after - before).abs().max() < 1e-5


@pytest.mark.parametrize(("error", "allowed"), [(0.05, 0.05), (0.5, 0.4)])
def test_outputs_move_no_more_than_the_series_has_drifted(error: float, allowed: float) -> None:
    """`allowed`: of the change that the adapter makes to the logits."""
    _, ours = twins(use_cayley_neumann=True, std=0.01)
    rotations: Any = rotations_of(ours)
    scale = 1.05
    while rotations.orthogonality_error() < error:
        for parameter in trained(ours).values():
            parameter.data.mul_(scale)
        logits_of(ours)
    before, base = logits_of(ours), logits_of(base_model())
    oft.convert_cayley(ours, exact=True)
    moved = ((logits_of(ours) - before).abs().max() / (base - before).abs().max()).item()
    assert moved < allowed
    assert rotations_of(ours).orthogonality_error() < 1e-5


def test_training_goes_on_after_converting() -> None:
    _, ours = twins(use_cayley_neumann=True, std=0.01)
    _, stays = twins(use_cayley_neumann=True, std=0.01)
    optimizers = [optimizer_of(model) for model in (ours, stays)]
    losses: list[list[float]] = [[], []]
    for number in range(6):
        for index, model in enumerate((ours, stays)):
            losses[index].append(step(model, optimizers[index]))
        if number == 2:
            oft.convert_cayley(ours, exact=True, optimizer=optimizers[0])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert losses[0][-1] < losses[0][0] - 1e-3


def test_plain_peft_reads_a_converted_adapter(tmp_path: Path) -> None:
    _, ours = twins(use_cayley_neumann=True, std=0.1)
    oft.convert_cayley(ours, exact=True)
    ours.save_pretrained(str(tmp_path))
    again = PeftModel.from_pretrained(base_model(), str(tmp_path))
    assert not again.peft_config["default"].use_cayley_neumann
    assert (logits_of(again) - logits_of(ours.eval())).abs().max() < 1e-6


def test_setting_the_map_alone_leaves_the_weights_and_turns_the_other_way() -> None:
    _, ours = twins(use_cayley_neumann=True, std=0.005)
    weights = [parameter.detach().clone() for parameter in trained(ours).values()]
    before, base = logits_of(ours), logits_of(base_model())
    oft.set_cayley(ours, exact=True)
    after = logits_of(ours)
    assert all(torch.equal(p, w) for p, w in zip(trained(ours).values(), weights, strict=True))
    effect = (before - base).abs().max()
    assert (after - before).abs().max() > effect  # the transposes: as far on the other side of the base


def test_the_orthogonality_error_is_of_the_weights_as_they_are() -> None:
    _, ours = twins(use_cayley_neumann=True, std=0.0)
    assert oft.orthogonality_error(ours) == 0
    fill(ours, 0.2)
    assert oft.orthogonality_error(ours) > 0.1
    assert oft.orthogonality_error(base_model()) == 0  # no rotations at all
