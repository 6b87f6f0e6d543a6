#!/bin/sh
# Runs examples/lab.toml with every sensor in a network namespace of its own, on links of the scenario's rates.
# As root, with ip and tc (Debian: iproute2):  sh examples/lab.sh FOLDER
set -e
scenario=$(cd "$(dirname "$0")" && pwd)/lab.toml
if [ $# -ne 1 ] || [ -e "$1" ]; then
  echo "usage: sh examples/lab.sh FOLDER, where FOLDER does not exist yet" >&2
  exit 2
fi
mkdir -p "$1"
cd "$1"
hsfl certificates "$scenario" --out keys

clean() {
  kill $(jobs -p) 2>/dev/null || true
  for n in 1 2; do ip netns delete lab-$n 2>/dev/null || true; done
  ip link delete lab0 2>/dev/null || true
}
trap clean EXIT

# The server, the fed server and the coordinator are in the network of this computer, at 10.77.0.1.
ip link add lab0 type bridge
ip address add 10.77.0.1/24 dev lab0
ip link set lab0 up
for n in 1 2; do
  ip netns add lab-$n
  ip link add lab-out-$n type veth peer name lab-in-$n netns lab-$n
  ip link set lab-out-$n master lab0 up
  ip -n lab-$n address add 10.77.0.1$n/24 dev lab-in-$n
  ip -n lab-$n link set lab-in-$n up
  ip netns exec lab-$n tc qdisc add dev lab-in-$n root tbf rate 2mbit burst 3000 latency 5s  # up
  tc qdisc add dev lab-out-$n root tbf rate 4mbit burst 3000 latency 5s                      # down
done

joins() {
  name=$1
  shift
  hsfl node "$scenario" --name "$name" --certificates keys --token keys/token "$@"
}
joins fed --parent 10.77.0.1:7000 --listen 10.77.0.1:7001 &
joins server-1 --parent 10.77.0.1:7000 --fed 10.77.0.1:7001 --listen 10.77.0.1:7002 &
for n in 1 2; do
  ip netns exec lab-$n hsfl node "$scenario" --name sensor-$n --certificates keys --token keys/sensor-$n.token \
    --parent 10.77.0.1:7002 --fed 10.77.0.1:7001 &
done
hsfl run "$scenario" --listen 10.77.0.1:7000 --certificates keys --token keys/token --out run
hsfl report run
