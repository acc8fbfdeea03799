{{- /* A block of config.zones: a map of plugins, as in the chart of lablabs. The
first zone by name also gets the directives of the process. */ -}}
{{- define "nodens.zone" -}}
{{- $p := .plugins -}}
{{ .zone }} {
{{- range $name := list "errors" "reload" "debug" "loop" }}
{{- if get $p $name }}
    {{ $name }}
{{- end }}
{{- end }}
{{- with $p.log }}
    log{{ if kindIs "map" . }} .{{ with .format }}{{ if ne . "common" }} {{ printf "{%s}" . }}{{ end }}{{ end }}{{ with .classes }} {
        class {{ . }}
    }{{ end }}{{ end }}
{{- end }}
{{- include "nodens.bind" .root }}
{{- with $p.template }}
    template {{ .parameters }} {
{{- range $k := list "match" "answer" "additional" "authority" "rcode" "ederror" "fallthrough" }}
{{- with get $p.template $k }}
        {{ $k }} {{ eq (toString .) "true" | ternary "" (toString .) }}
{{- end }}
{{- end }}
    }
{{- end }}
{{- with $p.hosts }}
    hosts {
{{- range .entries }}
        {{ .ip }} {{ .name }}
{{- end }}
{{- with .ttl }}
        ttl {{ . }}
{{- end }}
{{- if .no_reverse }}
        no_reverse
{{- end }}
{{- with .reload }}
        reload {{ . }}
{{- end }}
{{- if .fallthrough }}
        fallthrough
{{- end }}
    }
{{- end }}
{{- with $p.cache }}
    {{- $lines := list }}
    {{- range $k := list "success" "denial" }}
    {{- with get $p.cache $k }}{{ $lines = append $lines (printf "%s %v %v" $k .size (default "" .ttl) | trim) }}{{ end }}
    {{- end }}
    {{- with .prefetch }}{{ $lines = append $lines (printf "prefetch %v %v %v" .amount (default "" .duration) (default "" .percentage) | trim) }}{{ end }}
    {{- with .serve_stale }}{{ $lines = append $lines (printf "serve_stale %s" (kindIs "string" . | ternary (toString .) "") | trim) }}{{ end }}
    cache{{ with .parameters }} {{ . }}{{ end }}{{ include "nodens.options" $lines }}
{{- end }}
{{- if hasKey $p "search_cut" }}
    search_cut{{ if not $p.search_cut }} off{{ end }}
{{- end }}
{{- with $p.forward }}
    {{- $lines := list }}
    {{- range $k := list "force_tcp" "prefer_udp" }}
    {{- if get $p.forward $k }}{{ $lines = append $lines $k }}{{ end }}
    {{- end }}
    {{- range $k := list "policy" "max_fails" "expire" "health_check" "except" }}
    {{- with get $p.forward $k }}{{ $lines = append $lines (printf "%s %v" $k .) }}{{ end }}
    {{- end }}
    forward . {{ .parameters }}{{ include "nodens.options" $lines }}
{{- end }}
{{- /* prometheus and health of any zone are for the whole process. */}}
{{- if eq .zone (keys .root.Values.config.zones | sortAlpha | first) }}
{{- include "nodens.admin" .root }}
{{- end }}
}
{{- end }}
