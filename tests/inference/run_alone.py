"""An analysis from start to end, without the network: `python -m tests.inference.run_alone FOLDER`.

Inspection, a pool, a store, training, a saved estimator and its draws.
"""

import socket
import sys
from pathlib import Path
from typing import Any


def forbid_network() -> None:
    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        # Pools talk to their workers through local sockets and pipes.
        local = getattr(socket, "AF_UNIX", None)
        if event == "socket.getaddrinfo" or (event == "socket.connect" and arguments[0].family != local):
            raise RuntimeError(f"the network was used: {event} {arguments}")

    sys.addaudithook(watch)


def main() -> None:
    forbid_network()
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    import hsbi
    from tests.inference.conftest import BRIEF
    from tests.simulation.simulators import well

    def model(x: Any, y: Any = None) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", len(x)):
            numpyro.sample("y", hsbi.Simulator(well, mu, x, host=True, event_shape=(3,)), obs=y)

    folder, x = Path(sys.argv[1]), np.array([0.5, -1.0, 2.0])
    y = np.stack([np.full(3, 0.7), x, np.zeros(3)], axis=1)
    hsbi.inspect(model, x, y=y)
    direct = hsbi.Direct(
        model,
        num_simulations=120,
        num_samples=20,
        workers=1,
        store=folder / "store",
        posterior_config=hsbi.FactorizedConfig(width=8, batch_size=8, head=BRIEF, flow=BRIEF),
    )
    direct.run(jax.random.key(0), x, y=y)
    direct.save(folder / "saved.hsbi")
    loaded = hsbi.load(folder / "saved.hsbi", model)
    draws = loaded.sample(jax.random.key(1), x, y=y)
    loaded.print_summary()
    assert loaded.to_arviz().posterior["mu"].size == 20
    print(jax.default_backend(), len(hsbi.Store(folder / "store")), np.isfinite(draws["mu"]).all())


if __name__ == "__main__":
    main()
