#!/bin/sh
# Runs the commands of README.md: make run with the query that nodens prints, the commands
# of a node, and the lines after a $ of the section Install, whose output must be that
# of README.md. test/debootstrap.sh calls it on a fresh Debian, as root.
set -eu
cd "$(dirname "$0")/.."
fail() {
	echo "README: $*" >&2
	exit 1
}

# podman's defaults need systemd and overlayfs, which a chroot does not have.
mkdir -p /etc/containers
printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers"\ngraphroot = "/var/lib/containers"\n' >/etc/containers/storage.conf
printf '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n' >/etc/containers/containers.conf

# The host's resolver.
ip link set lo up
ip address add 192.0.2.53/32 dev lo
cat >/tmp/unbound.conf <<'EOF'
server:
	interface: 192.0.2.53
	access-control: 0.0.0.0/0 allow
	chroot: ""
	local-zone: . static
	local-data: ". NS localhost."
	local-data: "example.org A 192.0.2.1"
EOF
unbound -c /tmp/unbound.conf
echo nameserver 192.0.2.53 >/etc/resolv.conf

echo '$ make run'
: >/tmp/out
make run >/tmp/out 2>&1 &
tries=0
until try=$(sed -n 's/.* listens on .*; try: //p' /tmp/out) && [ -n "$try" ]; do
	tries=$((tries + 1))
	[ $tries -lt 1200 ] || { cat /tmp/out; fail "make run does not say what to try"; }
	sleep 0.25
done
cat /tmp/out
echo "\$ $try"
$try +noall +answer | tee /tmp/answer
grep -q 'IN.*A' /tmp/answer || fail "no answer"
[ "$(dig @169.254.20.10 +short example.org)" = 192.0.2.1 ] || fail "no answer from the host's resolver"
for command in 'nodens status' 'nodens top -once' 'nodens help check'; do
	echo "\$ $command"
	$command >/tmp/printed 2>&1 || { cat /tmp/printed; fail "$command fails"; }
done
echo '$ nodens doctor'
nodens doctor >/tmp/printed 2>&1 || [ $? = 2 ] || fail "nodens doctor fails" # 2: there is no pod to examine
cat /tmp/printed
grep -qx 'no problem found' /tmp/printed || fail "nodens doctor finds a problem"
kill -INT "$(pidof nodens)"
wait || true
if ip address | grep 169.254.20.10; then fail "the address is left"; fi

# Each command of the section Install in a line "$ COMMAND", its output in the lines below.
sed -n '/^## Install/,/^## On a node/p' README.md | awk '
	/^\$ / { n++; sub(/^\$ /, ""); print > ("/tmp/command" n); printf "" > ("/tmp/want" n); inside = 1; next }
	/^```/ { inside = 0 }
	inside { print > ("/tmp/want" n) }'
n=1
while [ -e /tmp/command$n ]; do
	echo "\$ $(cat /tmp/command$n)"
	sh /tmp/command$n >/tmp/printed || fail "it fails"
	cat /tmp/printed
	[ ! -s /tmp/want$n ] || [ "$(cat /tmp/want$n)" = "$(cat /tmp/printed)" ] || fail "it must print $(cat /tmp/want$n)"
	n=$((n + 1))
done
[ $n -gt 6 ] || fail "the section Install has $((n - 1)) commands"
echo "README: make run, four commands of a node and $((n - 1)) of the installation work on a fresh Debian"
