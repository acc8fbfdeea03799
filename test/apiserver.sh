# shellcheck shell=sh
# Sourced by test/readme.sh: starts etcd and an API server on loopback, and points kubectl
# and helm at it. There is no node: the API server checks and stores objects.
openssl genrsa -out /tmp/sa.key 2048 2>/dev/null
echo 'token,admin,admin,system:masters' >/tmp/tokens
kube etcd --data-dir /tmp/etcd --unsafe-no-fsync >/tmp/etcd.log 2>&1 &
kube kube-apiserver --etcd-servers=http://127.0.0.1:2379 --cert-dir=/tmp/certs --bind-address=127.0.0.1 \
	--advertise-address=192.0.2.53 --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=RBAC \
	--token-auth-file=/tmp/tokens --service-account-issuer=https://kubernetes.default.svc.cluster.local \
	--service-account-key-file=/tmp/sa.key --service-account-signing-key-file=/tmp/sa.key \
	--allow-privileged=true >/tmp/apiserver.log 2>&1 &
export KUBECONFIG=/tmp/kubeconfig
kubectl config set-cluster c --server=https://127.0.0.1:6443 --insecure-skip-tls-verify=true >/dev/null
kubectl config set-credentials admin --token=token >/dev/null
kubectl config set-context c --cluster=c --user=admin >/dev/null
kubectl config use-context c >/dev/null
curl --silent --fail --insecure --output /dev/null --retry 120 --retry-delay 1 --retry-all-errors --oauth2-bearer token https://127.0.0.1:6443/readyz ||
	fail "no API server: $(tail /tmp/apiserver.log)"
kubectl get namespace kube-system >/dev/null 2>&1 || kubectl create namespace kube-system >/dev/null
