#!/bin/bash
# Makes keys, certificates and kubeconfigs, and again if the API server's address or
# this file changes.
set -eu
. "$(dirname "$0")/env.sh"
cd "$pki"
if [ "$(cat "done" 2>/dev/null)" = "$WORLD" ] && [ "done" -nt "$here/pki.sh" ]; then exit; fi
openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=nodens-cluster -keyout ca.key -out ca.crt 2>/dev/null
openssl genrsa -out sa.key 2048 2>/dev/null
openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
cert() { # cert NAME SUBJECT [SAN]
	openssl req -newkey rsa:2048 -nodes -subj "$2" -keyout "$1.key" -out "$1.csr" 2>/dev/null
	openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$1.crt" \
		-extfile <(echo "extendedKeyUsage=serverAuth,clientAuth"; [ -z "${3:-}" ] || echo "subjectAltName=$3") 2>/dev/null
}
user() { # user NAME SUBJECT: a certificate and its kubeconfig
	cert "$1" "$2"
	cat >"$1.conf" <<-END
	apiVersion: v1
	kind: Config
	clusters: [{name: cluster, cluster: {server: "https://$server:6443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
	users: [{name: user, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
	contexts: [{name: context, context: {cluster: cluster, user: user}}]
	current-context: context
	END
}
cert apiserver /CN=kube-apiserver "IP:$WORLD,IP:$kubernetes,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
cert kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
user admin /O=system:masters/CN=admin
user controllers /CN=system:kube-controller-manager
user scheduler /CN=system:kube-scheduler
user proxy /CN=system:kube-proxy
user flannel /CN=flannel
for n in 1 2; do user node$n /O=system:nodes/CN=system:node:node$n; done
echo "$WORLD" >"done"
