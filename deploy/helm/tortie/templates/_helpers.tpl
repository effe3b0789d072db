{{/* Labels of what belongs to a component. */}}
{{- define "tortie.labels" -}}
app.kubernetes.io/name: tortie-{{ . }}
app.kubernetes.io/part-of: tortie
{{- end }}

{{- define "tortie.image" -}}
{{- $version := printf ":%s" .Values.image.tag }}
{{- with .Values.image.digest }}{{ $version = printf "@%s" . }}{{ end -}}
image: {{ printf "%s%s" .Values.image.repository $version | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "tortie.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* What the agents read from. */}}
{{- define "tortie.datastore" -}}
{{- if .Values.agent.datastore -}}
{{ .Values.agent.datastore }}
{{- else if .Values.fanout.enabled -}}
fanout://tortie-fanout.{{ .Release.Namespace }}.svc:{{ .Values.fanout.port }}
{{- else -}}
kubernetes:in-cluster
{{- end }}
{{- end }}

{{/* Whether agents show certificates to a fan-out. */}}
{{- define "tortie.agentTls" -}}
{{- if and .Values.fanout.tls.enabled (hasPrefix "fanout:" (include "tortie.datastore" .)) }}true{{ end }}
{{- end }}

{{/* Probes of a server that answers on this port of the host. */}}
{{- define "tortie.probes" -}}
livenessProbe:
  httpGet: {host: 127.0.0.1, path: /liveness, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {host: 127.0.0.1, path: /readiness, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{/* What fan-outs and controllers may do on their nodes: nothing. */}}
{{- define "tortie.unprivileged" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* No two pods of a component on the same node. */}}
{{- define "tortie.apart" -}}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {app.kubernetes.io/name: tortie-{{ . }}}
{{- end }}

{{/* A role that an account has in the whole cluster. */}}
{{- define "tortie.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name }}
  labels:
    {{- if .component }}
    app.kubernetes.io/name: tortie-{{ .component }}
    {{- end }}
    app.kubernetes.io/part-of: tortie
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: tortie-{{ .account }}
    namespace: {{ .namespace }}
{{- end }}

{{/* A value as a parameter has it. Numbers of a file are floating, and large ones would be written with an exponent. */}}
{{- define "tortie.parameter" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) -}}
{{ int64 . }}
{{- else -}}
{{ toString . }}
{{- end }}
{{- end }}
