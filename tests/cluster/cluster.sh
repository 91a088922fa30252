#!/usr/bin/env bash
# A real Slurm of several nodes on one machine, without systemd and without cgroups.
#
# One namespace is the login node (slurmctld, the clients), one more is each compute node: own network, host name,
# processes, /dev/shm. A bridge inside the login namespace joins them; the machine's own network is left alone, and
# several such clusters may stand side by side. All share the file system, as on a cluster.
#
#   cluster.sh up                    start it; every node is idle when this returns
#   cluster.sh serve                 the same, and `down` when standard input ends: so it ends with whoever started it
#   cluster.sh down                  stop every daemon and all that runs in the namespaces
#   cluster.sh run COMMAND...        on the login node
#   cluster.sh on NODE COMMAND...    on a compute node: node1, node2, ...
#   cluster.sh kill-node NODE        all its processes at once, as when its power fails; start-node NODE: on again
#   cluster.sh stop-controller, start-controller, and stop-accounting, start-accounting where it is on
#
# Needs root, and of Debian: munge slurmctld slurmd slurm-client libpmix2 iproute2; for accounting also slurmdbd
# slurm-wlm-mysql-plugin mariadb-server. Settings, by the environment:
set -euo pipefail
# shellcheck source=../../src/ddp_hpc/bench/nodes.sh
source "$(dirname "$(realpath "$0")")/../../src/ddp_hpc/bench/nodes.sh"
ROOT=${CLUSTER_ROOT:?a folder for configuration, state and logs of the cluster; short, sockets lie in it}
NODES=${CLUSTER_NODES:-2}
CPUS=${CLUSTER_CPUS:-8}           # that each node claims; they need not exist
MEMORY=${CLUSTER_MEMORY:-8000}    # MB, likewise
GPUS=${CLUSTER_GPUS:-4}           # likewise: a GPU is a copy of /dev/null, good for scheduling
PARTITIONS=${CLUSTER_PARTITIONS:-main:60 short:5}   # name:minutes[:more settings, by commas]; the first is the default
MORE=${CLUSTER_MORE:-}            # further lines of slurm.conf
ACCOUNTING=${CLUSTER_ACCOUNTING:-} # not empty: slurmdbd keeps accounts, here `lab`, root's default; jobs need a valid one
NET=10.77.0
unset SLURM_CONF                  # every namespace sees $ROOT/etc as /etc/slurm: job steps lose SLURM_CONF

