{{- define "nodens.podSpec" -}}
serviceAccountName: {{ include "nodens.serviceAccountName" . }}
automountServiceAccountToken: {{ include "nodens.learns" . | empty | not }}
hostNetwork: {{ .Values.useHostNetwork }}
{{- if include "nodens.entersPods" . }}
hostPID: true
{{- end }}
dnsPolicy: Default
priorityClassName: {{ .Values.priorityClassName }}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
securityContext:
  {{- include "nodens.podSecurityContext" . | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  {{- toYaml .Values.tolerations | nindent 2 }}
containers:
  - name: nodens
    image: {{ include "nodens.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args:
      {{- include "nodens.args" . | fromYamlArray | toYaml | nindent 6 }}
    {{- $env := include "nodens.env" . | fromYamlArray }}
    {{- with $env }}
    env:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if not .Values.useHostNetwork }}
    ports:
      - {name: dns, containerPort: {{ .Values.config.port.number }}, protocol: UDP}
      - {name: dns-tcp, containerPort: {{ .Values.config.port.number }}, protocol: TCP}
      - {name: metrics, containerPort: {{ .Values.config.metricsPort }}, protocol: TCP}
    {{- end }}
    resources:
      {{- toYaml .Values.resources | nindent 6 }}
    securityContext:
      {{- include "nodens.securityContext" . | nindent 6 }}
    livenessProbe:
      httpGet:
        {{- include "nodens.httpGet" (dict "root" . "path" "/health" "port" .Values.config.healthPort) | nindent 8 }}
      {{- toYaml .Values.livenessProbe | nindent 6 }}
    readinessProbe:
      httpGet:
        {{- include "nodens.httpGet" (dict "root" . "path" "/ready" "port" .Values.config.readyPort) | nindent 8 }}
      {{- toYaml .Values.readinessProbe | nindent 6 }}
    volumeMounts:
      - {name: config, mountPath: /etc/coredns, readOnly: true}
      - {name: kube-dns-config, mountPath: /etc/kube-dns, readOnly: true}
      {{- if include "nodens.snapshots" . }}
      - {name: run, mountPath: /run/nodens}
      {{- end }}
      {{- if include "nodens.usesBPF" . }}
      - {name: bpffs, mountPath: /sys/fs/bpf}
      - {name: cgroup, mountPath: /host/cgroup, readOnly: true}
      {{- end }}
      {{- if include "nodens.namesPods" . }}
      - {name: pod-names, mountPath: /var/log/pods, readOnly: true}
      {{- end }}
      {{- if .Values.status.tokenSecret }}
      - {name: status-token, mountPath: /etc/nodens-status, readOnly: true}
      {{- end }}
      {{- if .Values.status.podNames }}
      - {name: pod-networks, mountPath: /var/lib/cni/results, readOnly: true}
      {{- end }}
      {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 6 }}{{ end }}
volumes:
  - name: config
    configMap:
      name: {{ include "nodens.fullname" . }}
      items:
        - {key: Corefile, path: Corefile.base}
  - name: kube-dns-config
    configMap:
      name: kube-dns
      optional: true
  {{- if include "nodens.snapshots" . }}
  - name: run
    hostPath: {path: /run/nodens, type: DirectoryOrCreate}
  {{- end }}
  {{- if include "nodens.usesBPF" . }}
  - name: bpffs
    hostPath: {path: /sys/fs/bpf, type: Directory}
  - name: cgroup
    hostPath: {path: /sys/fs/cgroup, type: Directory}
  {{- end }}
  {{- if include "nodens.namesPods" . }}
  - name: pod-names # its directory names map the UID of a pod to its name
    hostPath: {path: /var/log/pods, type: DirectoryOrCreate}
  {{- end }}
  {{- with .Values.status.tokenSecret }}
  - name: status-token
    secret: {secretName: {{ . | quote }}}
  {{- end }}
  {{- if .Values.status.podNames }}
  - name: pod-networks # has the names and addresses of pods
    hostPath: {path: /var/lib/cni/results, type: DirectoryOrCreate}
  {{- end }}
  {{- with .Values.extraVolumes }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{- define "nodens.httpGet" -}}
path: {{ .path }}
port: {{ .port }}
{{- /* The generated Corefile serves the probes on all addresses. Pod Security rules
forbid the field from Kubernetes 1.34 on. */}}
{{- if and .root.Values.useHostNetwork .root.Values.config.customConfig }}
host: {{ include "nodens.firstIP" .root | quote }}
{{- end }}
{{- end }}

{{- define "nodens.args" -}}
- -basecorefile=/etc/coredns/Corefile.base
- -upstreamsvc={{ include "nodens.upstreamService" . }}
- -cluster-domain={{ .Values.config.dnsDomain }}
- -metrics-listen-address=0
- -supervise
{{- if ne (int .Values.config.port.number) 53 }}
- -dns.port={{ .Values.config.port.number }}
{{- end }}
{{- with .Values.config.cacheSize }}
- -cache-size={{ . }}
{{- end }}
{{- if include "nodens.snapshots" . }}
- -cache-snapshot=/run/nodens/cache
{{- end }}
{{- if .Values.useHostNetwork }}
- -localip={{ include "nodens.localIPs" . }}
- -health-port={{ .Values.config.healthPort }}
- -setupinterface={{ .Values.config.setupInterface }}
- -setupiptables={{ .Values.config.setupIptables }}
- -skipteardown={{ .Values.config.skipTeardown }}
{{- else }}
{{- /* In a pod's own network, the default route leads to all clients. */}}
- -clients=all
{{- end }}
{{- if include "nodens.learns" . }}
- -endpoints-of={{ .Values.endpoints.serviceNamespace }}/{{ .Values.endpoints.serviceName }}
{{- end }}
{{- if ne .Values.status.address "127.0.0.1:9354" }}
- -status-address={{ .Values.status.address }}
{{- end }}
{{- if .Values.status.tokenSecret }}
- -status-token-file=/etc/nodens-status/token
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "nodens.env" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- if include "nodens.redirects" . }}
- name: NODE_IP
  valueFrom: {fieldRef: {fieldPath: {{ include "nodens.hostIPField" . }}}}
{{- end }}
{{- if include "nodens.learns" . }}
{{- /* Pods have this label from Kubernetes 1.35 on; before, the value is empty. */}}
- name: NODE_ZONE
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
