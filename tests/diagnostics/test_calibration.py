"""Calibration as a function of the number of sites."""

import jax
import numpy as np

from hsbi.diagnostics.calibration import weigh_sizes
from hsbi.diagnostics.levels import check_globals, check_locals
from hsbi.diagnostics.verdict import judge
from tests.diagnostics import conjugate

NUM_SETS, MAX_SITES = 300, 12


def check_levels(ignored_by="", seed=0):
    """Check an exact posterior, of which one level ignores the data of data sets with 4 sites or fewer."""
    rng = np.random.default_rng(seed)
    sizes = np.arange(NUM_SETS) % MAX_SITES + 1
    found = {}
    for name, width in (("globals", 1), ("locals", MAX_SITES)):
        truths, draws, y = conjugate.simulate(rng, "exact", NUM_SETS * width, 50)
        ignored = conjugate.posterior(rng, "prior", y, 50)
        few = np.repeat(sizes <= 4, width) & (name == ignored_by)
        draws = np.where(few[:, None], ignored, draws)
        truths, y = truths.reshape(NUM_SETS, width, 1), y.reshape(NUM_SETS, width, 1)
        draws = np.moveaxis(draws.reshape(NUM_SETS, width, 50, 1), 2, 1)
        key = jax.random.key(seed)
        if name == "globals":
            found[name] = check_globals(key, truths[:, 0], draws[:, :, 0], y[:, 0], columns=["mu"])
        else:
            mask = np.arange(MAX_SITES) < sizes[:, None]
            found[name] = check_locals(key, truths, draws, y, columns=["theta"], mask=mask)
    return found, sizes


def test_every_level_is_weighed_in_groups_that_cover_all_sizes():
    evidence = weigh_sizes(*check_levels())
    names = [one.name for one in evidence]
    assert len(names) == 12
    assert names[:4] == [
        "mu with 1 to 4 sites",
        "distance of globals to a guess with 1 to 4 sites",
        "theta with 1 to 4 sites",
        "distance of locals to a guess with 1 to 4 sites",
    ]
    assert names[-1].endswith("to 12 sites")
    verdicts = [judge(weigh_sizes(*check_levels(seed=seed)), 6)[0] for seed in range(20)]
    assert verdicts.count("trusted") >= 19


def test_a_level_that_ignores_small_data_sets_is_found_there():
    for level, column in (("globals", "mu"), ("locals", "theta")):
        p_values = {one.name: one.p_value for one in weigh_sizes(*check_levels(level))}
        small = p_values.pop(f"distance of {level} to a guess with 1 to 4 sites")
        assert small < 1e-6
        # Ranks of the prior are uniform, and larger data sets are right.
        assert p_values[f"{column} with 1 to 4 sites"] > 1e-4
        assert min(p_values.values()) > 1e-4


def test_one_number_of_sites_has_no_groups():
    assert weigh_sizes(check_levels()[0], np.full(NUM_SETS, 5)) == []
