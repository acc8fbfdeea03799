#!/bin/sh
# Runs the commands of README.md: make run with the query that nodens prints, the commands
# of a node, and those of the section Install. The output of a line after a $ must be that
# of README.md; the others use a registry and, if there is one, an API server. It
# runs only the first step of make test. test/debootstrap.sh calls it on a fresh Debian, as
# root.
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

# make deps, with an apt-get that does to the host what packages of servers do.
mkdir /tmp/apt
cat >/tmp/apt/apt-get <<'EOF'
#!/bin/sh
echo "noise of apt-get $1"
[ "$1" = install ] || exit 0
if /usr/sbin/policy-rc.d server start; then touch /tmp/apt/started; fi
ln -s /dev/null /etc/systemd/system/multi-user.target.wants/server.service || touch /tmp/apt/no-link
[ ! -e /tmp/apt/interrupt ] || kill -INT 0
EOF
chmod +x /tmp/apt/apt-get
host() { ls -R /etc/systemd/system /usr/sbin /tmp/apt; }
echo '$ make deps'
before=$(host)
PATH=/tmp/apt:$PATH make --silent deps >/tmp/printed 2>&1 || fail "make deps fails: $(cat /tmp/printed)"
cat /tmp/printed
head -n 1 /tmp/printed | grep -q '^installing for the tests, from the package archive:.* chromium' || fail "make deps does not say first what it installs"
if grep noise /tmp/printed; then fail "make deps prints what apt-get prints"; fi
[ "$(host)" = "$before" ] || fail "make deps changes the host: $(host)"
touch /tmp/apt/interrupt
if env --default-signal=INT PATH="/tmp/apt:$PATH" setsid --wait ./test/deps.sh >/tmp/printed 2>&1; then fail "make deps ignores Ctrl-C"; fi
[ ! -e /usr/sbin/policy-rc.d ] || fail "make deps leaves its policy after Ctrl-C"
[ ! -L /etc/systemd/system/multi-user.target.wants/server.service ] || fail "make deps leaves a unit after Ctrl-C"

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

# The lines for a cluster, with a registry of that name.
echo "127.0.0.1 registry.example" >>/etc/hosts
printf '[[registry]]\nlocation = "registry.example"\ninsecure = true\n' >/etc/containers/registries.conf
printf 'version: 0.1\nlog: {accesslog: {disabled: true}, level: error}\nstorage: {filesystem: {rootdirectory: /tmp/registry}}\nhttp: {addr: "127.0.0.1:80"}\n' >/tmp/registry.yml
docker-registry serve /tmp/registry.yml >/tmp/registry.log 2>&1 &
curl --silent --fail --output /dev/null --retry 60 --retry-delay 1 --retry-all-errors http://registry.example/v2/ || fail "no registry: $(cat /tmp/registry.log)"
line() { # line START: run the line of the section Install that starts so
	sed -n '/^## Install/,/^## On a node/p' README.md | grep "^$1" >/tmp/line || fail "no line of Install starts with $1"
	echo "\$ $(cat /tmp/line)"
	sh -e /tmp/line >/tmp/printed 2>&1 || { cat /tmp/printed; fail "it fails"; }
}
line 'make image'
line 'buildah manifest push'
for arch in amd64 arm64; do
	curl --silent --fail --header 'Accept: application/vnd.oci.image.index.v1+json' http://registry.example/v2/nodens/manifests/v1 | grep -q "\"$arch\"" ||
		fail "the registry has no image for $arch"
done
buildah manifest rm registry.example/nodens:v1 >/dev/null
podman run --rm --network host registry.example/nodens:v1 version | grep '^nodens ' || fail "the image in the registry does not run"
cluster="the lines that need a cluster did not run"
if command -v kube >/dev/null; then
	cluster="the lines that need a cluster work, too"
	. ./test/apiserver.sh
	line 'helm install'
	[ "$(kubectl -n kube-system get daemonset nodens -o 'jsonpath={.spec.template.spec.containers[0].image}')" = registry.example/nodens:v1 ] ||
		fail "the DaemonSet has another image"
	cp cmd/nodens/testdata/migrate/kops.yaml node-local-dns.yaml
	kubectl apply -f node-local-dns.yaml >/dev/null
	line 'nodens migrate'
	grep '^daemonset.apps/node-local-dns configured' /tmp/printed || fail "the DaemonSet is not changed: $(cat /tmp/printed)"
fi
echo "README: make deps, make run, four commands of a node, $((n - 1)) of the installation there, image and registry work on a fresh Debian; $cluster"
