"""The table of what each rank had."""

from ddp_hpc.analysis.report.rank_seats import MOST, seats


def rank(number, cores=(0, 1), **facts):
    return {"rank": number, "host": "n1", "core_set": list(cores), **facts}


def test_a_table_has_what_is_known_of_ranks_and_no_empty_columns():
    gpu = {"name": "A100", "pcie_generation": 1, "pcie_generation_max": 4, "pcie_width": 16, "nvlinks": 0}
    adapters = [{"name": "mlx5_0", "kind": "InfiniBand", "gbit_per_s": 400.0, "numa_node": 1}]
    (table,) = seats([{"ranks": [rank(0, (0, 1, 2, 8), gpu=gpu, adapters=adapters), rank(1, (9,), gpu=None)]}])
    assert table.columns == ["rank", "host", "cores", "GPU", "PCIe", "NVLinks", "network"]
    assert table.rows == [
        ["0", "n1", "0-2, 8", "A100", "4.0 x16", "0", "mlx5_0 (InfiniBand 400 Gbit/s, NUMA 1)"],
        ["1", "n1", "9", "", "", "", ""],
    ]


def test_there_is_one_table_for_each_world_size_as_in_most_of_its_runs():
    one, other, two = [rank(0)], [rank(0, (1,))], [rank(0), rank(1)]
    found = seats([{"ranks": ranks} for ranks in (one, other, two, other)] + [{}])
    assert [(table.world_size, table.alike, table.runs) for table in found] == [(1, 2, 3), (2, 1, 1)]
    assert found[0].rows == [["0", "n1", "1"]]


def test_of_very_many_ranks_the_first_are_listed():
    (table,) = seats([{"ranks": [rank(number) for number in range(MOST + 5)]}])
    assert (table.world_size, len(table.rows)) == (MOST + 5, MOST)
