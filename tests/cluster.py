"""A real SLURM for tests: one controller, one node and one munge daemon, started by hand on loopback.

All of their state is in a temporary folder. Not a test module: `conftest.py` hands the cluster to the tests.
"""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
                daemon.wait(300)
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


@contextmanager
def started() -> Iterator[Cluster]:
    """A cluster that runs until the block ends; skips where there is no SLURM."""
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
