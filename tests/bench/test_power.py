import sys

import numpy as np

from hsbi.bench import power


def test_estimators_have_the_moments_they_claim():
    rng, y = np.random.default_rng(0), np.array([1.5])
    # theta | y ~ N(0.8 y, 0.2).
    expected = {
        "exact": (1.2, 0.2**0.5),
        "prior": (0.0, 1.0),
        "mean + 0.5 sd": (1.2 + 0.5 * 0.2**0.5, 0.2**0.5),
        "sd x 0.6": (1.2, 0.6 * 0.2**0.5),
        "sd x 1.6": (1.2, 1.6 * 0.2**0.5),
    }
    assert power.ESTIMATORS.keys() == expected.keys()
    for name, (mean, sd) in expected.items():
        draws = power.ESTIMATORS[name](rng, y, 20_000)
        # Four standard errors of 20,000 draws, relative to the sd.
        assert abs(draws.mean() - mean) < 0.03 * sd
        assert abs(draws.std() / sd - 1) < 0.03


def test_table_shows_level_and_power(monkeypatch, capsys):
    options = ["--datasets", "60", "--repeats", "30", "--sample-repeats", "0"]
    monkeypatch.setattr(sys, "argv", ["power", *options])
    power.main()
    rows = {line[:16].strip(): line[16:].split() for line in capsys.readouterr().out.splitlines()}
    shares = {name: [float(value) for value in rows[name]] for name in power.ESTIMATORS}
    assert max(shares["exact"]) <= 0.2
    # Ranks of the parameter and random references pass the prior; what depends on the data does not.
    assert max(shares["prior"][0], shares["prior"][2]) <= 0.2
    assert min(shares["prior"][1], shares["prior"][3]) == 1.0
    assert min(shares["sd x 0.6"]) > 0.5
