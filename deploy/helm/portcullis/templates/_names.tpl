{{/* Names are fixed: a namespace has one release. */}}
{{- define "portcullis.controller" -}}portcullis-controller{{- end }}
{{/* Roles of the cluster have the namespace in their name, unless the release has the default controllerName. */}}
{{- define "portcullis.clusterRole" -}}
portcullis-controller
{{- if ne .Values.controller.name "portcullis.dev/gateway-controller" }}-{{ .Release.Namespace }}{{ end }}
{{- end }}
{{- define "portcullis.stream" -}}portcullis-controller-stream{{- end }}

{{- define "portcullis.labels" -}}
{{- include "portcullis.labelsWith" (list . dict) }}
{{- end }}

{{/* Labels of an object that has some of its own, which replace those of all objects. */}}
{{- define "portcullis.labelsWith" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: portcullis
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- with merge (dict) (index . 1 | default dict) ($root.Values.commonLabels | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "portcullis.selector" -}}
app.kubernetes.io/name: portcullis
app.kubernetes.io/component: controller
{{- end }}

{{/* Of the pod of `helm test`. */}}
{{- define "portcullis.test" -}}portcullis-controller-test{{- end }}

{{- define "portcullis.testSelector" -}}
app.kubernetes.io/name: portcullis
app.kubernetes.io/component: test
{{- end }}

{{/* What the Pod Security Standard `restricted` asks of a container, and more. */}}
{{- define "portcullis.securityContext" -}}
runAsNonRoot: true
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
{{- end }}

{{- define "portcullis.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- .Values.image.repository }}{{ if not (hasPrefix "@" $tag) }}:{{ end }}{{ $tag }}
{{- end }}