configure() {
  mkdir -p "$ROOT"/{etc,state,log,run,gpu,munge}
  chmod a+rx "$ROOT" # munge insists on it
  local i partition name minutes more default=YES
  for ((i = 1; i <= NODES; i++)); do mkdir -p "$ROOT"/{spool,tmp}/"node$i"; done
  for ((i = 0; i < GPUS; i++)); do [ -e "$ROOT/gpu/$i" ] || mknod "$ROOT/gpu/$i" c 1 3; done
  write_hosts login "$NODES"
  {
    cat << END
ClusterName=test
SlurmctldHost=login($NET.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$ROOT/munge/socket
CredType=cred/munge
StateSaveLocation=$ROOT/state
SlurmdSpoolDir=$ROOT/spool/%n
TmpFS=$ROOT/tmp/%n
SlurmctldPidFile=$ROOT/run/slurmctld.pid
SlurmdPidFile=$ROOT/run/slurmd.%n.pid
SlurmctldLogFile=$ROOT/log/slurmctld.log
SlurmdLogFile=$ROOT/log/slurmd.%n.log
# no cgroups: processes are found by their parents, memory is not limited, cores are not bound
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=0,sched_min_interval=0,sched_max_job_start=0
SlurmdParameters=config_overrides
# with pmix as the default, MPICH's mpiexec sees two process managers and stops
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=15
SlurmdTimeout=5
KillWait=5
MinJobAge=300
CompleteWait=0
GresTypes=gpu
NodeName=node[1-$NODES] NodeAddr=$NET.[1-$NODES] CPUs=$CPUS Sockets=1 CoresPerSocket=$CPUS ThreadsPerCore=1 \
  RealMemory=$MEMORY Gres=gpu:$GPUS
END
    for partition in $PARTITIONS; do
      IFS=: read -r name minutes more <<< "$partition"
      echo "PartitionName=$name Nodes=ALL Default=$default MaxTime=$minutes State=UP ${more//,/ }"
      default=NO
    done
    [ -z "$ACCOUNTING" ] || cat << END
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=login
AccountingStoragePass=$ROOT/munge/socket
AccountingStorageEnforce=associations,limits,qos
END
    printf '%b\n' "$MORE"
  } > "$ROOT/etc/slurm.conf"
  echo "NodeName=node[1-$NODES] Name=gpu File=$ROOT/gpu/[0-$((GPUS - 1))]" > "$ROOT/etc/gres.conf"
  # Slurm loads libpmix.so, a link that Debian ships with the headers only: nodes see a copy of the folder that has it
  cp -a /usr/lib/*/pmix2/lib "$ROOT/pmix"
  ln -sf libpmix.so.2 "$ROOT/pmix/libpmix.so"
}

# with what Slurm needs: its settings, and the library by which srun starts ranks
make_slurm_namespace() { # NAME
  make_namespace "$1" "
    mount --bind $ROOT/etc /etc/slurm
    mount --bind $ROOT/pmix /usr/lib/*/pmix2/lib"
}

start_controller() { (within login slurmctld "$@"); }

# A database of its own, which only the login node can reach; its data is kept nowhere else.
make_database() {
  mariadb-install-db --no-defaults --user=root --datadir="$ROOT/database" --skip-test-db --skip-name-resolve \
    --auth-root-authentication-method=socket > "$ROOT/log/database.log" 2>&1
  cat > "$ROOT/etc/slurmdbd.conf" << END
DbdHost=login
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$ROOT/munge/socket
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
LogFile=$ROOT/log/slurmdbd.log
PidFile=$ROOT/run/slurmdbd.pid
CommitDelay=0
END
  chmod 600 "$ROOT/etc/slurmdbd.conf" # slurmdbd insists on it
}

start_database() {
  local sql=(mariadb --no-defaults "--socket=$ROOT/database/socket")
  (within login setsid mariadbd --no-defaults --user=root --datadir="$ROOT/database" --socket="$ROOT/database/socket" \
    --bind-address=127.0.0.1 --skip-log-bin --performance-schema=off --innodb-flush-log-at-trx-commit=0 \
    < /dev/null >> "$ROOT/log/database.log" 2>&1) &
  until_works 20 "${sql[@]}" --execute="CREATE DATABASE IF NOT EXISTS slurm;
    CREATE OR REPLACE USER slurm@127.0.0.1 IDENTIFIED BY 'slurm'; GRANT ALL ON slurm.* TO slurm@127.0.0.1"
}

start_accounting() {
  (within login slurmdbd)
  until_works 20 sacctmgr --noheader show cluster
}

until_works() { # SECONDS COMMAND... on the login node
  local t tries=$(($1 * 10))
  shift
  for ((t = 1; t < tries; t++)); do
    (within login "$@") > /dev/null 2>&1 && return 0
    sleep 0.1
  done
  (within login "$@") >&2
}

start_node() { # NAME
  make_slurm_namespace "$1"
  join "$1" login
  (within "$1" slurmd -N "$1")
}

up() {
  local i t idle=0
  configure
  make_slurm_namespace login
  make_bridge login
  (within login bash -c "
    mungekey --create --keyfile $ROOT/munge/key
    munged --key-file $ROOT/munge/key --socket $ROOT/munge/socket --log-file $ROOT/munge/log \
      --pid-file $ROOT/munge/pid --seed-file $ROOT/munge/seed")
  if [ -n "$ACCOUNTING" ]; then
    make_database
    start_database
    start_accounting
    (within login bash -ec "
      sacctmgr --immediate add cluster test
      sacctmgr --immediate add account lab Description=test Organization=test
      sacctmgr --immediate add user root Account=lab") > "$ROOT/log/accounts.log"
  fi
  start_controller -c
  for ((i = 1; i <= NODES; i++)); do start_node "node$i"; done
  for ((t = 0; t < 200; t++)); do
    idle=$( (within login sinfo --noheader --Node --states=idle --format=%N) | sort -u | wc -l)
    [ "$idle" -lt "$NODES" ] || return 0
    sleep 0.1
  done
  echo "only $idle of $NODES nodes are idle, see $ROOT/log:" >&2
  (within login sinfo --list-reasons) >&2
  return 1
}

down() {
  [ ! -e "$ROOT/run/login.pid" ] || (within login scontrol shutdown) > /dev/null 2>&1 || true
  end_namespaces login
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
  up) up ;;
  serve)
    trap down EXIT
    up
    echo up
    cat > /dev/null
    ;;
  down) down ;;
  run) within login "$@" ;;
  on) within "$@" ;;
  kill-node) kill -9 "$(< "$ROOT/run/$1.pid")" ;;
  start-node) start_node "$1" ;;
  stop-accounting) kill "$(pgrep --ns "$(< "$ROOT/run/login.pid")" --nslist pid slurmdbd)" ;;
  start-accounting) start_accounting ;;
  stop-controller) kill "$(pgrep --ns "$(< "$ROOT/run/login.pid")" --nslist pid slurmctld)" ;;
  start-controller) start_controller ;;
  *) sed -n '/^# *cluster.sh/s/^# *//p' "$0" >&2; exit 2 ;;
esac
