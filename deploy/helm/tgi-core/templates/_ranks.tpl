{{- /* The ranks of one machine, which torch.distributed.run starts. LeaderWorkerSet sets the LWS_ variables. */ -}}
{{- define "tgi.ranks" -}}
{{- $device := include "tgi.device" . | fromJson -}}
- name: ranks
  args:
    - python
    - -m
    - torch.distributed.run
    - --nnodes=$(LWS_GROUP_SIZE)
    - --node-rank=$(LWS_WORKER_INDEX)
    - --nproc-per-node={{ .Values.deviceCount }}
    - --master-addr=$(LWS_LEADER_ADDRESS)
    - --master-port={{ .Values.settings.master_port | int }}
    - -m
    - tgi_core
    - shard
    - --config=/etc/tgi/shard.json
    - --listen=127.0.0.1:9000
  env: {{- include "tgi.environment" . | nindent 4 }}
  {{- include "tgi.container" . | nindent 2 }}
  resources: {{- toYaml $device.resources | nindent 4 }}
{{- end -}}
