"""Declaration of the cluster: an executor of tasks, processes that draw for a server, and a server for one command."""

EXECUTORS = {
    "tasks": "olivelike.extras.cluster.cluster_executor:ClusterExecutor",
    "pictures": "olivelike.extras.cluster.drawing_cluster:DrawingCluster",
    "command": "olivelike.extras.cluster.cluster_server:cluster_server",
}
