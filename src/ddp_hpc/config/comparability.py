"""Which fields of their specs must agree for two runs to be compared. It depends on the question; here are all.

Each set names the columns (`RunSpec.columns`) in which two runs may differ; in all others they agree.
"""

from collections.abc import Collection

from ddp_hpc.config.spec import SPEC_COLUMNS

EXCHANGE = frozenset({"exchange", "exchange_options"})
RANKS = frozenset({"world_size", "placement", "ranks_per_node"})  # one rank is placed as it is placed
RATE = frozenset({"learning_rate", "learning_rate_scaling", "base_batch_size", "learning_rate_warm_up_steps"})
OFF_THE_CLOCK = frozenset({"evaluate_every_steps", "noise_scale_every_steps"})  # between steps: in the time of none

# Does a step of both do the same work? Such runs share a row of a table of step times.
SAME_WORK = RATE | OFF_THE_CLOCK | {"seed", "budget"}

# Do both take the same time, whole? Such a run tells what another one will ask of Slurm.
SAME_TIME = RATE | {"momentum", "weight_decay", "seed"}

# Do both reach the same losses? An exchange that is exact changes none.
SAME_LOSSES = EXCHANGE | {"noise_scale_every_steps"}

# Which of two exchanges is faster, in steps of the same round?
FASTER_EXCHANGE = EXCHANGE | OFF_THE_CLOCK | {"budget"}

# Against which run of one rank without exchange is it compared?
# - a step with an exchange, to tell what of it is exposed, and where its time goes
EXPOSED_BASELINE = EXCHANGE | RANKS | OFF_THE_CLOCK | {"budget"}
# - the mean step, over placements and learning rates
SYNCHRONISATION_BASELINE = EXCHANGE | RANKS | (SAME_WORK - {"seed"})
# - the rate of samples per second, at the same batch per rank (weak scaling)
EFFICIENCY_BASELINE = FASTER_EXCHANGE | RANKS
# - the whole training; of several seeds, runs pair by seed then
SPEEDUP_BASELINE = EXCHANGE | RANKS | OFF_THE_CLOCK | {"seed", "budget"}

# By table: its column that is empty without a baseline, all of them if none is named, and in what that may differ
BASELINES = {
    "exchanges": ("weak_efficiency", EFFICIENCY_BASELINE),
    "exposed": ("by_difference_s", EXPOSED_BASELINE),
    "scaling": ("", SPEEDUP_BASELINE - {"seed"}),
    "synchronisation": ("over_none", SYNCHRONISATION_BASELINE),
    "waterfall": ("", EXPOSED_BASELINE),
}


def agreeing(may_differ: Collection[str]) -> list[str]:
    """Return the columns of a spec in which runs agree that may differ in these, in the order of the record."""
    return [name for name in SPEC_COLUMNS if name not in may_differ]
