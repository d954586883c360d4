"""A client's privacy account: the epsilon is dp-accounting's own, no schedule exceeds a budget, and a file keeps it."""

import math
from pathlib import Path

import numpy as np
import pytest
from rotation import rotating

from hanse.base.errors import UserError
from hanse.wings.private.account import KEPT, AccountFile, PrivacyAccount, Release, noise_for, spent

dp = pytest.importorskip("dp_accounting")


def directly(releases: list[Release], delta: float) -> float:
    """The same releases one after another through dp-accounting's own default accountant."""
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    for one in releases:
        event = dp.GaussianDpEvent(one.noise)
        accountant.compose(event if one.rate == 1 else dp.PoissonSampledDpEvent(one.rate, event), one.steps)
    return float(accountant.get_epsilon(delta))


def counted(releases: list[Release]) -> tuple[tuple[Release, int], ...]:
    return PrivacyAccount(1.0, 0.5).charged(releases).releases


@pytest.mark.parametrize("seed", rotating(range(50), 10))
def test_epsilon_is_that_of_dp_accounting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    delta = 10 ** rng.uniform(-8, -2)
    if seed % 2:  # whole updates, of perhaps two levels of noise
        levels = rng.uniform(4, 20, rng.integers(1, 3))
        releases = [Release(float(n)) for n in levels for _ in range(rng.integers(1, 5))]
    else:  # DP-SGD, perhaps beside whole updates
        rate, noise, steps = float(rng.uniform(0.005, 0.3)), float(rng.uniform(1, 4)), int(rng.integers(1, 60))
        releases = [Release(noise, rate, steps)] * int(rng.integers(1, 4)) + [Release(9.0)] * int(rng.integers(0, 3))
    assert spent(counted(releases), delta) == pytest.approx(directly(releases, delta), rel=0.01, abs=1e-4)


def test_one_gaussian_is_the_analytic_one() -> None:
    # Balle and Wang (2018), theorem 8: delta(eps) = Phi(1/2s - eps s) - e^eps Phi(-1/2s - eps s)
    def normal(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    for noise, delta in ((1.1, 1e-5), (4.0, 1e-3)):
        eps = spent(((Release(noise), 1),), delta)
        a, b = 1 / (2 * noise), eps * noise
        assert normal(a - b) - math.exp(eps) * normal(-a - b) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("one", [Release(1.0), Release(1.0, 0.1, 5)])
def test_the_noise_that_a_budget_asks_for_is_enough_and_the_least(epsilon: float, one: Release) -> None:
    noise = noise_for(PrivacyAccount(epsilon, 1e-5), [one] * 6)
    cost = [
        spent(((Release(factor * noise, one.rate, one.steps), 6),), 1e-5) for factor in (1.0, 0.99)
    ]  # a percent less would be too little
    assert cost[0] <= epsilon < cost[1]


def test_a_budget_that_no_noise_meets() -> None:
    with pytest.raises(UserError, match="epsilon: 1e-05"):
        noise_for(PrivacyAccount(1e-5, 1e-15), [Release(1.0)] * 1000)


def test_no_schedule_with_kills_and_resumes_exceeds_a_budget(tmp_path: Path) -> None:
    """A thousand nodes that are asked at random, killed before or after what they wrote, and asked again."""
    file = AccountFile(tmp_path / "privacy.json")
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        budget = PrivacyAccount(float(rng.uniform(0.5, 10)), 1e-5)
        levels, left = [Release(float(n)) for n in rng.choice([1.0, 2.0, 3.0, 5.0], 2)], list[Release]()
        durable = seed < 10  # these through the disk
        now = budget
        if durable:
            file.write(budget)
        for _ in range(int(rng.integers(5, 25))):
            ask = [levels[int(rng.integers(2))]] * int(rng.integers(1, 3))
            now = file.read() or budget if durable else now
            killed = rng.random()
            if not now.affords(ask) or killed < 0.2:  # killed in training: nothing was written, nothing left
                continue
            digest = f"{len(ask)} {ask[0].noise} {rng.integers(6)}"  # sometimes the very bytes of an answer before
            new = digest not in now.sent
            now = now.charged(ask, digest)
            if durable:
                file.write(now)
            if killed < 0.4:  # killed before the answer left: charged all the same
                continue
            left += ask if new else []
        assert spent(counted(left), 1e-5) <= now.spent + 1e-9
        assert now.spent <= budget.epsilon


def test_the_same_bytes_again_cost_nothing_and_only_the_last_are_remembered() -> None:
    account = PrivacyAccount(100.0, 1e-5).charged([Release(5.0)], "a")
    assert account.charged([Release(5.0)], "a") is account
    assert account.charged([Release(5.0)], "b").releases == ((Release(5.0), 2),)
    for n in range(KEPT):
        account = account.charged([Release(50.0)], f"later {n}")
    again = account.charged([Release(5.0)], "a")  # forgotten, and charged again: never too little
    assert dict(again.releases)[Release(5.0)] == 2


def test_a_file_keeps_an_account_as_it_is(tmp_path: Path) -> None:
    file = AccountFile(tmp_path / "own" / "privacy.json")
    assert file.read() is None
    account = PrivacyAccount(8.0, 1e-5, "sample").charged([Release(1.0, 0.1, 5), Release(2.5)], "0a")
    with file.held():
        file.write(account)
    assert file.read() == account
    assert file.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", '{"epsilon": 8}', '{"epsilon": -1, "delta": 1e-5}', '{"epsilon": 8, "delta": 1}',
     '{"epsilon": 8, "delta": 1e-5, "releases": [[{"noise": 0}, 1]]}',
     '{"epsilon": 8, "delta": 1e-5, "releases": [[{"noise": 1}, -3]]}'],
)  # fmt: skip
def test_a_damaged_file_is_no_empty_account(text: str, tmp_path: Path) -> None:
    path = tmp_path / "privacy.json"
    path.write_text(text)
    with pytest.raises(UserError, match="account cannot"):
        AccountFile(path).read()
