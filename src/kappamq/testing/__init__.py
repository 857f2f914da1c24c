"""A whole cluster inside of a test process, on free ports of the loopback address.

    from kappamq.testing import start_cluster

    with start_cluster() as cluster:
        producer = kappamq.Producer(cluster.nameserver, group="test")

The pytest fixtures `kappamq_cluster` and `kappamq_nameserver` come with the package.
"""

from kappamq.testing.cluster import ClusterAddresses, RunningCluster, run_cluster, start_cluster

__all__ = ["ClusterAddresses", "RunningCluster", "run_cluster", "start_cluster"]
