"""Work in several real processes on gloo, and what each of them found."""

import torch

from trainers.world import launch


def together(folder, size, work, *arguments):
    """What `work(world, *arguments)` returns in each process, by rank. Nothing of it goes through the
    group.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def part(world):
        torch.set_num_threads(1)
        torch.save(work(world, *arguments), folder / f"{world.rank}.pt")

    launch(size, "cpu", part)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]
