"""How long a step takes at a world size that was not measured, how sure that is, and when it must not be said.

`measured` reduces the steps of a run to what the model needs, `step_model` fits the model and predicts, `trust` says
what it cannot predict, why, and what to run for it.
"""
