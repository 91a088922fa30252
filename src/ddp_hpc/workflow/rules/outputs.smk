wildcard_constraints:
    study=r"[a-z0-9_]+",
    number=r"[0-9]+",


rule outputs:
    # one process for all that is out of date: records are read once, and what fails, fails alone. The output says only
    # that all went well; see `StudyTargets.making`
    input:
        lambda wildcards: TARGETS.studies[wildcards.study].awaited,
    output:
        "results/studies/{study}/.made/{number}",
    log:
        "logs/outputs/{study}-{number}.log",
    shell:
        "(code=0; ddp-hpc report {wildcards.study} --all >/dev/null || code=$?;"
        " rm -f results/studies/{wildcards.study}/.made/[0-9]*; touch {output}; exit $code) > {log} 2>&1"
