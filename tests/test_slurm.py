"""A real SLURM: the scripts of docs/jobs.md and docs/train.md, cancelled, signalled and requeued halfway,
and the tutorial on SLURM.

One controller, one node and one munge daemon, started by hand on loopback and stopped at the end; all
of their state is in a temporary folder.
"""

import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from lmkcli.data.collection import Shard
from lmkcli.store import parts
from lmkcli.store.vectors import Vectors
from tests import forked, tiny, tutorials

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
PATIENCE = 300.0  # seconds; generous, for a busy machine

CONF = """
ClusterName=lmk
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
MessageTimeout=60
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def waited(what: str, done: Callable[[], object], explain: Callable[[], str]) -> None:
    """Until `done`; fails with an explanation when it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, f"waited in vain for {what}\n{explain()}"
        time.sleep(0.1)


class Cluster:
    """The three daemons and a shell that can talk to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host = socket.gethostname().split(".")[0]
        (self.folder / "slurm.conf").write_text(
            CONF.format(host=host, ports=free_ports(2), user=getpass.getuser(), folder=self.folder)
        )
        files = ("socket", "pid-file", "seed-file", "log-file")
        places = [f"--{name}={self.folder}/munge.{name.split('-')[0]}" for name in files]
        self._daemon("munged", "--foreground", "--force", f"--key-file={key}", *places)
        waited("munged", (self.folder / "munge.socket").exists, self.logs)
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D")
        waited("the node", lambda: "idle" in self.run("sinfo -h -o %T", check=False), self.logs)

    def cancel(self) -> None:
        """Stop all jobs, and wait until they have ended."""
        self.run(f"scancel --user={getpass.getuser()}", check=False)
        waited("the end of all jobs", lambda: not self.jobs(), self.logs)

    def _daemon(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.out", "wb") as log:
            started = subprocess.Popen([name, *words], stdout=log, stderr=log, env=self.env)
        self._daemons.append(started)

    def stop(self) -> None:
        """Stop the jobs, then the daemons in reverse order of their start."""
        if len(self._daemons) > 1:
            self.cancel()
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def run(self, line: str, check: bool = True) -> str:
        """What a shell line prints."""
        done = subprocess.run(
            line, shell=True, env=self.env, cwd=self.folder, capture_output=True, text=True
        )
        assert not check or done.returncode == 0, done.stderr + self.logs()
        return done.stdout

    def jobs(self) -> list[str]:
        """Every array task that is not over, as job_task."""
        return self.run("squeue -h -r -o %i", check=False).split()

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for pattern in ("*.out", "*.log")
            for path in sorted(self.folder.glob(pattern))
        )


@pytest.fixture(scope="module")
def daemons() -> Iterator[Cluster]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        message = f"SLURM IS NOT TESTED: there is no {', '.join(missing)} (apt-get install slurm-wlm munge)"
        warnings.warn(message, stacklevel=2)
        pytest.skip(message)
    folder = Path(tempfile.mkdtemp(prefix="lmk-slurm-"))  # the path of a socket must be short
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(daemons: Cluster) -> Iterator[Cluster]:
    """The one cluster of all tests, with the environment that it was started with and no job."""
    env = daemons.env
    daemons.env = {**env}
    yield daemons
    daemons.env = env
    daemons.cancel()


def script(page: str = "jobs.md") -> str:
    """The batch script of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return next(b for b in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) if "#SBATCH" in b)


def collection() -> str:
    """scifact if it is there, else the standard library."""
    scifact = ROOT.parent / "shared" / "data" / "scifact"
    return str(scifact) if scifact.is_dir() else "stdlib/functions"


