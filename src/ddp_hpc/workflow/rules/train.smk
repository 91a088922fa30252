wildcard_constraints:
    run=r"[^/]+",


rule data:
    output:
        "results/data/{dataset}/archive.sha256",
    log:
        "logs/data/{dataset}.log",
    shell:
        "ddp-hpc data {wildcards.dataset} > {log} 2>&1"


rule train:
    input:
        lambda wildcards: ancient(TARGETS.data_for(wildcards.run)),
    output:
        "results/runs/{run}/run.parquet",  # {run} holds the hashes of spec and code
    log:
        "logs/train/{run}.log",
    priority: lambda wildcards: TARGETS.priority.get(wildcards.run, 0)  # a job sees only its own run
    threads: 1
    # `slot`: one training at a time if the profile says so, so that timings do not share the machine. The others are time
    # limit, launcher and, with a machine file, the request to Slurm; they take ranks from the spec, because Snakemake
    # scales `tasks` and `threads` down
    resources:
        **ddp.resources(TARGETS, in_a_job=not workflow.is_main_process),
        slot=ddp.slots(TARGETS),
    params:
        faults=config.get("faults", ""),
        checkpoint_every_s=ddp.checkpoint_every_s(TARGETS),
    shell:
        # exec: the supervisor must be the direct child of the driver, to notice when that dies
        "exec ddp-hpc train {wildcards.run} --launcher={resources.mpi:q} --time-limit-min {resources.runtime}"
        " --checkpoint-every-s {params.checkpoint_every_s} --faults={params.faults:q} > {log} 2>&1"
