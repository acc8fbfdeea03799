{{- /* The arithmetic of internal/daemon/limits.go: limits that do not fit the memory
limit are refused. */ -}}
{{- define "nodens.checkLimits" -}}
{{- $memory := 0 }}
{{- with (.Values.resources).limits }}{{ with .memory }}{{ $memory = include "nodens.quantity" . | int64 }}{{ end }}{{ end }}
{{- if gt $memory 0 }}
{{- $args := .Values.extraArgs | join " " }}
{{- $sizes := dict "K" "Ki" "M" "Mi" "G" "Gi" }}
{{- $size := regexFind "(^| )--?cache-size[= ][0-9]+[KMG]?" $args | regexFind "[0-9]+[KMG]?$" | default .Values.config.cacheSize | trimSuffix "i" }}
{{- $misses := regexFind "(^| )--?max-misses[= ][0-9]+" $args | regexFind "[0-9]+$" | int64 }}
{{- $conns := regexFind "(^| )--?max-tcp-connections[= ][0-9]+" $args | regexFind "[0-9]+$" | int64 }}
{{- $mib := 1048576 }}
{{- $fixed := add (mul 24 $mib) (mul (div $memory 32) 3) }}
{{- $cache := min (max (min (div $memory 2) (mul (div (sub $memory $fixed) 10) 7)) (mul 2 $mib)) (mul 512 $mib) }}
{{- with $size }}
{{- $unit := regexFind "[KMG]$" . }}
{{- $cache = include "nodens.quantity" (printf "%s%s" (trimSuffix $unit .) (get $sizes $unit)) | int64 }}
{{- end }}
{{- $left := sub $memory (add $fixed (mul 128 4096) (mul 2 $mib)) }}
{{- if and $size (gt $cache (max $left (mul 2 $mib))) }}
{{- fail (printf "config.cacheSize %s does not fit: resources.limits.memory, %d MiB, leaves %d MiB after %d MiB for the process and its buffers and 2 MiB for misses and TCP connections" $size (div $memory $mib) (div (max $left 0) $mib) (div $fixed $mib)) }}
{{- end }}
{{- $left = max (sub $memory (add $fixed $cache)) 0 }}
{{- $room := sub $left (mul 2 $mib) }}
{{- if gt $misses (max (div $room 4096) 128) }}
{{- fail (printf "-max-misses %d needs %d MiB (4 KiB each); resources.limits.memory, %d MiB, leaves %d MiB after the cache's %d MiB, %d MiB for the process and its buffers and 2 MiB for TCP connections" $misses (div (mul $misses 4096) $mib) (div $memory $mib) (div (max $room 0) $mib) (div $cache $mib) (div $fixed $mib)) }}
{{- end }}
{{- $missBytes := mul 4096 ($misses | default (min (max (div (min (mul (div $left 3) 2) $room) 4096) 128) 16384)) }}
{{- $left = sub $left $missBytes }}
{{- $addresses := len (splitList "," (include "nodens.localIPs" .)) }}
{{- if include "nodens.redirects" . }}{{ $addresses = mul 2 $addresses }}{{ end }}
{{- $upstreams := mul 32768 (min (div (max $left (mul 2 $mib)) 131072) 256) }}
{{- $left = max (sub $left $upstreams) 0 }}
{{- if gt $conns (max (div $left (mul 65536 $addresses)) 1) }}
{{- fail (printf "-max-tcp-connections %d needs %d MiB (64 KiB each, on %d addresses); resources.limits.memory, %d MiB, leaves %d MiB after the cache's %d MiB, %d MiB for the process and its buffers, %d MiB for misses and %d MiB for TCP connections to upstreams" $conns (div (mul $conns $addresses 65536) $mib) $addresses (div $memory $mib) (div $left $mib) (div $cache $mib) (div $fixed $mib) (div $missBytes $mib) (div $upstreams $mib)) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A quantity of Kubernetes, such as 128Mi, as a number. */ -}}
{{- define "nodens.quantity" -}}
{{- $text := toString . }}
{{- $number := regexFind "^[0-9.]+(e[+]?[0-9]+)?" $text }}
{{- $factors := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- mulf (float64 $number) (get $factors (trimPrefix $number $text) | default 0) | int64 }}
{{- end }}
