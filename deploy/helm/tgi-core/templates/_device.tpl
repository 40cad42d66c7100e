{{- /* The device's description, with what the values override. JSON. */ -}}
{{- define "tgi.device" -}}
{{- $device := get (.Files.Get "files/devices.json" | fromJson) .Values.device -}}
{{- $limits := dict "memory" $device.memoryLimit -}}
{{- with .Values.resource | default $device.resource -}}{{- $_ := set $limits . $.Values.deviceCount -}}{{- end -}}
{{- $requests := dict "cpu" $device.cpu "memory" $device.memory -}}
{{- $resources := mergeOverwrite (dict "requests" $requests "limits" $limits) .Values.resources -}}
{{- $_ := set $device "resources" $resources -}}
{{- range $name := list "supplementalGroups" "startupMinutes" -}}
{{- with get $.Values $name -}}{{- $_ := set $device $name . -}}{{- end -}}
{{- end -}}
{{- toJson $device -}}
{{- end -}}

{{- /* The settings that differ from the defaults of `tgi serve`. JSON. */ -}}
{{- define "tgi.settings" -}}
{{- $device := include "tgi.device" . | fromJson -}}
{{- $defaults := (.Files.Get "files/settings.json" | fromJson).defaults -}}
{{- $chosen := $device.settings -}}
{{- range $name, $value := .Values.settings -}}
{{- if and (not (kindIs "invalid" $value)) (ne (toJson $value) (toJson (get $defaults $name))) -}}
{{- $_ := set $chosen $name $value -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int .Values.deviceCount) 1) (eq (int .Values.nodes) 1) (not (hasKey $chosen "num_shard")) -}}
{{- $_ := set $chosen "num_shard" (int .Values.deviceCount) -}}
{{- end -}}
{{- toJson $chosen -}}
{{- end -}}

{{- /* Variables that every container gets. Those that an image sets must be set here, too: they would override the config file. */ -}}
{{- define "tgi.environment" -}}
{{- $device := include "tgi.device" . | fromJson -}}
{{- $settings := include "tgi.settings" . | fromJson -}}
{{- $found := dict
  "BACKEND" ($settings.backend | default $device.backend)
  "PORT" (.Values.settings.port | int | toString)
  "HUGGINGFACE_HUB_CACHE" ($settings.huggingface_hub_cache | default "/data")
  "XDG_CACHE_HOME" "/data/.cache"
-}}
{{- with $settings.compile_cache -}}{{- $_ := set $found "COMPILE_CACHE" . -}}{{- end -}}
{{- $variables := list -}}
{{- range $name, $value := mergeOverwrite $found $device.environment .Values.environment -}}
{{- $variables = append $variables (dict "name" $name "value" (toString $value)) -}}
{{- end -}}
{{- toYaml $variables -}}
{{- end -}}
