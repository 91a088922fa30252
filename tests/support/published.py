"""The numbers of SHM-Learn-Dist as our tables would have them, and its figures 5.1 to 5.8 redrawn from them.

`python tests/support/published.py` draws them into results/published/shm_learn_dist/.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from ddp_hpc.analysis.figures import _style, heat_map, loss_areas
from ddp_hpc.analysis.figures._save import save
from ddp_hpc.analysis.tables._winner_selection import exclusions, pick_winners, points
from ddp_hpc.config.study import Study

FOLDER = Path(__file__).parents[2] / "results" / "published" / "shm_learn_dist"
SEARCH = ["batch_size", "learning_rate"]
IMAGES = 307_200


def searched(loss_threshold):
    """Return the points of the search, and their winners by our rule."""
    published = pd.read_csv(FOLDER / "loss_areas.csv")
    finished = published["finished"] == 1
    runs = pd.DataFrame(
        {
            "run": published.index.astype(str),
            "exchange": np.where(published["workers"] == 1, "none", "parameter_server"),
            "world_size": published["workers"],
            "batch_size": published["batch_size"],
            "learning_rate": published["learning_rate"],
            "status": np.where(finished, "ok", "diverged"),
            "samples_asked": IMAGES,
            "samples_seen": np.where(finished, IMAGES, 0),
            # published is only whether a run comes down to 1.8, and the order of those that do
            "min_loss": np.where(
                published["min_loss_le_1p8"] == 1, 1.7 + published["rank_by_min_loss_among_survivors"] / 1000, np.inf
            ),
            "loss_area_loss_s": published["loss_area_loss_seconds"],
            "oversubscribed": False,
        }
    )
    runs["excluded"] = exclusions(runs, loss_threshold)
    found = points(runs, ["exchange", "world_size"], SEARCH, lambda run: None)
    return found, pick_winners(found, ["exchange", "world_size"], SEARCH, 0.01)


def figures():
    """Return figures 5.5 to 5.8 and 5.1 to 5.4 by name, drawn; within `style()`."""
    found, won = searched(1.8)
    areas = found.assign(excluded=found["excluded"].replace("", None), standard_error_loss_s=np.nan)
    tables = {"areas": areas.assign(slow_steps_share=np.nan), "winners": won}
    study = Study(name="shm_learn_dist")
    return {name: module.draw(tables, study, "") for name, module in FIGURES.items()}


FIGURES = {"heat_map": heat_map, "loss_areas": loss_areas}

if __name__ == "__main__":
    with _style.style():
        for name, figure in figures().items():
            save(figure, FOLDER, name, f"SHM-Learn-Dist (2017): {FIGURES[name].CAPTION}")
            for form in ("svg", "pdf", "txt", "tex"):
                (FOLDER / f"{name}.{form}").unlink()
