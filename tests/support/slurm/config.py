"""The configuration files of the private Slurm, and nothing else: templates and the function that fills them in.

Values that a reader may wonder about carry their reason here, as comments that end up in the files themselves.
Called by `cluster.py`, once per bring-up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

GPUS_PER_NODE = 8

SLURM_CONF = """\
ClusterName=slurmscale
SlurmctldHost={host}({head})
SlurmctldPort={ctld_port}
# Ranks meet at a port made of the job id: those of two clusters at once must differ.
FirstJobId={ctld_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# Five seconds is the least Slurm accepts; a requeued job waits this long before it runs again (default 120).
AuthInfo=socket={root}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/pid/slurmctld
SlurmdPidFile={root}/pid/%n
SlurmctldLogFile={root}/log/slurmctld
SlurmdLogFile={root}/log/%n
MpiDefault=none
# No cgroups: they need root, and differ between the machines that tests run on.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
PropagateResourceLimits=NONE
ReturnToService=2
SlurmdTimeout=10
KillWait=5
MessageTimeout=30
Epilog={root}/epilog
# config_overrides believes the CPUs and memory written below instead of this machine's.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
# Without a default every job takes a node's whole memory, and no two jobs share one.
DefMemPerCPU=1000
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,default_queue_depth=1000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PriorityType=priority/multifactor
PriorityWeightQOS=1000
MaxArraySize=1001
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd_port}
AccountingStoragePass={root}/munge.sock
AccountingStorageEnforce=associations,qos,limits
AccountingStorageTRES=gres/gpu
GresTypes=gpu
NodeName=DEFAULT CPUs=32 RealMemory=256000 Gres=gpu:{gpus} State=UNKNOWN
{nodes}
PartitionName=gpu Nodes={gpu_nodes} Default=YES MaxTime=2:00:00 State=UP PriorityTier=10
# Its jobs are requeued when gpu's want their nodes; on many sites such cycles are free.
PartitionName=spare Nodes={gpu_nodes} MaxTime=2:00:00 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=debug Nodes={debug_nodes} MaxTime=00:30:00 MaxNodes=1 State=UP
{extra}
"""

SLURMDBD_CONF = """\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd_port}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock
PidFile={root}/pid/slurmdbd
LogFile={root}/log/slurmdbd
StorageType=accounting_storage/mysql
# "localhost" means the socket in $MYSQL_UNIX_PORT: no port, and no password that another user could need.
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""

GRES_CONF = """\
Name=gpu File={root}/fakegpu[0-{last_gpu}]
"""

CGROUP_CONF = """\
CgroupAutomount=no
"""

# Nodes clean up after each job; a job stays COMPLETING while the file `hold_epilogs` exists.
EPILOG = """\
#!/bin/sh
while [ -e {root}/hold_epilogs ]; do sleep 0.1; done
"""

MARIADB_CNF = """\
[mariadbd]
user={user}
datadir={root}/db/data
socket={root}/db/sock
pid-file={root}/db/pid
# In a directory that it shares it would remove, as left behind, the temporary tables of another one that starts.
tmpdir={root}/db/tmp
skip-networking
# Small and forgetful: the data live for one test session, and slurmdbd asks for a large buffer pool in its log only.
innodb-log-file-size=16M
innodb-buffer-pool-size=32M
innodb-flush-log-at-trx-commit=0
debug-no-sync
innodb-lock-wait-timeout=900
"""

ACCOUNTING = """\
add cluster slurmscale
add qos high set Priority=1000
add qos short set MaxWall=00:05:00 Flags=DenyOnLimit
add account research set QOS=normal,high,short DefaultQOS=normal
add user {user} account=research
modify user {user} set DefaultAccount=research
"""


def write_configs(
    root: Path,
    user: str,
    port: int,
    nodes: list[str],
    gpu_nodes: int,
    extra_conf: str,
    head: str,
    addresses: Mapping[str, str],
) -> None:
    """Write all files below `root`; `port` is the first of `2 + len(nodes)` free ones.

    `head` is the address of slurmctld, `addresses` those of the nodes that are not on the loopback of this machine.
    """
    for directory in ("db", "db/tmp", "log", "pid", "spool", "state"):
        (root / directory).mkdir()
    (root / "db").chmod(0o700)
    for node in nodes:
        (root / "spool" / node).mkdir()
    for gpu in range(GPUS_PER_NODE):
        # slurmd sets CUDA_VISIBLE_DEVICES only for character devices, and /dev/null is one.
        (root / f"fakegpu{gpu}").symlink_to("/dev/null")
    values = {
        "root": root,
        "user": user,
        "host": os.uname().nodename.split(".")[0],
        "ctld_port": port,
        "dbd_port": port + 1,
        "head": head,
        "nodes": "\n".join(
            f"NodeName={node} NodeAddr={addresses.get(node, '127.0.0.1')} Port={port + 2 + number}"
            for number, node in enumerate(nodes)
        ),
        "gpu_nodes": ",".join(nodes[:gpu_nodes]),
        "debug_nodes": ",".join(nodes[gpu_nodes:]),
        "gpus": GPUS_PER_NODE,
        "last_gpu": GPUS_PER_NODE - 1,
        "extra": extra_conf,
    }
    for name, template in (
        ("slurm.conf", SLURM_CONF),
        ("slurmdbd.conf", SLURMDBD_CONF),
        ("gres.conf", GRES_CONF),
        ("cgroup.conf", CGROUP_CONF),
        ("epilog", EPILOG),
        ("mariadb.cnf", MARIADB_CNF),
        ("accounting", ACCOUNTING),
    ):
        (root / name).write_text(template.format(**values))
    (root / "epilog").chmod(0o755)
    # slurmdbd refuses to start when others may read its file; munged likewise.
    (root / "slurmdbd.conf").chmod(0o600)
    (root / "munge.key").touch(mode=0o600)
    (root / "munge.key").write_bytes(os.urandom(128))
