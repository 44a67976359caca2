{{/* Names are fixed: one release serves a cluster, since its GatewayClasses name one controller. */}}
{{- define "portcullis.controller" -}}portcullis-controller{{- end }}
{{- define "portcullis.stream" -}}portcullis-controller-stream{{- end }}

{{- define "portcullis.labels" -}}
app.kubernetes.io/name: portcullis
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "portcullis.selector" -}}
app.kubernetes.io/name: portcullis
app.kubernetes.io/component: controller
{{- end }}

{{- define "portcullis.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- .Values.image.repository }}{{ if not (hasPrefix "@" $tag) }}:{{ end }}{{ $tag }}
{{- end }}
