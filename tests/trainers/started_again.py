"""A trainer that is started again: after kills, and with another number of processes."""

import json
import multiprocessing
import random
import time

from harnessgym.run_folder import write_json
from harnessgym.store import TraceStore
from tests.trainers.recorded_run import learner_of
from trainers import checkpoint
from trainers.learner import TrainerSettings


def train_with_kills(train, folder, kills, seed=3):
    """Run `train` on a run to its end, with so many SIGKILLs soon after a checkpoint; how many there were."""
    draw, fork, done = random.Random(seed), multiprocessing.get_context("fork"), 0
    while True:
        child = fork.Process(target=train, args=(TrainerSettings(run=folder.root),))
        before = checkpoint.steps(folder.checkpoints)
        child.start()
        while child.is_alive() and done < kills and checkpoint.steps(folder.checkpoints) == before:
            time.sleep(0.001)
        child.join(draw.uniform(0.0, 0.05) if done < kills else None)
        if child.exitcode is not None:
            assert child.exitcode == 0
            return done
        child.kill()
        child.join()
        done += 1


def after_stops(folder, stops):
    """The trainee when the trainer is started anew after each number of steps in `stops`."""
    for stop in stops:
        with TraceStore.open(folder.store_url()) as store:
            learner = learner_of(folder, store)
            while learner.step < stop:
                learner.train_step(list(learner.arriving()))
            learner.settle()
    return learner.trained_policy


def after_processes(train, folder, stops):
    """The newest checkpoint when `train` is run with (processes, steps), one after the other."""
    config = json.loads(folder.config_path.read_text())
    for processes, steps in stops:
        config["trainer"] |= {"processes": processes, "steps": steps}
        write_json(folder.config_path, config)
        train(TrainerSettings(run=folder.root))
    return checkpoint.load_newest(folder.checkpoints)
