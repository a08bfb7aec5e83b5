"""A verifier that runs commands of the task's metadata where it grades, and says what they printed."""

from harnessgym.task import Grade


class Looking:
    async def verify(self, task, workspace, place):
        async with place() as sandbox:
            done = await sandbox.exec(["sh", "-c", task.metadata["look"]])
        said = done.stdout.decode() + done.stderr.decode()
        exported = sorted(str(path.relative_to(workspace)) for path in workspace.rglob("*"))
        return Grade({"reward": float(done.ok)}, evidence={"said": said, "exported": exported})


looking = Looking()
