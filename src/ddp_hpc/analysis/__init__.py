"""From records to tables, figures, comparisons and the report; starts neither torch nor MPI."""
