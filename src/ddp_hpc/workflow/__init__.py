"""From a study to jobs: plan, targets for Snakemake, the driver, retries, status."""
