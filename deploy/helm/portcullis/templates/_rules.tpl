{{/* What a data plane reads. The controller reads the same: it judges what they serve. */}}
{{- define "portcullis.readRules" -}}
- apiGroups: [gateway.networking.k8s.io]
  resources:
  - gatewayclasses
  - gateways
  - listenersets
  - httproutes
  - grpcroutes
  - tlsroutes
  - tcproutes
  - udproutes
  - backendtlspolicies
  - referencegrants
  verbs: [list, watch]
- apiGroups: [portcullis.dev]
  resources: [gatewayparameters]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [namespaces, services]
  verbs: [list, watch]
# Only those that something names are kept. One that is named later is read then.
- apiGroups: [""]
  resources: [secrets, configmaps]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- end }}
