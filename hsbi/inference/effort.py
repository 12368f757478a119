"""How much is spent on the training of a posterior, and what is spared where data sets are large.

Where draws are moved to the surrogates' own posterior afterwards, the networks only have to say where to look. Then
large data sets are seen without attention and for fewer steps. Locals need no more than a few sites at once anyway.
"""

import dataclasses

from hsbi.inference.batch import Stored, Synthetic
from hsbi.inference.posterior import FactorizedConfig, Posterior
from hsbi.inference.reweigh import can_reweigh
from hsbi.training import FitConfig

# Without attention a token costs about so many times less.
_CHEAPER = 4
# Fewer steps than this leave too little of the learning rate's warm-up and decay.
_MIN_STEPS = 300
# A batch for the locals has at least so many data sets, of fewer sites if need be: globals must vary in it.
_MIN_SETS = 32
# Unless so many data sets fit with all their sites.
_MIN_WHOLE = 4


def lighten(posterior: Posterior, num_tokens: int) -> Posterior:
    """Choose whether the observations of a site attend to each other, unless the configuration says.

    Args:
        posterior: The posterior without weights.
        num_tokens: Observations in a data set, padding included.
    """
    config = posterior.config
    if config.attention is not None:
        return posterior
    is_large = num_tokens * config.batch_size > config.batch_tokens
    attention = not (is_large and can_reweigh(posterior))
    tokens = config.batch_tokens if attention else _CHEAPER * config.batch_tokens
    return dataclasses.replace(posterior, config=dataclasses.replace(config, attention=attention, batch_tokens=tokens))


def shorten(plan: FitConfig, config: FactorizedConfig, num_tokens: int) -> FitConfig:
    """Train the globals for fewer steps where batches without attention are larger than they should be.

    Args:
        plan: How a stage is trained.
        config: Hyperparameters, with the choice of attention made.
        num_tokens: Observations in a data set, padding included.
    """
    share = config.batch_tokens / (num_tokens * config.num_sets(num_tokens, "global"))
    if config.attention or share >= 1.0:
        return plan
    steps = min(plan.num_steps, max(_MIN_STEPS, round(share * plan.num_steps)))
    epochs = max(1, steps // plan.steps_per_epoch)
    return dataclasses.replace(plan, num_steps=steps, epoch_steps=steps // epochs)


def single_out(
    source: Synthetic | Stored, config: FactorizedConfig, num_sites: int, num_tokens: int
) -> Synthetic | None:
    """Give a source of data sets with few sites for the locals, which see no other; None if it would spare nothing.

    Args:
        source: The source of whole data sets.
        config: Hyperparameters.
        num_sites: The most sites of a data set.
        num_tokens: Observations in a data set, padding included.
    """
    if not isinstance(source, Synthetic) or source.program.route != "resize":
        return None
    if source.program.structure.site_plate is None or _MIN_WHOLE * num_tokens <= config.local_tokens:
        return None
    number = min(num_sites, max(1, config.local_tokens * num_sites // (_MIN_SETS * num_tokens)))
    return dataclasses.replace(source, num_sites=(number, number), groups=None)