def test_an_array_whose_tasks_are_stopped_in_the_middle_equals_one_process(
    cluster: Cluster, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    vectors, whole = tmp_path / "vectors", tmp_path / "whole"
    lmk = forked.program(tmp_path / "bin", pause=0.5)
    job = cluster.folder / "job.sh"
    job.write_text(script())
    settings = {"DTYPE": "fp32", "STORE_DTYPE": "fp32", "BATCH_TOKENS": "2048"}
    cluster.env |= {f"LMK_ENCODE_{name}": value for name, value in settings.items()} | {
        "COLLECTION": collection(),
        "MODEL": str(tiny_model("bert")),
        "VECTORS": str(vectors),
        "PATH": f"{lmk.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }

    def lives(task: int) -> Callable[[], bool]:
        """Whether a task has written something and is not done."""
        shard = Shard(task, 8)
        return lambda: any(name.shard == shard for name in parts.list_parts(vectors))

    array = cluster.run("sbatch --parsable job.sh").strip()
    waited("task 1", lives(1), cluster.logs)
    cluster.run(f"scancel {array}_1")
    waited("task 3", lives(3), cluster.logs)
    # As near the end of its time. scancel would send it again, also to the next life of the task.
    cluster.run(f"timeout 1 scancel --signal=USR1 {array}_3", check=False)
    waited("task 4", lives(4), cluster.logs)
    cluster.run(f"scontrol requeue {array}_4")  # as when it is preempted
    waited("the array", lambda: not cluster.jobs(), cluster.logs)

    assert parts.state(vectors, 8).unfinished == [1], cluster.logs()
    for task, name in ((3, "SIGUSR1"), (4, "SIGTERM")):
        log = (cluster.folder / f"encode-{task}.log").read_text()
        assert f"{name}: stopping once the work so far is written" in log
        assert "Exited with exit code 75" in log
    assert parts.covered_rows(parts.cover(parts.list_parts(vectors), Shard(1, 8))) > 0
    shown = cluster.run(f"{lmk} show {vectors}")
    assert "shards: 7 of 8 finished" in shown
    line = next(li for li in shown.splitlines() if "sbatch" in li).partition(": ")[2]
    assert line.startswith("sbatch --array=1 job.sh  # ")
    cluster.run(line)
    waited("the rest", lambda: not cluster.jobs(), cluster.logs)

    cluster.run(f'{lmk} encode "$COLLECTION" -m "$MODEL" -o {whole}')
    mine, theirs = Vectors(vectors), Vectors(whole)
    rows = np.arange(theirs.rows)
    assert mine.rows == theirs.rows > 1000
    assert mine.docs(rows) == theirs.docs(rows)
    assert mine.counts() == theirs.counts()
    assert mine.collection_digest() == theirs.collection_digest()
    np.testing.assert_allclose(mine.at(rows).vectors, theirs.at(rows).vectors, rtol=0, atol=1e-6)
    assert mine.dim == tiny.WIDTH
    assert not list((vectors / "parts").glob(".growing*"))


def test_a_training_of_two_tasks_that_is_stopped_queues_again_and_ends_as_one_process(
    cluster: Cluster, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """One task alone gets the signal; both stop at the same step."""
    pairs, model = tmp_path / "pairs.jsonl", tmp_path / "model"
    lines = [{"query": tiny.sentence(i, 4), "pos": [tiny.sentence(i, 12)]} for i in range(80)]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    lmk = forked.program(tmp_path / "bin")
    job = cluster.folder / "train.sh"
    words = "--batch-size 256 --steps 5000"
    quick = "--batch-size 8 --steps 60 --dtype fp32 --device cpu --lr 1e-3 --log-every 1"
    text = script("train.md").replace(words, quick)
    assert quick in text
    job.write_text(text)
    cluster.env |= {
        "EXAMPLES": str(pairs), "BASE": str(tiny_model("modernbert")), "MODEL": str(model),
        "PATH": f"{lmk.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    number = cluster.run("sbatch --parsable train.sh").strip()

    def steps() -> int:
        log = model / "log.jsonl"
        return len(log.read_text().splitlines()) if log.exists() else 0

    waited("ten steps", lambda: steps() >= 10, cluster.logs)
    mine = re.escape(str(model))
    tasks = cluster.run(f"pgrep -f 'lmk_paced.* train .*{mine}'").split()
    os.kill(int(tasks[-1]), signal.SIGUSR1)
    waited("the end of the job", lambda: not cluster.jobs(), cluster.logs)
    log = (cluster.folder / "train.log").read_text()
    assert "Exited with exit code 75" in log, cluster.logs()
    assert log.count("SIGUSR1") >= 1
    alone = tmp_path / "alone"
    cluster.run(
        f"{lmk} train {pairs} -m {tiny_model('modernbert')} --pool lmk --gran 32,64,128,256 {quick} "
        f"-o {alone}"
    )
    one, two = (load_file(folder / "model.safetensors") for folder in (alone, model))
    for name in one:
        # Adam divides by the gradient's own size: where that is rounding alone, so is the step
        assert (one[name] - two[name]).abs().mean() <= 1e-4, (name, number)


def test_the_tutorial_prints_what_it_shows(cluster: Cluster, minilm: Path, tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorials" / "slurm.md"
    tutorials.check(page, tmp_path, {"SLURM_CONF": cluster.env["SLURM_CONF"]})
