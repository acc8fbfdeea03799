{{- define "nodens.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "nodens.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "nodens.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "nodens.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "nodens.selectorLabels" -}}
app.kubernetes.io/name: {{ include "nodens.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nodens.labels" -}}
{{ include "nodens.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "nodens.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "nodens.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "nodens.upstreamService" -}}
{{- default (printf "%s-upstream" (include "nodens.fullname" . | trunc 54 | trimSuffix "-")) .Values.config.customUpstreamsvc }}
{{- end }}

{{- define "nodens.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* The local addresses, as -localip takes them. */ -}}
{{- define "nodens.localIPs" -}}
{{- .Values.config.localDns }}{{ with .Values.config.dnsServer }},{{ . }}{{ end }}
{{- end }}

{{- /* The address of the probes. */ -}}
{{- define "nodens.firstIP" -}}
{{- splitList "," .Values.config.localDns | first }}
{{- end }}

{{- /* Where health and ready listen: HOST:PORT; call with a dict of root and port. */ -}}
{{- define "nodens.probeAddr" -}}
{{- $ip := include "nodens.firstIP" .root -}}
{{- if not .root.Values.useHostNetwork }}:{{ .port }}
{{- else if contains ":" $ip }}[{{ $ip }}]:{{ .port }}
{{- else }}{{ $ip }}:{{ .port }}
{{- end }}
{{- end }}

{{- /* Not empty where redirection may be turned on. */ -}}
{{- define "nodens.redirects" -}}
{{- if ne .Values.redirect.mode "off" }}yes{{ end }}
{{- end }}

{{- /* Not empty where pods' names are needed, to leave some alone. */ -}}
{{- define "nodens.namesPods" -}}
{{- if and (include "nodens.redirects" .) .Values.redirect.optOut }}yes{{ end }}
{{- end }}

{{- /* Not empty where the cache is handed on to the next pod. */ -}}
{{- define "nodens.snapshots" -}}
{{- if and .Values.useHostNetwork .Values.config.cacheSnapshot }}yes{{ end }}
{{- end }}

{{- /* Not empty where the pods' namespaces are entered: auto's probe, and freeing
sockets. */ -}}
{{- define "nodens.entersPods" -}}
{{- if or (eq .Values.redirect.mode "auto") (and (eq .Values.redirect.mode "on") .Values.redirect.freeSockets) }}yes{{ end }}
{{- end }}

{{- /* Not empty where endpoints are of use, and may be learnt. */ -}}
{{- define "nodens.learns" -}}
{{- if and .Values.endpoints.learn (or (include "nodens.redirects" .) .Values.endpoints.asUpstreams) }}yes{{ end }}
{{- end }}

{{- define "nodens.capabilities" -}}
{{- if not .Values.useHostNetwork }}[]
{{- else if include "nodens.entersPods" . }}[BPF, NET_ADMIN, NET_BIND_SERVICE, PERFMON, SYS_ADMIN, SYS_PTRACE]
{{- else if include "nodens.redirects" . }}[BPF, NET_ADMIN, NET_BIND_SERVICE, PERFMON]
{{- else }}[NET_ADMIN, NET_BIND_SERVICE]
{{- end }}
{{- end }}

{{- /* Not empty where pods have the field; it was an annotation before. */ -}}
{{- define "nodens.appArmorField" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}yes{{ end }}
{{- end }}

{{- /* The node's addresses, of both families where every kubelet that the API server
may have knows the field. */ -}}
{{- define "nodens.hostIPField" -}}
{{- semverCompare ">=1.32.0-0" .Capabilities.KubeVersion.Version | ternary "status.hostIPs" "status.hostIP" }}
{{- end }}

{{- define "nodens.podSecurityContext" -}}
{{- $c := dict "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- if not .Values.useHostNetwork }}
{{- /* Port 53 without a capability. */}}
{{- $_ := set $c "sysctls" (list (dict "name" "net.ipv4.ip_unprivileged_port_start" "value" "0")) }}
{{- $_ := mergeOverwrite $c (dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532) }}
{{- else if and (include "nodens.redirects" .) (include "nodens.appArmorField" .) }}
{{- /* The default profile lets nobody write to /sys/fs/bpf. */}}
{{- $_ := set $c "appArmorProfile" (dict "type" "Unconfined") }}
{{- end }}
{{- mergeOverwrite $c .Values.podSecurityContext | toYaml }}
{{- end }}

{{- define "nodens.securityContext" -}}
{{- $caps := include "nodens.capabilities" . | fromYamlArray }}
{{- $c := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) }}
{{- if $caps }}
{{- $_ := set $c.capabilities "add" $caps }}
{{- $_ := set $c "runAsUser" 0 }}
{{- end }}
{{- $given := get .Values.securityContext "capabilities" | default dict }}
{{- $c = mergeOverwrite $c (deepCopy .Values.securityContext) }}
{{- $add := concat $caps (get $given "add" | default list) | uniq }}
{{- if and $c.capabilities $add }}
{{- /* Other charts' values add NET_ADMIN alone: port 53 takes more than that. */}}
{{- $_ := set $c.capabilities "add" $add }}
{{- end }}
{{- toYaml $c }}
{{- end }}
