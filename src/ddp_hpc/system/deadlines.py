"""How long processes wait for each other, in seconds. Each stands beside those that it must be longer or shorter than.

tests/system/test_deadlines.py holds the inequalities.
"""

# A job is about to end. Slurm kills half a minute (KillWait) after the SIGTERM with which a time limit, a preemption or
# `scancel` begins; it may send the earlier warning up to a minute before it is due.
KILL_WAIT_S = 30.0
EARLY_S = 60.0
WARNED_S = 60  # so long before its job's end Slurm sends a rank SIGUSR1, as a supervisor does before its own time limit
AHEAD = 0.1  # but that at most such a part of the limit ahead
NEAR_S, NEAR = 300.0, 0.25  # a SIGUSR1 so long before that limit, or such a part of it, is taken to be because of it

# The ranks leave a checkpoint and end; whoever has not by then is killed.
LEAVE_WARNED_S = 55.0  # after SIGUSR1
LEAVE_S = 20.0  # after SIGTERM, SIGINT or SIGHUP
KILL_S = 3.0  # between asking processes to end and killing them
PREDECESSOR_S = 30.0  # how long a supervisor waits for another on its host, whose driver has gone
WORKFLOW_S = 40.0  # how long a workflow may take to end with its local trainings
CANCELLED_S = 60.0  # how long cancelled jobs may take to leave the queue

# A rank has failed.
PEER_S = 1.0  # so long a rank that lost another waits: the watchdog of that one speaks first
GRACE_S = 15.0  # how long the launcher may take to end after that, or once all are through
NODE_S = 40.0  # srun, if a node may have gone: it waits KillWait and 2 s for its ranks, then says so

# A supervisor lives.
BEAT_S = 20.0  # how often it gives a sign of life
LATE_S = 60.0  # how late another node may see a file, or its date
SILENT_S = 180.0  # after so long without a sign it may be dead

# A driver looks at the queue.
QUEUE_KEPT_S = 5.0  # how long an answer of squeue is good enough
LOOK_S = 5.0  # how often it looks whether its workflow has become pointless
QUIET_S = 8.0  # with no job left and nothing to wait for, a pass is over after so long
PLUGIN_LOOKS_S = 180.0  # how rarely Snakemake's plugin looks, once nothing has ended for a while
STUCK_S = 420.0  # a workflow that waits for so long while no job is there has lost track of them
