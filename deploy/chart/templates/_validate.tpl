{{- /* Checks that the schema cannot express. */ -}}
{{- define "nodens.validate" -}}
{{- $c := .Values.config }}
{{- if hasKey .Values.redirect "freeSockets" }}
{{- fail "redirect.freeSockets was removed: set tier to full, or to resilient if redirect.freeSockets was false. Remove it from your values, and upgrade with --reset-then-reuse-values, not --reuse-values" }}
{{- end }}
{{- range .Values.extraArgs }}
{{- if regexMatch "^--?redirect(-(target|service|fallback|opt-out|uplink|heartbeat))?(=|$)" . }}
{{- fail (printf "extraArgs has %s, which was removed: set the values of redirect instead" .) }}
{{- end }}
{{- end }}
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
{{- $tier := include "nodens.tier" . }}
{{- $mode := include "nodens.mode" . }}
{{- if and (ne $tier "minimal") (not .Values.useHostNetwork) }}
{{- fail (printf "tier %s needs useHostNetwork; with localRedirectPolicy, Cilium redirects: leave tier empty" $tier) }}
{{- end }}
{{- if and (include "nodens.redirects" .) (not .Values.useHostNetwork) }}
{{- fail "redirect.mode needs useHostNetwork; with localRedirectPolicy, Cilium redirects: leave redirect.mode empty" }}
{{- end }}
{{- if and (eq $tier "minimal") (ne $mode "off") }}
{{- fail (printf "redirect.mode is %s, but the tier minimal has no privileges for redirection: set tier to %s" $mode (ternary "full" "resilient or full" (eq $mode "auto"))) }}
{{- end }}
{{- if and (eq $tier "resilient") (eq $mode "auto") }}
{{- fail "redirect.mode auto queries from inside pods, which needs tier full: set tier to full, or redirect.mode to on or off" }}
{{- end }}
{{- with .Values.fastpath }}
{{- if ne .mode "off" }}
{{- if eq $tier "minimal" }}
{{- fail (printf "fastpath.mode is %s, but the tier minimal has no privileges for BPF: set tier to resilient or full" .mode) }}
{{- end }}
{{- if $c.customConfig }}
{{- fail "fastpath.mode changes the generated Corefile only: write the fastpath directive into config.customConfig" }}
{{- end }}
{{- if regexMatch "(?m)^[ \t]*fastpath([ \t{#]|$)" (tpl $c.extraServerBlocks $) }}
{{- fail (printf "fastpath.mode is %s, and config.extraServerBlocks has a fastpath directive, too: remove one of them" .mode) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (eq $tier "minimal") (include "nodens.fastpath" .) }}
{{- fail "the fastpath directive in the Corefile needs BPF, which the tier minimal does not have: set tier to resilient or full" }}
{{- end }}
{{- if and (include "nodens.fastpathOptsOut" .) (ne $tier "full") }}
{{- fail "fastpath.optOut, or opt_out of a fastpath directive, finds the networks of pods, which needs tier full: set tier to full, or remove fastpath.optOut and opt_out" }}
{{- end }}
{{- include "nodens.checkPins" . }}
{{- if and .Values.status.podNames (not .Values.useHostNetwork) }}
{{- fail "status.podNames reads files of root, and without useHostNetwork nodens is another user: set status.podNames to false" }}
{{- end }}
{{- with .Values.status.address }}
{{- if not (or $.Values.status.tokenSecret (regexMatch "^(127[.][0-9.]+|localhost|\\[::1\\]):" .)) }}
{{- fail (printf "status.address is %s: pods can reach it and read the queries of other pods; set status.tokenSecret, or use 127.0.0.1" .) }}
{{- end }}
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
{{- $own := include "nodens.redirectMode" (tpl . $) }}
{{- if ne $mode $own }}
{{- fail (printf "redirect.mode is %s, but config.customConfig sets redirection to %s: write `redirect %s` into config.customConfig, or leave redirect.mode empty" $mode $own $mode) }}
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

{{- /* Programs that nodens pinned on the nodes outlive it. The tier minimal does not
see them, and pods would query old fallbacks. helm template looks up no objects: then
the pod refuses to start, because of a mark beside the cache snapshot. */ -}}
{{- define "nodens.checkPins" -}}
{{- if eq (include "nodens.tier" .) "minimal" }}
{{- $name := include "nodens.fullname" . }}
{{- $old := lookup "apps/v1" "DaemonSet" .Release.Namespace $name }}
{{- $pins := false }}
{{- range dig "spec" "template" "spec" "volumes" list $old }}
{{- if eq .name "bpffs" }}{{ $pins = true }}{{ end }}
{{- end }}
{{- $data := (lookup "v1" "ConfigMap" .Release.Namespace $name).data | default dict }}
{{- $s := get $old "status" | default dict }}
{{- $done := eq "off" (include "nodens.redirectMode" (get $data "Corefile" | default "redirect auto")) }}
{{- $all := get $s "desiredNumberScheduled" | int }}
{{- range list "updatedNumberScheduled" "numberAvailable" }}
{{- if lt (get $s . | int) $all }}{{ $done = false }}{{ end }}
{{- end }}
{{- if lt (get $s "observedGeneration" | int64) (dig "metadata" "generation" 0 $old | int64) }}{{ $done = false }}{{ end }}
{{- if and $pins (not $done) }}
{{- fail (printf "the tier minimal cannot remove the BPF programs that the DaemonSet %s may have pinned on the nodes: first upgrade with the present tier (--set tier=full) and redirect.mode=off, and wait a minute after the rollout; or uninstall, apply deploy/teardown.yaml and install" $name) }}
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
