#!/usr/bin/env bash
# Nodes on one machine: each is a namespace with a network, a host name, processes and a /dev/shm of its own. A bridge in
# the namespace of one of them, the head, joins them. The machine's own network is left alone; the file system is shared.
#
#   nodes.sh serve             start node1, node2, ..., each behind a link of NODES_RATE in either direction; say `up`,
#                              and end them when standard input ends: so they end with whoever started them
#   nodes.sh on NODE COMMAND   on a node: head, node1, ...
#   nodes.sh mpiexec -n N ...  a rank on each of the first N nodes, by Open MPI over TCP
#   nodes.sh dropped           how many packets the links have dropped
#
# Sourced, it gives the functions alone, for clusters that run more on their nodes. Needs root and iproute2.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin

write_hosts() { # HEAD NODES
  local i
  mkdir -p "$ROOT"/{etc,run,log}
  {
    echo "127.0.0.1 localhost"
    echo "$NET.254 $1"
    for ((i = 1; i <= $2; i++)); do echo "$NET.$i node$i"; done
  } > "$ROOT/etc/hosts"
}

# Make a namespace: its first process only waits, its process id (outside) is in run/NAME.pid.
make_namespace() { # NAME [COMMANDS that are run in it first]
  local name=$1 outer t
  setsid unshare --net --uts --ipc --mount --pid --fork --propagation private bash -c "
    hostname $name
    mount -t proc proc /proc
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mount --bind $ROOT/etc/hosts /etc/hosts
    ${2:-}
    ip link set lo up
    trap 'exit 0' TERM
    touch $ROOT/run/$name.ready
    while :; do sleep 3600 & wait \$!; done" < /dev/null > "$ROOT/log/$name.log" 2>&1 &
  outer=$!
  for ((t = 0; t < 500; t++)); do [ ! -e "$ROOT/run/$name.ready" ] || break; sleep 0.02; done
  [ -e "$ROOT/run/$name.ready" ] || { echo "$name: no namespace: $(< "$ROOT/log/$name.log")" >&2; return 1; }
  rm "$ROOT/run/$name.ready"
  pgrep -P "$outer" > "$ROOT/run/$name.pid"
}

within() { # NAME COMMAND...
  local pid
  pid=$(< "$ROOT/run/$1.pid")
  shift
  exec nsenter -t "$pid" --net --uts --ipc --mount --pid --wd="$PWD" -- "$@"
}

make_bridge() { # HEAD
  (within "$1" bash -c "ip link add bridge type bridge; ip addr add $NET.254/24 dev bridge; ip link set bridge up")
}

join() { # NODE HEAD: the node's eth0 leads to port<number> of the bridge
  local i=${1#node} head pid
  head=$(< "$ROOT/run/$2.pid") pid=$(< "$ROOT/run/$1.pid")
  nsenter -t "$head" --net -- bash -c "
    ip link del port$i 2> /dev/null
    ip link add port$i type veth peer name eth0 netns $pid && ip link set port$i master bridge up"
  (within "$1" bash -c "ip addr add $NET.$i/24 dev eth0; ip link set eth0 up")
}

end_namespaces() { # HEAD: a namespace ends, with all in it, when its first process does
  local file pid t
  for file in "$ROOT"/run/{node*,"$1"}.pid; do
    [ -e "$file" ] || continue
    pid=$(< "$file")
    kill "$pid" 2> /dev/null || true
    for ((t = 0; t < 30; t++)); do [ -d "/proc/$pid" ] || break; sleep 0.1; done
    kill -9 "$pid" 2> /dev/null || true
    rm "$file"
  done
}

[[ ${BASH_SOURCE[0]} == "$0" ]] || return 0

ROOT=${NODES_ROOT:?a folder for what belongs to the nodes}
NODES=${NODES_COUNT:-2}
RATE=${NODES_RATE:-100mbit}
NET=10.78.0
# A bucket of few packets: what a link sends at once after a pause is not shaped. A queue so deep that nothing is dropped.
SHAPE="root tbf rate $RATE burst ${NODES_BURST:-20kb} limit ${NODES_QUEUE:-64mb}"

up() {
  local i
  write_hosts head "$NODES"
  make_namespace head
  make_bridge head
  for ((i = 1; i <= NODES; i++)); do
    # reno: BBR, which may be the default, stops for 200 ms every 10 s to see how long an empty path takes; and a
    # connection that slept through a step's work does not start slowly again
    make_namespace "node$i" "sysctl -qw net.ipv4.tcp_congestion_control=reno net.ipv4.tcp_slow_start_after_idle=0 || exit 1"
    join "node$i" head
    (within "node$i" ip link set eth0 mtu 9000)
    (within head ip link set "port$i" mtu 9000)
    (within "node$i" tc qdisc add dev eth0 $SHAPE)
    (within head tc qdisc add dev "port$i" $SHAPE)
  done
}

# mpiexec runs in the head's network, with the machine's processes, so that it can enter the nodes.
launch() { # -n N COMMAND...
  local count=$2 hosts="" i
  for ((i = 1; i <= count; i++)); do hosts+="${hosts:+,}$NET.$i:1"; done
  # A message goes at once, of whatever length: else one of more than 64 kB asks first, and the answer waits behind data
  # that go the same way, so that what is timed is the protocol of Open MPI.
  export OMPI_MCA_btl_tcp_{eager_limit,rndv_eager_limit,max_send_size}=67108864
  # every node sees all cores: ranks are bound to none, and one that waits lets others run
  export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp OMPI_MCA_mpi_yield_when_idle=1 \
    PRTE_MCA_hwloc_default_binding_policy=none PRTE_MCA_rmaps_default_mapping_policy=ppr:1:node PRTE_MCA_plm_ssh_agent="$(realpath "$0") ssh"
  exec nsenter -t "$(< "$ROOT/run/head.pid")" --net --uts --wd="$PWD" -- mpiexec --host "$hosts" "$@"
}

dropped() {
  local i
  for ((i = 1; i <= NODES; i++)); do
    (within "node$i" tc -s qdisc show dev eth0)
    (within head tc -s qdisc show dev "port$i")
  done | sed -nE 's/.*dropped ([0-9]+).*/\1/p' | awk '{ sum += $1 } END { print sum + 0 }'
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
  serve)
    trap 'end_namespaces head' EXIT
    up
    echo up
    cat > /dev/null
    ;;
  on) within "$@" ;;
  ssh) # HOST COMMAND..., as Open MPI calls what starts its daemons
    host=$1
    shift
    # processes have the same numbers on all nodes, by which Open MPI names its folders
    export TMPDIR="$ROOT/tmp/node${host##*.}"
    mkdir -p "$TMPDIR"
    within "node${host##*.}" bash -c "$*"
    ;;
  mpiexec) launch "$@" ;;
  dropped) dropped ;;
  *) sed -n '/^# *nodes.sh/s/^# *//p' "$0" >&2; exit 2 ;;
esac
