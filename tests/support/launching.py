"""How tests start ranks."""

# Ranks that wait leave their cores to those that compute, of this test and of others beside it; else each takes most of
# a core, even if it yields that. Only Open MPI reads this.
SLEEPING_WAITS = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
    "OMPI_MCA_threads_pthreads_nanosleep_time": "100000",
}

# what Open MPI needs to run as root and with more ranks than cores; other MPIs do not read these
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_btl": "^ofi",
    "PRTE_MCA_rmaps_default_mapping_policy": ":OVERSUBSCRIBE",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMP_NUM_THREADS": "1",
    **SLEEPING_WAITS,
}
