"""Of processes that wait for each other, who is waited for has ended before who waits gives up."""

from ddp_hpc.system.deadlines import (
    BEAT_S,
    CANCELLED_S,
    EARLY_S,
    GRACE_S,
    KILL_S,
    KILL_WAIT_S,
    LATE_S,
    LEAVE_S,
    LEAVE_WARNED_S,
    LOOK_S,
    NEAR_S,
    NODE_S,
    PEER_S,
    PLUGIN_LOOKS_S,
    PREDECESSOR_S,
    QUEUE_KEPT_S,
    QUIET_S,
    SILENT_S,
    STUCK_S,
    WARNED_S,
    WORKFLOW_S,
)


def test_ranks_that_were_told_have_left_before_they_are_killed():
    assert LEAVE_WARNED_S + KILL_S < WARNED_S
    assert LEAVE_S + KILL_S < KILL_WAIT_S


def test_a_warning_of_slurm_is_taken_to_be_one_though_it_comes_early():
    assert WARNED_S + EARLY_S < NEAR_S


def test_whoever_waits_for_a_supervisor_waits_until_it_has_ended_its_ranks():
    assert LEAVE_S + KILL_S < PREDECESSOR_S
    assert LEAVE_S + KILL_S < WORKFLOW_S
    assert KILL_WAIT_S < CANCELLED_S


def test_the_rank_that_has_died_speaks_before_those_that_lost_it_and_all_before_the_launcher_is_ended():
    assert PEER_S < GRACE_S


def test_srun_has_said_that_a_node_is_gone_before_it_is_ended():
    assert KILL_WAIT_S + 2 < NODE_S


def test_a_supervisor_that_lives_is_not_taken_for_dead():
    assert 2 * BEAT_S + LATE_S < SILENT_S


def test_a_workflow_is_not_ended_before_it_can_have_noticed():
    assert QUEUE_KEPT_S <= LOOK_S < QUIET_S
    assert PLUGIN_LOOKS_S + LATE_S < STUCK_S
