{{/* Names are fixed: a cluster has one release, because all its GatewayClasses have the same controllerName. */}}
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
