{{- /* The Corefile, with node-cache's placeholders. */ -}}
{{- define "nodens.corefile" -}}
{{- if .Values.config.customConfig -}}
{{ tpl .Values.config.customConfig . | trim }}
{{- else -}}
{{- if .Values.config.zones }}
{{- range $zone, $block := .Values.config.zones }}
{{ include "nodens.zone" (dict "root" $ "zone" $zone "plugins" (default dict $block.plugins)) | trim }}
{{- end }}
{{- else }}
{{- $c := .Values.config }}
{{- $cluster := dict "root" . "to" "__PILLAR__CLUSTER__DNS__" "options" (compact (list $c.commProtocol (ternary "kubernetes_endpoints" "" .Values.endpoints.asUpstreams))) "noIPv6" $c.noIPv6Lookups }}
{{- $short := dict "success" 30 "denial" 5 }}
{{ include "nodens.block" (merge (dict "zone" $c.dnsDomain "log" $c.enableLogging "cache" $short "admin" true) $cluster) | trim }}
{{ include "nodens.block" (merge (dict "zone" "in-addr.arpa") $cluster) | trim }}
{{ include "nodens.block" (merge (dict "zone" "ip6.arpa") $cluster) | trim }}
{{ include "nodens.block" (dict "root" . "zone" "." "to" $c.upstreamServers "options" (include "nodens.forwardOptions" $c.upstreamForwardConfig | fromYamlArray) "log" $c.enableLogging "noIPv6" $c.noIPv6Lookups) | trim }}
{{- end }}
{{- with .Values.config.extraServerBlocks }}
{{ tpl . $ | trim }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A list of lines from a map or a list of options. */ -}}
{{- define "nodens.forwardOptions" -}}
{{- $lines := list }}
{{- if kindIs "map" . }}
{{- range $k, $v := . }}{{ $lines = append $lines (eq (toString $v) "true" | ternary $k (printf "%s %v" $k $v)) }}{{ end }}
{{- else }}
{{- $lines = . }}
{{- end }}
{{- toYaml $lines }}
{{- end }}

{{- define "nodens.bind" -}}
{{- if and .Values.useHostNetwork .Values.config.bindIp }}
    bind __PILLAR__LOCAL__DNS__
{{- end }}
{{- end }}

{{- /* A directive's block of options, or nothing if there are none. */ -}}
{{- define "nodens.options" -}}
{{- if . }} {
{{- range . }}
        {{ . }}
{{- end }}
    }
{{- end }}
{{- end }}

{{- /* A block of the generated Corefile. */ -}}
{{- define "nodens.block" -}}
{{- $c := .root.Values.config -}}
{{ .zone }}:{{ $c.port.number }} {
{{- if .log }}
    log
{{- end }}
    errors
    {{- $lines := list }}
    {{- with .cache }}{{ $lines = list (printf "success 9984 %v" .success) (printf "denial 9984 %v" .denial) }}{{ end }}
    {{- with $c.prefetch }}{{ if .enabled }}{{ $lines = append $lines (printf "prefetch %v %s %s" .amount .duration .percentage) }}{{ end }}{{ end }}
    {{- with $c.serveStale }}{{ $lines = append $lines (printf "serve_stale %s" .) }}{{ end }}
    cache{{ if not .cache }} {{ $c.cacheTTL }}{{ end }}{{ include "nodens.options" $lines }}
    reload
    loop
{{- include "nodens.bind" .root }}
{{- if .noIPv6 }}
    template IN AAAA {
        rcode NOERROR
    }
{{- end }}
    forward . {{ .to }}{{ include "nodens.options" .options }}
{{- if .admin }}
{{- include "nodens.admin" .root }}
{{- end }}
}
{{- end }}

{{- /* Directives of the process. They are in one block only. */ -}}
{{- define "nodens.admin" }}
    prometheus :{{ .Values.config.metricsPort }}
    health :{{ .Values.config.healthPort }} {
        lameduck {{ .Values.config.lameduck }}
    }
    ready :{{ .Values.config.readyPort }}
{{- include "nodens.redirect" . }}
{{- with .Values.fastpath }}
{{- if ne .mode "off" }}
    {{- $lines := list }}
    {{- with .optOut }}{{ $lines = append $lines (printf "opt_out %s" (join " " .)) }}{{ end }}
    fastpath {{ .mode }}{{ include "nodens.options" $lines }}
{{- end }}
{{- end }}
{{- end }}

{{- define "nodens.redirect" }}
{{- if include "nodens.redirects" . }}
{{- with .Values.redirect }}
    {{- $lines := list (printf "target :%v" .port) }}
    {{- with .fallbacks }}{{ $lines = append $lines (printf "fallback %s" (join " " .)) }}{{ end }}
    {{- with .optOut }}{{ $lines = append $lines (printf "opt_out %s" (join " " .)) }}{{ end }}
    {{- with .uplinks }}{{ $lines = append $lines (printf "uplink %s" (join " " .)) }}{{ end }}
    redirect {{ include "nodens.mode" $ }}{{ include "nodens.options" $lines }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The mode in a Corefile's redirect directive, or off. */ -}}
{{- define "nodens.redirectMode" -}}
{{- $line := regexFind "(?m)^[ \t]*redirect([ \t]+(off|auto|on))?[ \t]*([{#].*)?$" . }}
{{- if $line }}{{ regexFind "[ \t](off|auto|on)([ \t{#]|$)" $line | trimAll " \t{#" | default "auto" }}{{ else }}off{{ end }}
{{- end }}
