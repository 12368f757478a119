import jax
import jax.numpy as jnp
import numpy as np

from hsbi.networks.densities import GlobalNet, add_linear
from hsbi.networks.encoders import SiteFeatures
from tests.networks.weights import quick, random_weights

SETS, SITES, DIM = 3, 5, 2


def test_an_added_linear_map_moves_locations_alone():
    rng = np.random.default_rng(0)
    static = jnp.asarray(rng.normal(size=(SETS, SITES, 4)), "float32")
    features = SiteFeatures(static, (), jnp.ones((SETS, SITES), bool))
    module = GlobalNet(DIM, width=8)
    weights = random_weights(module, features)
    context, before = quick(module.apply)(weights, features)
    change = jnp.asarray(rng.normal(size=(context.shape[-1] + 1, DIM)), "float32")
    same_context, after = quick(module.apply)(add_linear(weights, change), features)
    np.testing.assert_array_equal(same_context, context)
    np.testing.assert_array_equal(after.log_scale, before.log_scale)
    np.testing.assert_array_equal(after.lower, before.lower)
    np.testing.assert_allclose(after.loc, before.loc + context @ change[:-1] + change[-1:], rtol=1e-4, atol=1e-4)
    # The weights that were given are not changed.
    assert jax.tree.all(jax.tree.map(jnp.array_equal, quick(module.apply)(weights, features)[1], before))
