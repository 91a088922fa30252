wildcard_constraints:
    study=r"[a-z0-9_]+",
    name=r"[a-z0-9_]+",


rule made_from:
    # an empty file named by the hash of the inputs of a table, figure or report; the previous one is removed
    output:
        "results/studies/{study}/.made/{target}.{hash}",
    wildcard_constraints:
        target=r"(table|figure|report)-[a-z0-9_]+",
        hash=r"[0-9a-f]+",
    shell:
        "rm -f results/studies/{wildcards.study}/.made/{wildcards.target}.*; touch {output}"


rule table:
    input:
        runs=lambda wildcards: study(wildcards).awaited,
        made_from=lambda wildcards: study(wildcards).stamp("table", wildcards.name),
    output:
        "results/studies/{study}/tables/{name}.parquet",
    log:
        "logs/table/{study}-{name}.log",
    shell:
        "ddp-hpc table {wildcards.study} {wildcards.name} > {log} 2>&1"


rule figure:
    input:
        tables=lambda wildcards: study(wildcards).inputs_of_figure(wildcards.name),
        made_from=lambda wildcards: study(wildcards).stamp("figure", wildcards.name),
    output:
        "results/studies/{study}/figures/{name}.svg",
    log:
        "logs/figure/{study}-{name}.log",
    shell:
        "ddp-hpc figure {wildcards.study} {wildcards.name} > {log} 2>&1"


rule report:
    input:
        runs=lambda wildcards: study(wildcards).awaited,
        parts=lambda wildcards: study(wildcards).outputs[:-1],
        made_from=lambda wildcards: study(wildcards).stamp("report", "report"),
    output:
        "results/studies/{study}/report/index.html",
    log:
        "logs/report/{study}.log",
    shell:
        "ddp-hpc report {wildcards.study} > {log} 2>&1"
