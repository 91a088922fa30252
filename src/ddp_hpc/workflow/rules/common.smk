from ddp_hpc.slurm import job_environment
from ddp_hpc.workflow import snakefile as ddp

TARGETS = ddp.targets(config, in_a_job=not workflow.is_main_process)

if not workflow.is_main_process:
    job_environment.keep()  # before the plugin removes SLURM_*


def settle():
    """Some run has failed: make tables, figures and pages from what there is."""
    ddp.settle(config)
