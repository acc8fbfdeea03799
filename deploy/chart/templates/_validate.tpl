{{- /* Checks that the schema cannot express. */ -}}
{{- define "nodens.validate" -}}
{{- $c := .Values.config }}
{{- range splitList "," .Values.config.localDns }}
{{- include "nodens.checkAddress" (dict "value" "config.localDns" "text" .) }}
{{- end }}
{{- with $c.dnsServer }}{{ include "nodens.checkAddress" (dict "value" "config.dnsServer" "text" .) }}{{ end }}
{{- with .Values.localRedirectPolicy.address }}{{ include "nodens.checkAddress" (dict "value" "localRedirectPolicy.address" "text" .) }}{{ end }}
{{- if and .Values.localRedirectPolicy.enabled .Values.useHostNetwork }}
{{- fail "localRedirectPolicy needs a pod with its own network: set useHostNetwork to false" }}
{{- end }}
{{- if not (or .Values.localRedirectPolicy.enabled .Values.useHostNetwork) }}
{{- fail "without useHostNetwork, pods do not reach nodens: set useHostNetwork to true or enable localRedirectPolicy (Cilium)" }}
{{- end }}
{{- if and (include "nodens.redirects" .) (not .Values.useHostNetwork) }}
{{- fail "redirect.mode needs useHostNetwork; with localRedirectPolicy, Cilium redirects: set redirect.mode to off" }}
{{- end }}
{{- if and $c.dnsServer (has $c.dnsServer (splitList "," $c.localDns)) }}
{{- fail "config.dnsServer is also in config.localDns: set it to the cluster IP of kube-dns or leave it empty" }}
{{- end }}
{{- range $zone, $block := $c.zones }}
{{- with $block.plugins.health }}
{{- if ne (int .port) (int $c.healthPort) }}
{{- fail (printf "config.zones.%s.plugins.health.port is %d, but the process has one health port, config.healthPort, which is %d" $zone (int .port) (int $c.healthPort)) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $c.dnsServer (eq $c.customUpstreamsvc "kube-dns") }}
{{- fail "config.customUpstreamsvc is kube-dns, and nodens serves the address of kube-dns (config.dnsServer), which makes a loop; leave customUpstreamsvc empty" }}
{{- end }}
{{- if and $c.customConfig (or $c.zones $c.extraServerBlocks) }}
{{- fail "config.customConfig replaces the whole Corefile: config.zones and config.extraServerBlocks must be empty" }}
{{- end }}
{{- with $c.customConfig }}
{{- $mode := include "nodens.redirectMode" (tpl . $) }}
{{- if ne $mode $.Values.redirect.mode }}
{{- fail (printf "redirect.mode is %s, but config.customConfig sets redirection to %s: write `redirect %s` into config.customConfig, or set redirect.mode to %s" $.Values.redirect.mode $mode $.Values.redirect.mode $mode) }}
{{- end }}
{{- if include "nodens.redirects" $ }}
{{- $r := $.Values.redirect }}
{{- if or $r.fallbacks $r.uplinks (ne (int $r.port) 20053) }}
{{- fail "redirect.fallbacks, redirect.uplinks and redirect.port are not used with config.customConfig: write fallback, uplink and target into its redirect directive" }}
{{- end }}
{{- /* The value mounts the logs of pods, the option uses them. */}}
{{- if ne (empty $r.optOut) (not (regexMatch "(?m)^[ \t]*opt_out[ \t]" (tpl . $))) }}
{{- fail "with config.customConfig, set both redirect.optOut and the option opt_out of its redirect directive, or neither" }}
{{- end }}
{{- end }}
{{- end }}
{{- if ne (include "nodens.redirectMode" (tpl $c.extraServerBlocks .)) "off" }}
{{- fail "config.extraServerBlocks has a redirect directive: set the values under redirect instead" }}
{{- end }}
{{- if and .Values.endpoints.asUpstreams (not .Values.endpoints.learn) }}
{{- fail "endpoints.asUpstreams needs endpoints.learn" }}
{{- end }}
{{- if and .Values.endpoints.asUpstreams (or $c.customConfig $c.zones) }}
{{- fail "endpoints.asUpstreams changes the generated Corefile only: write kubernetes_endpoints into your forward directive instead" }}
{{- end }}
{{- /* After lameduck, lookups in flight get 4 s, and nodens removes its rules and addresses. */}}
{{- $seconds := 5.0 }}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" $c.lameduck -1 }}
{{- $unit := regexFind "[a-z]+$" . }}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit . | float64) (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) $unit)) }}
{{- end }}
{{- if lt (float64 .Values.terminationGracePeriodSeconds) $seconds }}
{{- fail (printf "config.lameduck is %s, and the shutdown after it takes 5s: terminationGracePeriodSeconds must be at least %v, not %v" $c.lameduck (ceil $seconds) (int .Values.terminationGracePeriodSeconds)) }}
{{- end }}
{{- include "nodens.checkLimits" . }}
{{- with .Values.updateStrategy }}
{{- if and (eq .type "RollingUpdate") (not .rollingUpdate) }}
{{- fail "updateStrategy.type RollingUpdate needs updateStrategy.rollingUpdate" }}
{{- end }}
{{- if eq .type "RollingUpdate" }}
{{- $surge := .rollingUpdate.maxSurge | toString | trimSuffix "%" | int }}
{{- $unavailable := .rollingUpdate.maxUnavailable | toString | trimSuffix "%" | int }}
{{- if eq (eq $surge 0) (eq $unavailable 0) }}
{{- fail (printf "updateStrategy.rollingUpdate: maxSurge is %v and maxUnavailable is %v, but exactly one of them must be 0" .rollingUpdate.maxSurge .rollingUpdate.maxUnavailable) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "nodens.checkAddress" -}}
{{- $ipv4 := "^(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])([.](25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}$" }}
{{- $ipv6 := "^[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*$" }}
{{- if not (or (regexMatch $ipv4 .text) (regexMatch $ipv6 .text)) }}
{{- fail (printf "%s: %q is not an IP address%s" .value .text (regexMatch "[ ,]" .text | ternary "; separate addresses by commas without spaces" "")) }}
{{- end }}
{{- end }}
