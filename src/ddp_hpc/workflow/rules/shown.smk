# What `snakemake --report report.zip` shows of a study in which nothing is missing and nothing out of date. `outputs` has
# made these files; so the commands below run only if somebody forces them.
rule table:
    output:
        report(
            "results/studies/{study}/tables/{table}.csv",
            caption="caption.rst",
            category="{study}",
            subcategory="Tables",
            labels={"table": "{table}"},
        ),
    params:
        caption=lambda wildcards: ddp.caption("table", wildcards.study, wildcards.table),
    shell:
        "ddp-hpc table {wildcards.study} {wildcards.table}"


rule figure:
    output:
        report(
            "results/studies/{study}/figures/{figure}.svg",
            caption="caption.rst",
            category="{study}",
            subcategory="Figures",
            labels={"figure": "{figure}"},
        ),
    params:
        caption=lambda wildcards: ddp.caption("figure", wildcards.study, wildcards.figure),
    shell:
        "ddp-hpc figure {wildcards.study} {wildcards.figure}"


rule page:
    output:
        report(
            "results/studies/{study}/report/index.html",
            caption="caption.rst",
            category="{study}",
            subcategory="Page",
            labels={"page": "all results on one page"},
        ),
    params:
        caption=lambda wildcards: ddp.caption("report", wildcards.study, "report"),
    shell:
        "ddp-hpc report {wildcards.study}"
