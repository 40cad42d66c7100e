{{- define "tgi.labels" -}}
app.kubernetes.io/name: tgi-core
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Metadata of a pod: a changed setting starts a rollout. */ -}}
{{- define "tgi.podMetadata" -}}
labels:
  {{- include "tgi.labels" . | nindent 2 }}
  {{- with .Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  checksum/settings: {{ include "tgi.settings" . | sha256sum | trunc 16 }}
  {{- with .Values.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end -}}

{{- /* What all pods have besides containers. The grace period is what the server takes at most to drain. */ -}}
{{- define "tgi.pod" -}}
{{- $device := include "tgi.device" . | fromJson -}}
{{- $settings := .Values.settings -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add (ceil $settings.drain_delay) $settings.graceful_termination_timeout 15 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
  {{- with $device.supplementalGroups }}
  supplementalGroups: {{ toJson . }}
  {{- end }}
{{- range $name := list "runtimeClassName" "priorityClassName" "nodeSelector" "affinity" "topologySpreadConstraints" }}
{{- with get $.Values $name }}
{{ $name }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with concat $device.tolerations .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: settings
    configMap: {name: {{ .Release.Name }}}
  - name: data # models, and what is compiled at run time
    {{- if .Values.persistence.enabled }}
    persistentVolumeClaim: {claimName: {{ .Values.persistence.existingClaim | default .Release.Name }}}
    {{- else }}
    emptyDir: {}
    {{- end }}
  - name: tmp # sockets between the server's processes
    emptyDir: {sizeLimit: 4Gi}
  - name: shm # collectives of several devices
    emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory }}}
{{- end -}}

{{- /* What all containers have. */ -}}
{{- define "tgi.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Values.device }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.secretName }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: settings, mountPath: /etc/tgi, readOnly: true}
  - {name: data, mountPath: /data}
  - {name: tmp, mountPath: /tmp}
  - {name: shm, mountPath: /dev/shm}
{{- end -}}

{{- define "tgi.probes" -}}
{{- $device := include "tgi.device" . | fromJson -}}
ports:
  - {name: http, containerPort: {{ .Values.settings.port | int }}}
startupProbe: # the model is downloaded, loaded and compiled
  httpGet: {path: /readyz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: {{ mul $device.startupMinutes 6 }}
livenessProbe: # 503 only if the process must be restarted
  httpGet: {path: /livez, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe: # 503 while it drains, or a shard restarts
  httpGet: {path: /readyz, port: http}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 1
{{- end -}}
