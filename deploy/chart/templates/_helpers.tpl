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

{{- /* The value of -localip. */ -}}
{{- define "nodens.localIPs" -}}
{{- .Values.config.localDns }}{{ with .Values.config.dnsServer }},{{ . }}{{ end }}
{{- end }}

{{- /* The first local address. */ -}}
{{- define "nodens.firstIP" -}}
{{- splitList "," .Values.config.localDns | first }}
{{- end }}

{{- /* The privileges of the pod: minimal, resilient or full. */ -}}
{{- define "nodens.tier" -}}
{{- if .Values.tier }}{{ .Values.tier }}
{{- else if or (not .Values.useHostNetwork) (eq "off" (include "nodens.givenMode" .)) }}minimal
{{- else if .Capabilities.APIVersions.Has "cilium.io/v2" }}full
{{- else }}minimal
{{- end }}
{{- end }}

{{- /* The mode of redirection in the values, or nothing. */ -}}
{{- define "nodens.givenMode" -}}
{{- if .Values.redirect.mode }}{{ .Values.redirect.mode }}
{{- else if .Values.config.customConfig }}{{ include "nodens.redirectMode" (tpl .Values.config.customConfig .) }}
{{- end }}
{{- end }}

{{- /* The mode of redirection: off, auto or on. */ -}}
{{- define "nodens.mode" -}}
{{- include "nodens.givenMode" . | default (get (dict "minimal" "off" "resilient" "on" "full" "auto") (include "nodens.tier" .)) }}
{{- end }}

{{- /* Not empty if sockets may be redirected. */ -}}
{{- define "nodens.redirects" -}}
{{- if ne (include "nodens.mode" .) "off" }}yes{{ end }}
{{- end }}

{{- /* Not empty if nodens uses BPF: to redirect sockets, or to remove what an earlier
nodens pinned. */ -}}
{{- define "nodens.usesBPF" -}}
{{- if ne (include "nodens.tier" .) "minimal" }}yes{{ end }}
{{- end }}

{{- /* Not empty if nodens needs the names of pods, for optOut. */ -}}
{{- define "nodens.namesPods" -}}
{{- if or (and (include "nodens.redirects" .) .Values.redirect.optOut) (include "nodens.fastpathOptsOut" .) }}yes{{ end }}
{{- end }}

{{- /* Not empty if the values or a fastpath directive keep pods out of the fast path. */ -}}
{{- define "nodens.fastpathOptsOut" -}}
{{- $own := tpl (print .Values.config.customConfig "\n" .Values.config.extraServerBlocks) . }}
{{- if or (and (ne .Values.fastpath.mode "off") .Values.fastpath.optOut) (regexMatch "(?m)^[ \t]*fastpath([ \t]+(on|auto))?[ \t]*[{][^}]*\n[ \t]*opt_out[ \t]" $own) }}yes{{ end }}
{{- end }}

{{- /* Not empty if the values or a directive turn the fast path on, which needs a restart. */ -}}
{{- define "nodens.fastpath" -}}
{{- $own := tpl (print .Values.config.customConfig "\n" .Values.config.extraServerBlocks) . }}
{{- if or (ne .Values.fastpath.mode "off") (regexMatch "(?m)^[ \t]*fastpath[ \t]*(on|auto|$|#|[{])" $own) }}yes{{ end }}
{{- end }}

{{- /* Not empty if the cache is handed over to the next pod. */ -}}
{{- define "nodens.snapshots" -}}
{{- if and .Values.useHostNetwork .Values.config.cacheSnapshot }}yes{{ end }}
{{- end }}

{{- /* Not empty if nodens enters the network namespaces of pods. */ -}}
{{- define "nodens.entersPods" -}}
{{- if eq (include "nodens.tier" .) "full" }}yes{{ end }}
{{- end }}

{{- /* Not empty if nodens reads endpoints from the API server. */ -}}
{{- define "nodens.learns" -}}
{{- if and .Values.endpoints.learn (or (include "nodens.redirects" .) .Values.endpoints.asUpstreams) }}yes{{ end }}
{{- end }}

{{- define "nodens.capabilities" -}}
{{- if not .Values.useHostNetwork }}[]
{{- else if include "nodens.entersPods" . }}[BPF, NET_ADMIN, NET_BIND_SERVICE, PERFMON, SYS_ADMIN, SYS_PTRACE]
{{- else if include "nodens.usesBPF" . }}[BPF, NET_ADMIN, NET_BIND_SERVICE, PERFMON]
{{- else }}[NET_ADMIN, NET_BIND_SERVICE]
{{- end }}
{{- end }}

{{- /* Not empty if pods have the field appArmorProfile. Older versions use an
annotation. */ -}}
{{- define "nodens.appArmorField" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}yes{{ end }}
{{- end }}

{{- /* The field with the node's addresses: both families if every kubelet that this API
server supports has the field. */ -}}
{{- define "nodens.hostIPField" -}}
{{- semverCompare ">=1.32.0-0" .Capabilities.KubeVersion.Version | ternary "status.hostIPs" "status.hostIP" }}
{{- end }}

{{- define "nodens.podSecurityContext" -}}
{{- $c := dict "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- if not .Values.useHostNetwork }}
{{- /* Listen on port 53 without a capability. */}}
{{- $_ := set $c "sysctls" (list (dict "name" "net.ipv4.ip_unprivileged_port_start" "value" "0")) }}
{{- $_ := mergeOverwrite $c (dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532) }}
{{- else if and (include "nodens.usesBPF" .) (include "nodens.appArmorField" .) }}
{{- /* The default profile forbids writing to /sys/fs/bpf. */}}
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
{{- /* Values for other charts add only NET_ADMIN, but nodens needs more. */}}
{{- $_ := set $c.capabilities "add" $add }}
{{- end }}
{{- toYaml $c }}
{{- end }}
