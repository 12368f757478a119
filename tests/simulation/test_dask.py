"""A Dask cluster gives what one process gives."""

import os
import signal

import pytest

from hsbi.model.simulate import simulate_sites
from hsbi.simulation import Ledger
from hsbi.simulation.execution import Execution
from tests.simulation.conftest import KEY, NUM
from tests.simulation.test_execution import equal

distributed = pytest.importorskip("distributed")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_what_one_process_gives(program, switch, reference, above, tmp_path):
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
        ) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        switch.set("well", tally=tmp_path / "tally")
        ledger = Ledger()
        equal(simulate_sites(program, KEY, NUM, ledger=ledger, caller=Execution(executor=executor)), reference)
        assert ledger.total == (tmp_path / "tally").stat().st_size == NUM
        # A worker is lost on the way, and the cluster replaces it.
        pids = list(client.run(os.getpid).values())
        switch.set("slow", seconds=0.01)
        killed = []

        def kill(done, total, note):
            if done > 20 and not killed:
                killed.append(pids[0])
                os.kill(pids[0], signal.SIGKILL)

        equal(simulate_sites(program, KEY, NUM, caller=Execution(executor=executor), progress=kill), reference)
        assert killed
