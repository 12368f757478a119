"""Changes of the joint posterior: what is generated is told by flow time, and configurations survive saving."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import hsbi
from hsbi.inference.codec import Decoder, Encoder
from hsbi.inference.joint import token_times
from hsbi.inference.saved import _CLASSES

ABLATIONS = [{"grouping": False}, {"attention": False}, {"shared": True}, {"num_ode_steps": 16}]


def test_tokens_that_are_given_have_arrived():
    target = np.array([True, False, True])
    found = token_times(jnp.array([0.2, 0.7]), target, (2, 3))
    np.testing.assert_allclose(found, [[0.2, 1.0, 0.2], [0.7, 1.0, 0.7]])
    np.testing.assert_allclose(token_times(jnp.asarray(0.3), target, (4, 3)), [[0.3, 1.0, 0.3]] * 4)


@pytest.mark.parametrize("change", ABLATIONS, ids=str)
def test_ablations_are_kept_by_files(change):
    config = dataclasses.replace(hsbi.JointConfig(), **change)
    assert config != hsbi.JointConfig()
    encoder = Encoder(_CLASSES)
    assert Decoder(_CLASSES, encoder.arrays).decode(encoder.encode(config)) == config


def test_a_shared_network_without_attention_is_refused():
    with pytest.raises(ValueError, match="shared=True and attention=False"):
        hsbi.JointConfig(shared=True, attention=False)
