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
    priority: lambda wildcards: TARGETS.priority[wildcards.run]
    threads: 1
    resources:
        slot=1,  # one training at a time where the profile says so: timings must not share the machine
        runtime=config.get("runtime_min", 60),
        tasks=world_size,
        mem_mb=lambda wildcards: 1500 * world_size(wildcards),
        # the ranks come from the spec, never from `tasks` or `threads`: Snakemake scales those down
        mpi=lambda wildcards: f"{LAUNCHER} -n {world_size(wildcards)}" if world_size(wildcards) > 1 else "",
    shell:
        # exec: the supervisor must be the direct child of the driver, to notice when that dies
        "exec ddp-hpc train {wildcards.run} --launcher={resources.mpi:q} --time-limit-min {resources.runtime}"
        " > {log} 2>&1"
