"""Budget: ceilings that are checked before anything runs."""

import pytest

from agentmem.budget import Budget
from agentmem.errors import BudgetTooSmall, InvalidInput


def test_shares_become_tokens() -> None:
    budget = Budget(1000)
    assert (budget.warn_tokens, budget.target_tokens, budget.recall_tokens) == (700, 500, 250)
    assert (budget.reserve, budget.part_tokens, budget.message_tokens) == (125, 125, 250)


def test_a_budget_is_read_from_logs_that_knew_other_ceilings() -> None:
    assert Budget.recorded({"max_tokens": 1000, "review_tokens": 300}) == Budget(1000)


def test_a_stub_is_never_longer_than_256_tokens_nor_than_a_message_may_be() -> None:
    assert Budget(8192).stub_tokens == 256
    assert Budget(400).stub_tokens == 100


def test_a_budget_too_small_is_refused_with_the_sum_shown() -> None:
    with pytest.raises(BudgetTooSmall, match=r"system prompt 90 .* = 235. Use `budget=235`"):
        Budget(128, reserve=17).check(system_tokens=90)


def test_a_budget_that_just_holds_what_must_stay_is_taken() -> None:
    Budget(235, reserve=17).check(system_tokens=90)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"warn_at": 0.4},
        {"free_to": 0.0},
        {"warn_at": 1.2},
        {"recall_share": 1.0},
        {"reserve": -1},
        {"parked_ram_bytes": -1},
    ],
)
def test_a_wrong_ceiling_is_named_with_its_value(wrong: dict[str, float]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(InvalidInput, match=str(value)):
        Budget(**{"max_tokens": 1000, name: value})  # type: ignore[arg-type]
