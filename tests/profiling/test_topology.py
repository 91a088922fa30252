"""What Linux shows of a node, from files as they are on two clusters."""

from ddp_hpc.profiling import topology


def files(root, **texts):
    for path, text in texts.items():
        file = root / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def test_the_numa_nodes_of_cores(tmp_path):
    files(tmp_path, devices__system__node__node0__cpulist="0-3,8-11", devices__system__node__node1__cpulist="4-7,12-15")
    assert topology.numa_nodes({2, 9}, tmp_path) == [0]
    assert topology.numa_nodes({3, 12}, tmp_path) == [0, 1]
    assert topology.numa_nodes({0}, tmp_path / "elsewhere") is None


def test_an_adapter_is_listed_once_by_its_fastest_use_and_only_if_its_link_is_up(tmp_path):
    ib, net = "class__infiniband__", "class__net__"
    files(tmp_path, **{
        f"{ib}mlx5_0__ports__1__state": "4: ACTIVE", f"{ib}mlx5_0__ports__1__rate": "400 Gb/sec (4X NDR)",
        f"{ib}mlx5_0__ports__1__link_layer": "InfiniBand", f"{ib}mlx5_0__device__numa_node": "1",
        f"{ib}mlx5_1__ports__1__state": "1: DOWN", f"{ib}mlx5_1__ports__1__rate": "10 Gb/sec (4X SDR)",
        f"{ib}mlx5_2__ports__1__state": "4: ACTIVE", f"{ib}mlx5_2__ports__1__rate": "100 Gb/sec (4X EDR)",
        f"{ib}mlx5_2__ports__1__link_layer": "Ethernet",
        f"{net}ib0__type": "32", f"{net}ib0__operstate": "up", f"{net}ib0__device__numa_node": "1",
        f"{net}ens2__type": "1", f"{net}ens2__operstate": "up", f"{net}ens2__device__infiniband__x": "",
        f"{net}eno1__type": "1", f"{net}eno1__operstate": "up", f"{net}eno1__speed": "25000",
        f"{net}eno1__device__numa_node": "-1",
        f"{net}eno2__type": "1", f"{net}eno2__operstate": "down", f"{net}eno2__device__numa_node": "0",
        f"{net}lo__type": "772", f"{net}lo__operstate": "unknown",
    })  # fmt: skip
    assert topology.adapters(tmp_path) == [
        {"name": "mlx5_0", "kind": "InfiniBand", "gbit_per_s": 400.0, "numa_node": 1},
        {"name": "mlx5_2", "kind": "RoCE", "gbit_per_s": 100.0, "numa_node": None},
        {"name": "eno1", "kind": "Ethernet", "gbit_per_s": 25.0, "numa_node": None},
    ]
    assert topology.adapters(tmp_path / "elsewhere") is None
